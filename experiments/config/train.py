"""Training: its length, optimizer, measurements and loss, and the mesh of devices."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self, TypeVar

from experiments.config.build import Part, option
from experiments.data.pipeline import Epoch
from experiments.errors import one_of
from experiments.registry import EVALUATORS, LOSSES, METRICS

SCHEDULES = ("constant", "linear", "cosine", "inverse_sqrt")
# Values of the validation split that training can follow without evaluators.
MONITORED = ("loss", "nll", "accuracy")
MODES = ("min", "max")
MODE_OF = dict.fromkeys(("loss", "nll", "perplexity"), "min") | dict.fromkeys(
    ("accuracy", "exact_match", "bleu", "tok_bleu", "chrf"), "max"
)
DTYPES = ("float32", "bfloat16")
UNITS = ("steps", "epochs", "examples", "tokens")
AnyTrainPart = TypeVar("AnyTrainPart", bound="TrainPart")


@dataclass(frozen=True, kw_only=True)
class MeshPart(Part):
    """Number of devices along each axis of the mesh; `experiments.sharding` uses it."""

    data: int = option(0, "parts of a batch, each on other devices; 0: all devices left", least=0)
    fsdp: int = option(1, "shards of parameters and optimizer, and of a batch too", least=1)
    tensor: int = option(1, "shards of heads, hidden layers and vocabulary", least=1)
    sequence: int = option(1, "shards of the positions of a row", least=1)


@dataclass(frozen=True, kw_only=True)
class TrainPart(Part):
    """Adam with a learning rate schedule, and the intervals of measurements and checkpoints."""

    steps: int = option(1_000, "optimizer steps", least=1)
    duration: str = option("", "in place of steps: 10 epochs, 5e4 examples or 2e6 tokens")
    start_from: str = option("", "workdir or folder of released weights to take parameters from")
    start_except: tuple[str, ...] = option((), "parts that keep their initial values, as 'head'")
    schedule: str = option("cosine", "of the learning rate after the warm-up", among=SCHEDULES)
    learning_rate: float = option(3e-3, "highest learning rate", above=0)
    warmup_steps: int = option(100, "steps in which the learning rate rises from 0", least=0)
    clip_norm: float = option(1.0, "largest norm of the gradient", above=0)
    beta1: float = option(0.9, "of Adam", least=0, below=1)
    beta2: float = option(0.98, "of Adam", least=0, below=1)
    epsilon: float = option(1e-9, "of Adam", above=0)
    weight_decay: float = option(0.1, "factor of decoupled weight decay", least=0, below=1)
    decay_all: bool = option(False, "whether biases, norms and embeddings decay too")
    log_every: int = option(50, "steps between two rows of training metrics", least=1)
    evaluate_every: int = option(100, "steps between two measurements of validation", least=1)
    sample_every: int = option(500, "steps between two samples", least=1)
    checkpoint_every: int = option(500, "steps between checkpoints, without patience", least=1)
    checkpoint_minutes: float = option(10.0, "minutes to a checkpoint between; 0: never", least=0)
    skip_nonfinite: int = option(0, "skipped non-finite steps in a row that end a run", least=0)
    average: int = option(1, "checkpoints whose mean is measured and used", least=1)
    ema: float = option(
        0.0, "decay of a moving average of parameters, used instead", least=0, below=1
    )
    evaluators: tuple[str, ...] = option((), "metrics and evaluators of each validation")
    monitor: str = option("loss", "value of the validation split that patience follows")
    monitor_mode: str = option("", "whether its min or its max is best; '': known by its name")
    patience: int = option(0, "evaluations without gain that end a run; 0: never", least=0)
    dtype: str = option("float32", "of the computation: float32 or bfloat16", among=DTYPES)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        for name in self.evaluators:
            one_of("evaluators", name, (*METRICS, *EVALUATORS))
        if not self.evaluators:
            one_of("monitor", self.monitor, MONITORED)
        if self.monitor_mode or self.monitor not in MODE_OF:
            one_of(f"monitor_mode, for monitor={self.monitor!r},", self.monitor_mode, MODES)
        if self.duration:
            parse_duration(self.duration)
        elif self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps must be in [0, steps={self.steps}), got {self.warmup_steps}: choose "
                "fewer by --config.train.warmup_steps"
            )
        if self.ema and self.average > 1:
            raise ValueError(
                f"ema={self.ema} and average={self.average} are two averages of the same "
                "parameters: choose one, with average=1 or ema=0.0"
            )

    @property
    def is_lower_better(self) -> bool:
        """Whether the lowest of the monitored values is the best."""
        return (self.monitor_mode or MODE_OF[self.monitor]) == "min"

    @property
    def checkpoint_interval(self) -> int:
        """Steps between two checkpoints; with patience each evaluation has one, and may be used."""
        return self.evaluate_every if self.patience else self.checkpoint_every

    def with_steps(self, steps: int) -> Self:
        """Return the training with a number of steps in place of a duration, and a fitting warm-up.

        Raises:
            ValueError: `steps` below 1.
        """
        warmup = fitting_warmup(self.warmup_steps, steps)
        return replace(self, steps=steps, duration="", warmup_steps=warmup)


def fitting_warmup(warmup_steps: int, steps: int) -> int:
    """Return the steps of the warm-up; a quarter of all, if it does not end before the training."""
    return warmup_steps if warmup_steps < steps else steps // 4


@dataclass(frozen=True, kw_only=True)
class LabelTrainPart(TrainPart):
    """Training by a loss of logits and labels."""

    loss: str = option("cross_entropy", "function of logits and labels", among=LOSSES)
    label_smoothing: float = option(0.0, "probability for the whole vocabulary", least=0, below=1)
    z_loss: float = option(0.0, "coefficient of the squared logsumexp of the logits", least=0)


def parse_duration(text: str) -> tuple[Fraction, str]:
    """Return the number and the unit of a duration, as in "10 epochs".

    Raises:
        ValueError: not a number above 0 and a unit.
    """
    amount, _, unit = " ".join(text.split()).partition(" ")
    try:
        is_positive = 0 < float(amount) < math.inf
    except ValueError:
        is_positive = False
    if not is_positive:
        raise ValueError(f"duration must be a number and a unit, as in '10 epochs', got {text!r}")
    one_of("duration: the unit", unit, UNITS)
    return Fraction(amount), unit


def with_steps(train: AnyTrainPart, epoch: Callable[[], Epoch]) -> AnyTrainPart:
    """Return a training with the steps of its `duration`, rounded up, in its place.

    Args:
        train: of a config; returned as it is without a duration.
        epoch: counts the data; called only for a duration.
    """
    if not train.duration:
        return train
    (number, unit), data = parse_duration(train.duration), epoch()
    in_an_epoch = {"epochs": 1, **data._asdict()}[unit]
    steps = math.ceil(number * data.steps / in_an_epoch)  # exact, as these are fractions
    print(f"{train.duration} are {steps:,} steps")
    return train.with_steps(steps)
