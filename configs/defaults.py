"""What most configurations have in common; each file then says what it is about."""

from collections.abc import Mapping

from ml_collections import ConfigDict, config_dict


def transformer() -> ConfigDict:
    """Sizes and choices of a Transformer, as `attention.modules.TransformerConfig` names them."""
    model = ConfigDict()
    model.width = 96
    model.num_heads = 4
    model.num_kv_heads = config_dict.placeholder(int)  # as many as query heads
    model.head_width = config_dict.placeholder(int)  # width / num_heads
    model.hidden = 256
    model.activation = "relu"
    model.gated = False
    model.norm = "layer"
    model.norm_placement = "pre"
    model.norm_epsilon = 1e-6
    model.qk_norm = config_dict.placeholder(str)  # a norm of queries and keys
    model.positions = "rotary"
    model.rotary = rotary = ConfigDict()
    rotary.base = 10_000.0
    rotary.scaling = "none"
    rotary.factor = 1.0
    rotary.original_length = 48
    model.max_length = 48
    model.encoder_layers = 2
    model.decoder_layers = 2
    model.tie = "output"
    model.use_bias = True
    model.window = config_dict.placeholder(int)  # tokens on either side that attention sees
    model.softcap = config_dict.placeholder(float)  # bound of attention scores
    model.logit_scale = 1.0
    model.logit_softcap = config_dict.placeholder(float)  # bound of the scores of the vocabulary
    model.kernel_init = "lecun_normal"
    model.dropout = 0.0
    model.attention_dropout = 0.0
    model.implementation = config_dict.placeholder(str)  # of attention; chosen if not named
    model.remat = True
    model.per_layer = ()  # overrides of these fields, which the layers cycle through
    return model


def encoder() -> ConfigDict:
    """A Transformer that only reads."""
    model = transformer()
    del model.decoder_layers
    return model


def decoder() -> ConfigDict:
    """A Transformer that only says what comes next."""
    model = transformer()
    del model.encoder_layers
    return model


def recurrent() -> ConfigDict:
    """Sizes and choices of a recurrent encoder-decoder, as `RecurrentConfig` names them."""
    model = ConfigDict()
    model.embedding_width = 96
    model.hidden = 128
    model.cell = "gru"
    model.attention = "additive"
    model.max_length = 48
    model.dropout = 0.0
    return model


def toy_sizes(*, few: bool = False) -> ConfigDict:
    """Sentences of each split of the toy language; a few are enough for a tiny form."""
    sizes = ConfigDict()
    sizes.train = 1_000 if few else 40_000
    sizes.validation = 20 if few else 1_000
    sizes.test = 20 if few else 1_000
    sizes.compositional = 20 if few else 1_000
    sizes.longer = 20 if few else 500
    return sizes


def training(steps: int) -> ConfigDict:
    """So many steps of Adam, measured twice on the way."""
    train = ConfigDict()
    train.steps = steps
    train.duration = ""  # or "10 epochs", "5e4 examples", "2e6 tokens", which decides the steps
    train.label_smoothing = 0.0
    train.schedule = "cosine"
    train.learning_rate = 3e-3
    train.warmup_steps = min(100, steps // 4)
    train.clip_norm = 1.0
    train.beta1 = 0.9
    train.beta2 = 0.98
    train.epsilon = 1e-9
    train.weight_decay = 0.1
    train.log_every = 50
    train.evaluate_every = steps // 2
    train.sample_every = steps // 2
    train.checkpoint_every = steps // 2
    train.average = 1  # of the last checkpoints, whose mean is what is measured and used
    train.ema = 0.0  # decay of a moving average of the parameters, which is used in their place
    train.patience = 0  # evaluations without gain that end the training; then the best is used
    train.plateau_patience = 2  # those after which schedule="plateau" lowers the learning rate
    train.plateau_factor = 0.5
    train.z_loss = 0.0
    train.dtype = "float32"  # or "bfloat16": what the model computes in while it trains
    train.microbatches = 1  # parts of a batch: one by one, or on as many devices
    return train


def make_short(train: ConfigDict) -> None:
    """Twenty steps, with everything that happens on the way."""
    train.steps = 20
    train.warmup_steps = 5
    train.log_every = 5
    train.evaluate_every = 10
    train.sample_every = 10
    train.checkpoint_every = 10
    train.average = 2
    train.microbatches = 1  # whole, as it compiles soonest


def greedy() -> ConfigDict:
    """The likeliest word each time; beam search if `num_beams` is above 1."""
    decoding = ConfigDict()
    decoding.num_beams = 1
    decoding.hypotheses = 100  # at once, of all sentences: soonest on two cores
    decoding.length_penalty = 0.0  # alpha of the penalty of GNMT; 0 for none
    decoding.details = False  # translate: a line of JSON with scores and alignments of the n best
    decoding.n_best = 1
    return decoding


def sampling() -> ConfigDict:
    """Words drawn at random, the unlikeliest left out."""
    decoding = ConfigDict()
    decoding.strategy = "sample"  # or "greedy", for which the next five mean nothing
    decoding.temperature = 0.8  # these four narrow what may be drawn, one after the other
    decoding.top_k = 0  # of all
    decoding.top_p = 0.95
    decoding.min_p = 0.0
    decoding.seed = 0
    decoding.max_tokens = 300
    return decoding


def comparison(runs: Mapping[str, ConfigDict]) -> ConfigDict:
    """Runs to be trained and set side by side, by their names."""
    config = ConfigDict()
    config.experiment = "comparison"
    config.runs = ConfigDict(dict(runs))
    return config
