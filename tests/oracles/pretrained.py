"""BERT and Llama in numpy, on arrays by the names of their files.

They are written from the papers and from what transformers computes, without a line of
the project's own modules.
"""

import numpy as np
from scipy.special import erf


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def linear(arrays, name, x):
    y = x @ arrays[f"{name}.weight"].T
    return y + arrays.get(f"{name}.bias", 0)


def layer_norm(arrays, name, x, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return x * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]


def heads(x, count):
    """[length, count * each] -> [count, length, each]."""
    return x.reshape(len(x), count, -1).swapaxes(0, 1)


def bert(arrays, config, tokens):
    """Returns the vector of one text, whose padding is left out altogether."""
    tokens = [token for token in tokens if token != config["pad_token_id"]]
    epsilon, count = config["layer_norm_eps"], config["num_attention_heads"]
    x = arrays["embeddings.word_embeddings.weight"][tokens]
    x = x + arrays["embeddings.position_embeddings.weight"][: len(tokens)]
    x = x + arrays["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(arrays, "embeddings.LayerNorm", x, epsilon)
    for number in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{number}"
        q, k, v = (
            heads(linear(arrays, f"{at}.attention.self.{part}", x), count)
            for part in ("query", "key", "value")
        )
        seen = softmax(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])) @ v
        seen = seen.swapaxes(0, 1).reshape(x.shape)
        seen = linear(arrays, f"{at}.attention.output.dense", seen)
        x = layer_norm(arrays, f"{at}.attention.output.LayerNorm", x + seen, epsilon)
        y = linear(arrays, f"{at}.intermediate.dense", x)
        y = linear(arrays, f"{at}.output.dense", y * (1 + erf(y / np.sqrt(2))) / 2)
        x = layer_norm(arrays, f"{at}.output.LayerNorm", x + y, epsilon)
    return x.mean(0)


def rms(arrays, name, x, epsilon):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * arrays[name]


def rotated(x, theta):
    """Turns pairs (i, i + half) of each head [heads, length, each] by its place."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] / theta ** (np.arange(half) / half)
    turn = np.exp(1j * angles)
    y = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([y.real, y.imag], -1)


def llama(arrays, config, tokens):
    """Returns the last hidden states of one text, [length, width]."""
    epsilon, theta = config["rms_norm_eps"], config["rope_theta"]
    queries, keys = config["num_attention_heads"], config["num_key_value_heads"]
    x = arrays["model.embed_tokens.weight"][np.asarray(tokens)]
    later = np.triu(np.full((len(x), len(x)), -np.inf), 1)
    for number in range(config["num_hidden_layers"]):
        at = f"model.layers.{number}"
        y = rms(arrays, f"{at}.input_layernorm.weight", x, epsilon)
        q, k, v = (
            heads(linear(arrays, f"{at}.self_attn.{part}_proj", y), count)
            for part, count in (("q", queries), ("k", keys), ("v", keys))
        )
        k, v = (np.repeat(part, queries // keys, 0) for part in (k, v))
        q, k = rotated(q, theta), rotated(k, theta)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        seen = (softmax(scores + later) @ v).swapaxes(0, 1).reshape(len(x), -1)
        x = x + linear(arrays, f"{at}.self_attn.o_proj", seen)
        y = rms(arrays, f"{at}.post_attention_layernorm.weight", x, epsilon)
        gate = linear(arrays, f"{at}.mlp.gate_proj", y)
        y = gate / (1 + np.exp(-gate)) * linear(arrays, f"{at}.mlp.up_proj", y)
        x = x + linear(arrays, f"{at}.mlp.down_proj", y)
    return rms(arrays, "model.norm.weight", x, epsilon)
