"""Tiny folders in the layout of Hugging Face, with random arrays."""

import json

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

BERT = {
    "model_type": "bert",
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "bad", "film", "fun", "good", "was")
SEPARATORS = {"cls": ("[CLS]", 2), "sep": ("[SEP]", 3)}


def bert_shapes(config):
    """Returns the shapes of BertModel's arrays, by its names."""
    width, hidden = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.position_embeddings.weight": (
            config["max_position_embeddings"],
            width,
        ),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        "pooler.dense.weight": (width, width),
    }
    norms, linear = ["embeddings.LayerNorm"], {}
    for number in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            linear[f"{at}.attention.self.{part}"] = (width, width)
        linear[f"{at}.attention.output.dense"] = (width, width)
        linear[f"{at}.intermediate.dense"] = (hidden, width)
        linear[f"{at}.output.dense"] = (width, hidden)
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return shapes


def llama_shapes(config):
    """Returns the shapes of LlamaForCausalLM's arrays, by its names."""
    width, hidden = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    for number in range(config["num_hidden_layers"]):
        at = f"model.layers.{number}"
        shapes |= {
            f"{at}.input_layernorm.weight": (width,),
            f"{at}.post_attention_layernorm.weight": (width,),
            f"{at}.self_attn.q_proj.weight": (queries, width),
            f"{at}.self_attn.k_proj.weight": (keys, width),
            f"{at}.self_attn.v_proj.weight": (keys, width),
            f"{at}.self_attn.o_proj.weight": (width, queries),
            f"{at}.mlp.gate_proj.weight": (hidden, width),
            f"{at}.mlp.up_proj.weight": (hidden, width),
            f"{at}.mlp.down_proj.weight": (width, hidden),
        }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    return shapes


def drawn(shapes, seed=0):
    """Returns random arrays, as large as a trained model's activations need."""
    random = np.random.default_rng(seed)
    return {
        name: np.float32(random.normal(size=shape) / np.sqrt(np.prod(shape[1:]) or 4))
        for name, shape in shapes.items()
    }


def tokenizer(separators=True, words=WORDS):
    """Returns the contents of a tokenizer.json with a number for each word."""
    ends = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]")]
    text = {"Sequence": {"id": "A", "type_id": 0}}
    special = {
        name: {"id": name, "ids": [number], "tokens": [name]}
        for name, number in SEPARATORS.values()
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": word,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, word in enumerate(words)
            if word.startswith("[")
        ],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [ends[0], text, ends[1]],
            "pair": [ends[0], text, ends[1]],
            "special_tokens": special,
        }
        if separators
        else None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": "[UNK]",
        },
    }


def write(folder, config, arrays, tokens=None):
    """Writes a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tokens is not None:
        (folder / "tokenizer.json").write_text(json.dumps(tokens))
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})


def bert(folder, *, tokens=None, **changes):
    """Writes a tiny BERT; returns its config and its arrays."""
    config = BERT | changes
    arrays = drawn(bert_shapes(config))
    write(folder, config, arrays, tokens or tokenizer())
    return config, arrays


def llama(folder, *, tokens=None, **changes):
    """Writes a tiny Llama; returns its config and its arrays."""
    config = LLAMA | changes
    arrays = drawn(llama_shapes(config))
    write(folder, config, arrays, tokens or tokenizer(separators=False))
    return config, arrays


def short(arrays):
    """Returns arrays in bfloat16."""
    return {name: array.astype(ml_dtypes.bfloat16) for name, array in arrays.items()}
