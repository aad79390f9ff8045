"""Every legal key of a config, with its default.

Command: python -m launch.train --config=configs/default.py --workdir=/tmp/safl_digits
Expect: test accuracy 0.983 (seed 0), as docs/running.md shows it, in seconds.

A config file starts from `get_config()` here and changes what it needs; a key that
does not stand here is refused, in a file and on the command line alike.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the defaults, locked: keys may change their values and no more."""
    config = ConfigDict()
    # a method of docs/methods.md, as fedavg, fedadam, safl; FILE.py:NAME
    config.algorithm = "safl"
    config.rounds = 100  # in all
    config.eval_every = 10  # rounds between rows of metrics.csv
    # rounds between looks at each client, at rows; needs data.held_out; 0: none
    config.clients_every = 0
    config.personal_steps = 0  # of each client, from the last model, to be looked at
    config.checkpoint_every = 50  # rounds between saves; the last one is saved too
    config.checkpoint_keep = 2  # how many stay; 0: all, as launch.spectrum likes
    config.download = "cheapest"  # or model; or messages, that a client missed
    config.seed = 0  # of everything random

    config.data = ConfigDict()
    # digits, mnist, fashion_mnist, cifar10, sst2, shakespeare; synthetic/N of N made-up
    # examples, npz/FILE of arrays, FILE.py:NAME; or any set that TFDS has prepared
    config.data.name = "digits"
    # or 1/2, 2/2: the first, the second half of its classes, or of its speakers
    config.data.part = "all"
    config.data.clients = 20  # the population; 0, for natural: all owners
    # iid, dirichlet, mixtures (of classes, in equally many examples), label_shards,
    # classes, power_law, or natural: a client an owner
    config.data.partition = "iid"
    config.data.alpha = 0.5  # of dirichlet, mixtures: smaller is more uneven
    config.data.per_client = 2  # shards of label_shards, classes of classes
    config.data.exponent = 1.5  # of power_law
    # the seed by which examples are dealt; -1: seed, but 0 in private runs, of which
    # several then have the same clients and a common epsilon
    config.data.partition_seed = -1
    config.data.held_out = 0.0  # the share of its own that a client does not train on
    config.data.length = 64  # tokens of a text
    config.data.vocabulary = 8192  # tokens that sentences are made of
    # a file with a word a line, or characters: fixed; empty: made of the training texts
    config.data.vocabulary_file = ""
    config.data.classes = 0  # of the targets; 0: as many as the data show
    # each channel by numbers, as 0.13/0.31: mean/deviation; train: those of the set
    config.data.standardise = "none"
    config.data.augment = "none"  # crop, flip, crop_flip, in training; FILE.py:NAME
    config.data.public = False  # or True: nobody is owed anything for these data

    config.model = ConfigDict()
    # logistic, mlp, lenet, sigmoid_lenet, cnn, resnet, vit; transformer, language_model
    # for texts; hf/FOLDER, a pretrained model in a folder; FILE.py:NAME
    config.model.name = "mlp"
    # or paper: resnet, vit, transformer; tiny: resnet; billion: language_model
    config.model.size = "small"
    # of mlp's layers, of tokens, channels of cnn and resnet; 0: the usual
    config.model.width = 0
    # of cnn, vit, transformer, language_model, hf/ encoders, in training
    config.model.dropout = 0.0
    config.model.norm = "group"  # of resnet; or batch, which keeps statistics
    config.model.kernels = "lecun_normal"  # cnn's begin so; or glorot_uniform
    config.model.pool = "mean"  # of tokens, in hf/ encoders; or first: of [CLS]
    # cross_entropy; binary: several labels; of numbers: squared, absolute, huber
    config.model.loss = "cross_entropy"
    # what is measured, the first decides: accuracy, top5, f1, auc, perplexity; mae,
    # rmse, r2 of numbers; as f1,auc; empty: what the loss has
    config.model.metrics = ""
    # what training begins with: a run's folder, or FILE.npz, FILE.safetensors
    config.model.init_from = ""
    config.model.fresh = ""  # what of it begins anew all the same, as dense3,conv1/bias
    config.model.label_smoothing = 0.0  # the share of all classes alike
    config.model.weight_decay = 0.0  # w: w |params|^2 / 2 is added to the loss

    config.cohort = ConfigDict()
    config.cohort.sampling = "fixed"  # or poisson, replacement, everyone
    config.cohort.size = 10  # clients a round; for poisson, on average
    config.cohort.dropout = 0.0  # the share of them that does not answer
    # a csv file of client, first, last: rounds from 1 on in which it is there
    config.cohort.available = ""
    config.cohort.period = 0  # rounds after which that repeats; 0: all rounds
    # seconds of a client's round: lognormal(MEDIAN, SIGMA), or a csv of client, seconds
    config.cohort.times = ""
    config.cohort.jitter = 0.0  # sigma of the logarithm of a time, from round to round
    config.cohort.sending = 0.0  # seconds a MB that a client sends, beside
    config.cohort.deadline = 0.0  # seconds after which a round closes; 0: waits for all
    config.cohort.weighting = "equal"  # or examples: by how many a client has

    config.network = ConfigDict()
    # none: a server; ring, grid:4x5, regular:3, complete, or a file with the two nodes
    # of an edge on each line: rounds without a server, with cohort.sampling=everyone
    config.network.graph = "none"
    config.network.relay = "flood"  # of all messages to all nodes; or tree: of sums

    config.client = ConfigDict()
    config.client.rate = 0.1  # eta of the local steps
    # any optimizer of optax by its name there, with numbers of its own, as
    # sgd(momentum=0.9) or adamw; FILE.py:NAME, a function of the rate
    config.client.optimizer = "sgd"
    # what trains, the rest as model.init_from has it: all, head (the last layer), or a
    # pattern of names, as dense3|bias; lora(rank=8, alpha=16, on=query|value) adds
    # products of two factors to the arrays that match, +head or +PATTERN trains more
    config.client.trains = "all"
    config.client.weight_decay = 0.0  # w: a step takes rate w x off x, whatever else
    config.client.steps = 5  # K
    config.client.batch = 20  # examples of a step
    # fresh draws; subsets: no example twice in one; whole: all that a client has
    config.client.batches = "fresh"
    config.client.decay = 1.0  # of both rates, from round to round; for dp_fedavg
    config.client.proximal = 0.0  # mu of FedProx, for fedavg
    config.client.gain = 1.0  # of gradient tracking, times 1/(K eta); FedSKETCH: eta
    config.client.clip = 0.0  # tau: safl's updates are cut to this norm; 0: not

    config.server = ConfigDict()
    # sgd, momentum, [paper_]amsgrad, scalar_adam, yogi, adagrad
    config.server.optimizer = "adam"
    config.server.rate = 0.01  # gamma; for fedavg 1.0 averages the models
    config.server.schedule = "constant"  # or cosine: from rate to floor, all rounds
    config.server.floor = 0.0  # of cosine
    config.server.b1 = 0.9  # of momentum and first moments
    config.server.b2 = 0.99  # of second moments
    config.server.eps = 1e-8  # beside the root
    config.server.warmup = 0.2  # the share of plain Adam in all rounds, for onebit_adam

    config.sketch = ConfigDict()
    # count_sketch, sparse_embedding, srht, gaussian, ams, uniform_sampling, identity
    config.sketch.operator = "count_sketch"
    config.sketch.compression = 20.0  # d / b
    config.sketch.numbers = 0  # b itself, all rows together; 0: d / compression
    config.sketch.rows = 1  # of count_sketch; they share the numbers
    config.sketch.layout = "whole"  # or leaves: a sketch for each parameter array
    config.sketch.stored = False  # R as one matrix in memory: for attacks
    config.sketch.forget = "zero"  # or subtract, as printed: for fetchsgd
    config.sketch.masking = False  # momentum forgets too, for fetchsgd
    config.sketch.window = 0  # rounds that fetchsgd keeps errors for; 0: all
    config.sketch.query = "privix"  # or heaprix: heavy values apart; for fedsketch*
    # heavy values: m of heaprix, k of fetchsgd, sketched_sgd; 0: a row's columns
    config.sketch.heavy = 0
    # the others, where too few are heavy: random, as printed; top: of all estimates;
    # empty: as the method's authors run it
    config.sketch.heavy_fill = ""
    # exact; fresh: unbiased; estimated: in one exchange
    config.sketch.heavy_values = "exact"

    config.compressor = ConfigDict()
    config.compressor.name = "top_k"  # random_k, scaled_sign, qsgd, nearest, cocktail
    config.compressor.compression = 20.0  # 32 d / bits of a message
    config.compressor.levels = 7  # of qsgd, fedcomgate and the cocktail
    config.compressor.probability = 0.1  # of a whole gradient, for marina

    config.privacy = ConfigDict()
    # of noise, cohorts, batches: the operating system; or seed: a simulation
    config.privacy.randomness = "system"
    config.privacy.bound = "none"  # of a client's message: clip, normalise, adaptive
    config.privacy.threshold = 1.0  # C; for private_sketching of an example's gradient
    config.privacy.noise_multiplier = 0.0  # z: the noise on a sum, over C
    # chooses z; where noise_multiplier is given, ends the run before it is exceeded
    config.privacy.target_epsilon = 0.0
    config.privacy.planned_rounds = 0  # for which noise is made; 0: rounds
    config.privacy.delta = 1e-5  # below one over the number of clients
    config.privacy.unit = "client"  # or example, for private_sketching
    config.privacy.relation = "add_remove"  # or replace_one
    config.privacy.accountant = "auto"  # or pld, rdp
    # or distributed: by every client; or skellam, discrete_gaussian: so, on integers,
    # whose sums a secure aggregation can make
    config.privacy.noise = "central"
    config.privacy.smallest_cohort = 0  # with clients' own noise; 0: the cohort's size
    # of a number that is sent as an integer, 8 to 32; 0: floats
    config.privacy.bits = 0
    # the step of integers, over the threshold; 0: the least for which sums fit the bits
    config.privacy.granularity = 0.0
    config.privacy.form = "message"  # or update: bounded before its sketch, for safl
    config.privacy.quantile = 0.5  # of adaptive: the share of messages not clipped
    config.privacy.quantile_rate = 0.2  # of the threshold's steps
    config.privacy.quantile_noise = 0.0  # on the count; 0: a twentieth of the cohort
    config.privacy.watch = False  # release noised training loss and accuracy as well
    config.privacy.watch_loss = 5.0  # a client's loss above this counts as this
    config.privacy.watch_noise = 0.0  # on their sums; 0: a twentieth of the cohort

    config.compute = ConfigDict()
    config.compute.devices = 0  # 0: all
    config.compute.model_devices = 1  # how many of them hold a client's model together
    config.compute.dtype = "float32"  # or bfloat16: of local work, for accelerators
    config.compute.chunk = 0  # clients a device works on at a time; 0: by platform
    config.compute.data = "auto"  # or resident, streamed: sent round by round
    config.compute.clients = "auto"  # their states: on all devices, or on the host
    config.compute.updates = "keep"  # or recompute, where a round takes several passes
    return config.lock()
