"""Every key of a config, with its default.

Command: python -m launch.train --config=configs/default.py --workdir=/tmp/safl_digits
Expect: test accuracy 0.983 (seed 0), as docs/running.md shows it, in seconds.

A config file starts from `get_config()` and changes some keys. A key that is not in
this file is refused, in a config file and on the command line.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the defaults, locked: values can change, and keys cannot be added."""
    config = ConfigDict()
    # a method of docs/methods.md, such as fedavg, fedadam or safl; or FILE.py:NAME
    config.algorithm = "safl"
    config.rounds = 100  # total number of rounds
    config.eval_every = 10  # rounds between rows of metrics.csv
    config.checkpoint_every = 50  # rounds between checkpoints; the last is saved too
    config.checkpoint_keep = 2  # how many are kept; 0: all, for launch.spectrum
    config.download = "cheapest"  # or model; messages: those that a client missed
    # of all randomness; of private runs: of sketches and initial weights
    config.seed = 0

    config.data = ConfigDict()
    # digits, mnist, fashion_mnist, cifar10, sst2, shakespeare; synthetic/N: N generated
    # examples; npz/FILE: your arrays in FILE.npz, or in a folder FILE of npy files; or
    # FILE.py:NAME
    config.data.name = "digits"
    # 1/2 or 2/2: the first or the second half of its classes, or of its speakers
    config.data.part = "all"
    config.data.clients = 20  # the population; 0, for natural: all owners
    # iid, dirichlet, capped_dirichlet (as NIID-Bench has it), mixtures (of classes,
    # equally many examples), label_shards, classes, power_law, or natural: one client
    # per owner
    config.data.partition = "iid"
    config.data.alpha = 0.5  # of both dirichlet and mixtures: smaller is more uneven
    config.data.per_client = 2  # shards of label_shards, classes of classes
    config.data.exponent = 1.5  # of power_law
    # the seed of the partition; -1: the run's seed, or 0 in private runs, so that
    # several private runs have the same clients and a total epsilon
    config.data.partition_seed = -1
    config.data.held_out = 0.0  # share of a client's examples that it does not train on
    config.data.length = 64  # tokens per text
    config.data.vocabulary = 8192  # number of different tokens
    # a file with one word per line, or with characters; empty: from the training texts
    config.data.vocabulary_file = ""
    config.data.classes = 0  # number of classes; 0: those of the data
    # mean/deviation for each channel, such as 0.13/0.31; train: of the training set
    config.data.standardise = "none"
    # crop, flip, crop_flip, reflect_crop_flip, in training; FILE.py:NAME
    config.data.augment = "none"
    config.data.public = False  # True: these data need no privacy

    config.model = ConfigDict()
    # logistic, mlp, lenet, lenet_valid, sigmoid_lenet, cnn, resnet, vit; transformer,
    # language_model for texts; hf/FOLDER, a pretrained model in a folder; FILE.py:NAME
    config.model.name = "mlp"
    # paper: of resnet, vit, transformer; tiny: of mlp (128), resnet; billion: of
    # language_model
    config.model.size = "small"
    # of mlp's layers, of tokens, channels of cnn and resnet; 0: the default
    config.model.width = 0
    # of cnn, vit, transformer, language_model, hf/ encoders, in training
    config.model.dropout = 0.0
    config.model.norm = "group"  # of resnet; or batch, which has statistics
    config.model.kernels = "lecun_normal"  # initial kernels of cnn; or glorot_uniform
    # cross_entropy; binary: several labels; squared: numbers
    config.model.loss = "cross_entropy"
    # metrics, such as accuracy,perplexity; the first is the score; for numbers: rmse;
    # empty: the default of the loss
    config.model.metrics = ""
    # initial weights: the folder of a run or a release, FILE.npz or FILE.safetensors
    config.model.init_from = ""
    config.model.fresh = ""  # layers to initialise anew, such as dense3,conv1/bias
    config.model.label_smoothing = 0.0  # weight of the uniform distribution
    config.model.weight_decay = 0.0  # w: adds w |params|^2 / 2 to the loss

    config.cohort = ConfigDict()
    config.cohort.sampling = "fixed"  # or poisson, replacement, everyone
    config.cohort.size = 10  # clients per round; for poisson, on average
    config.cohort.dropout = 0.0  # probability that a client does not answer
    config.cohort.weighting = "equal"  # or examples: by the examples of each client

    config.client = ConfigDict()
    config.client.rate = 0.1  # eta of the local steps
    # an optimizer of optax by its name there, with options, such as
    # sgd(momentum=0.9) or adamw; FILE.py:NAME, a function of the rate
    config.client.optimizer = "sgd"
    # what trains; the rest stays as in model.init_from: all, head (the last layer), or
    # a pattern of names, such as dense3|bias; lora(rank=8, alpha=16, on=query|value)
    # adds products of two factors to the arrays that match, +head or +PATTERN adds more
    config.client.trains = "all"
    config.client.weight_decay = 0.0  # w: each step also subtracts rate w x from x
    config.client.steps = 5  # K
    # passes of each client over its examples, the last batch of each short, instead of
    # steps: clients of unlike sizes take unlike numbers of steps; 0: steps
    config.client.epochs = 0
    config.client.batch = 20  # examples per step; 0, with epochs: all of the client
    # fresh: independent draws; subsets: no example twice in one; whole: all examples
    config.client.batches = "fresh"
    config.client.decay = 1.0  # of both rates, between rounds; for dp_fedavg
    config.client.proximal = 0.0  # mu of FedProx, for fedavg
    # of gradient tracking, a factor of 1/(K eta); 0.01 to 0.03 for compressed messages
    config.client.gain = 1.0
    config.client.clip = 0.0  # tau: norm to which safl clips updates; 0: no clipping

    config.server = ConfigDict()
    # sgd, momentum, [paper_]amsgrad, scalar_adam, yogi, adagrad
    config.server.optimizer = "adam"
    config.server.rate = 0.01  # gamma; for fedavg, 1.0 averages the models
    config.server.schedule = "constant"  # or cosine: from rate to floor, in all rounds
    config.server.floor = 0.0  # of cosine
    config.server.b1 = 0.9  # of momentum and first moments
    config.server.b2 = 0.99  # of second moments
    config.server.eps = 1e-8  # added to the root
    config.server.warmup = 0.2  # share of rounds with plain Adam, for onebit_adam

    config.sketch = ConfigDict()
    # count_sketch, sparse_embedding, srht, gaussian, ams, uniform_sampling, identity
    config.sketch.operator = "count_sketch"
    config.sketch.compression = 20.0  # d / b
    config.sketch.size = 0  # b, of all rows together; 0: d / compression
    config.sketch.rows = 1  # of count_sketch; they share the numbers
    config.sketch.layout = "whole"  # or leaves: a sketch for each parameter array
    config.sketch.stored = False  # R as one matrix in memory: for attacks
    config.sketch.forget = "zero"  # or subtract, as printed: for fetchsgd
    config.sketch.masking = False  # momentum forgets too, for fetchsgd
    config.sketch.query = "privix"  # or heaprix: exact heavy values; for fedsketch*
    # heavy values: m of heaprix, k of fetchsgd, sketched_sgd; 0: a row's columns, or
    # a fiftieth of them for fetchsgd with forget=subtract
    config.sketch.heavy = 0
    # what fills up too few heavy values: random, as printed; top: largest estimates;
    # empty: random, but top for sketched_sgd, as in its authors' code
    config.sketch.heavy_fill = ""
    # of heaprix: exact, in a second exchange of m numbers; fresh: also with a second
    # sketch for the rest, unbiased
    config.sketch.heavy_values = "exact"

    config.compressor = ConfigDict()
    config.compressor.name = "top_k"  # random_k, scaled_sign, qsgd, nearest, cocktail
    config.compressor.compression = 20.0  # 32 d / bits of a message
    config.compressor.levels = 7  # of qsgd, fedcomgate and the cocktail
    config.compressor.probability = 0.1  # of a whole gradient, for marina

    config.privacy = ConfigDict()
    # source of noise, cohorts and batches: the operating system; seed: a simulation
    config.privacy.randomness = "system"
    config.privacy.bound = "none"  # of a client's message: clip, normalise, adaptive
    # C; for dp_fedavg and dp_normfedavg of update / client.rate, for private_sketching
    # of an example's gradient
    config.privacy.threshold = 1.0
    config.privacy.noise_multiplier = 0.0  # z: the noise on a sum, divided by C
    # chooses z; if noise_multiplier is given, stops the run before it is exceeded
    config.privacy.target_epsilon = 0.0
    config.privacy.delta = 1e-5  # below one over the number of clients
    config.privacy.unit = "client"  # or example, for private_sketching
    config.privacy.relation = "add_remove"  # or replace_one
    config.privacy.accountant = "auto"  # or pld, rdp
    # or skellam: a share by every client, on integers that secure aggregation adds up
    config.privacy.noise = "central"
    # clients whose shares are the promised noise of skellam; 0: the cohort's size
    config.privacy.smallest_cohort = 0
    config.privacy.bits = 0  # of a number sent as an integer, 8 to 32; 0: floats
    config.privacy.quantile = 0.5  # of adaptive: the share of messages not clipped
    config.privacy.quantile_rate = 0.2  # of the threshold's steps
    config.privacy.quantile_noise = 0.0  # on the count; 0: a twentieth of the cohort

    config.compute = ConfigDict()
    config.compute.devices = 0  # 0: all
    config.compute.model_devices = 1  # devices that hold one client's model together
    config.compute.dtype = "float32"  # or bfloat16: of local work, for accelerators
    config.compute.chunk = 0  # clients that a device works on at a time; 0: automatic
    config.compute.data = "auto"  # or resident; streamed: sent for each round
    return config.lock()
