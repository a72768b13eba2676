"""Configs with the default value of every field; each recipe changes a few of them."""

from pathlib import Path

from ml_collections import ConfigDict

from experiments.config import Config
from experiments.config.build import as_tree
from experiments.config.parts import RecurrentModel
from experiments.errors import UsageError

SAMPLES = Path(__file__).parent / "samples"  # data of the tiny forms


def new(task: str, data: str, steps: int) -> ConfigDict:
    """Return a config of a task on a dataset, with `steps` steps of training."""
    config = ConfigDict(Config.read({"task": task, "data": {"name": data}}).to_dict())
    set_steps(config.train, steps)
    return config


def set_steps(train: ConfigDict, steps: int) -> None:
    """Set the steps of a training that is validated five times, and what depends on them."""
    train.steps = steps
    train.warmup_steps = min(100, steps // 4)
    train.evaluate_every = max(1, steps // 5)
    train.sample_every = train.checkpoint_every = max(1, steps // 2)


def make_tiny(config: ConfigDict) -> ConfigDict:
    """Shorten a recipe to 20 steps of a small model, with everything that a long training does.

    Compiling is what takes time, so a tiny form has one layer and batches of one shape.
    """
    train, batch, model = config.train, config.batch, config.model
    train.update({"steps": 20, "warmup_steps": 5, "average": 2})
    train.log_every = train.evaluate_every = 4
    train.sample_every = train.checkpoint_every = 10
    config.mesh.data = 1
    if "bucket_lengths" in batch:
        batch.bucket_lengths = (model.max_length,)
    if "sizes" in config.data:
        few = {split: 1_000 if split == "train" else 20 for split in config.data.sizes}
        config.data.sizes.update(few)
    small = {"width": 32, "embedding_width": 32, "hidden": 48, "dropout": 0.1}
    small |= {"encoder_layers": 1, "decoder_layers": 1, "remat": False}
    model.update({name: size for name, size in small.items() if name in model})
    return config


def recurrent() -> ConfigDict:
    """Return the sizes and choices of a recurrent encoder-decoder."""
    return ConfigDict(as_tree(RecurrentModel()))


def is_tiny(form: str) -> bool:
    """Return whether the form, the part after the colon in `--config=NAME:tiny`, is the tiny one.

    Raises:
        UsageError: an unknown form.
    """
    if form not in ("", "tiny"):
        raise UsageError(f"a configuration has the form 'tiny' or none, got {form!r}")
    return form == "tiny"
