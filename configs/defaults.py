"""Configs with the default value of every field; each recipe changes a few of them."""

from ml_collections import ConfigDict

from experiments.config import Config
from experiments.config.flags import as_config_dict
from experiments.config.model import EncoderDecoderModel, RecurrentModel


def new(task: str, data: str, steps: int) -> ConfigDict:
    """Return a config of a task on a dataset, with `steps` steps of training."""
    config = as_config_dict(Config.read({"task": task, "data": {"name": data}}))
    set_steps(config.train, steps)
    return config


def set_steps(train: ConfigDict, steps: int) -> None:
    """Set the steps of a training that is measured twice, and what depends on them."""
    train.steps = steps
    train.warmup_steps = min(100, steps // 4)
    train.evaluate_every = train.sample_every = train.checkpoint_every = steps // 2


def make_short(config: ConfigDict) -> None:
    """Train 20 steps, with everything that happens in a longer training."""
    train = config.train
    train.steps = 20
    train.warmup_steps = 5
    train.log_every = 5
    train.evaluate_every = train.sample_every = train.checkpoint_every = 10
    train.average = 2
    config.batch.microbatches = 1  # one program compiles sooner than two


def make_few(sizes: ConfigDict) -> None:
    """Set the smallest sizes of the splits of generated data."""
    sizes.update({split: 1_000 if split == "train" else 20 for split in sizes})


def transformer() -> ConfigDict:
    """Return the sizes and choices of a Transformer that translates."""
    return as_config_dict(EncoderDecoderModel())


def recurrent() -> ConfigDict:
    """Return the sizes and choices of a recurrent encoder-decoder."""
    return as_config_dict(RecurrentModel())
