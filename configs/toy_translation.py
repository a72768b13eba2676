"""The main job: translate the toy language with a small Transformer.

command    python run.py --config=configs/toy_translation.py
hardware   two CPU cores
time       TODO
score      TODO
"""

from ml_collections import ConfigDict, config_dict


def get_config(form: str = "full") -> ConfigDict:
    """The experiment, or its "tiny" form that ends in seconds."""
    config = ConfigDict()
    config.experiment = "translation"
    config.seed = 0

    config.data = ConfigDict()
    config.data.name = "toy"
    config.data.seed = 0
    config.data.sizes = ConfigDict(
        dict(train=40_000, validation=1_000, test=1_000, compositional=1_000, longer=500)
    )
    config.data.bucket_lengths = (12, 24)

    config.model = ConfigDict()
    config.model.width = 128
    config.model.num_heads = 4
    config.model.num_kv_heads = config_dict.placeholder(int)  # None: as many as query heads
    config.model.head_width = config_dict.placeholder(int)  # None: width / num_heads
    config.model.hidden = 512
    config.model.activation = "relu"
    config.model.norm = "pre"
    config.model.positions = "sinusoidal"
    config.model.max_length = 48
    config.model.encoder_layers = 2
    config.model.decoder_layers = 2
    config.model.tie = "output"
    config.model.use_bias = True
    config.model.dropout = 0.0
    config.model.attention_dropout = 0.0

    config.train = ConfigDict()
    config.train.steps = 1_500
    config.train.batch_tokens = 1_536
    config.train.label_smoothing = 0.1
    config.train.schedule = "cosine"
    config.train.learning_rate = 2e-3
    config.train.warmup_steps = 100
    config.train.clip_norm = 1.0
    config.train.beta1 = 0.9
    config.train.beta2 = 0.98
    config.train.epsilon = 1e-9
    config.train.log_every = 50
    config.train.evaluate_every = 500
    config.train.sample_every = 500
    config.train.checkpoint_every = 500
    return config
