"""Training: its length, optimizer, measurements and loss."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from experiments.config.build import option
from experiments.data.pipeline import Epoch
from experiments.errors import as_usage_errors, check_at_least, check_positive, check_share, one_of
from experiments.registry import EVALUATORS, LOSSES, METRICS

SCHEDULES = ("constant", "linear", "cosine", "inverse_sqrt")
DTYPES = ("float32", "bfloat16")
# Values of the validation split that training can follow without evaluators.
MONITORED = ("loss", "nll", "accuracy")
MODES = ("min", "max")
MODE_OF = dict.fromkeys(("loss", "nll", "perplexity"), "min") | dict.fromkeys(
    ("accuracy", "exact_match", "bleu", "tok_bleu", "chrf"), "max"
)
UNITS = ("steps", "epochs", "examples", "tokens")
AnyTrainPart = TypeVar("AnyTrainPart", bound="TrainPart")


@dataclass(frozen=True, kw_only=True)
class TrainPart:
    """Adam with a learning rate schedule, and the intervals of measurements and checkpoints."""

    steps: int = option(1_000, "optimizer steps")
    duration: str = option("", "in place of steps: 10 epochs, 5e4 examples or 2e6 tokens")
    start_from: str = option("", "workdir or folder of released weights to take parameters from")
    start_except: tuple[str, ...] = option((), "parts that keep their initial values, as 'head'")
    schedule: str = option("cosine", f"of the learning rate: {', '.join(SCHEDULES)}")
    learning_rate: float = option(3e-3, "highest learning rate")
    warmup_steps: int = option(100, "steps in which the learning rate rises from 0")
    clip_norm: float = option(1.0, "largest norm of the gradient")
    beta1: float = option(0.9, "of Adam")
    beta2: float = option(0.98, "of Adam")
    epsilon: float = option(1e-9, "of Adam")
    weight_decay: float = option(0.1, "factor of decoupled weight decay")
    decay_all: bool = option(False, "whether biases, norms and embeddings decay too")
    log_every: int = option(50, "steps between two rows of training metrics")
    evaluate_every: int = option(100, "steps between two measurements of the validation split")
    sample_every: int = option(500, "steps between two samples")
    checkpoint_every: int = option(500, "steps between two checkpoints, without patience")
    checkpoint_minutes: float = option(
        10.0, "minutes after which a checkpoint is saved between those; 0: never"
    )
    skip_nonfinite: int = option(
        0,
        "steps in a row with a loss or gradient that is not finite that end the training, each "
        "skipped; 0: the first one ends it",
    )
    average: int = option(1, "checkpoints whose mean is measured and used")
    ema: float = option(0.0, "decay of a moving average of the parameters, used in their place")
    evaluators: tuple[str, ...] = option(
        (), "metrics and evaluators that are computed whenever the validation split is measured"
    )
    monitor: str = option(
        "loss",
        "value of the validation split that patience follows",
    )
    monitor_mode: str = option(
        "", f"whether its min or its max is best; can be left out for {', '.join(MODE_OF)}"
    )
    patience: int = option(
        0, "evaluations without gain that end the training at the best; 0: never"
    )
    dtype: str = option("float32", "of the computation in training: float32 or bfloat16")

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("steps", "log_every", "evaluate_every", "sample_every", "checkpoint_every"):
            check_at_least(name, getattr(self, name), 1)
        for name, least in (
            ("average", 1),
            ("patience", 0),
            ("skip_nonfinite", 0),
            ("checkpoint_minutes", 0),
        ):
            check_at_least(name, getattr(self, name), least)
        for name in ("learning_rate", "clip_norm", "epsilon"):
            check_positive(name, getattr(self, name))
        for name in ("beta1", "beta2", "weight_decay", "ema"):
            check_share(name, getattr(self, name))
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("dtype", self.dtype, DTYPES)
        for name in self.evaluators:
            one_of("evaluators", name, (*METRICS, *EVALUATORS))
        if not self.evaluators:
            one_of("monitor", self.monitor, MONITORED)
        if self.monitor_mode or self.monitor not in MODE_OF:
            one_of(f"monitor_mode, for monitor={self.monitor!r},", self.monitor_mode, MODES)
        if self.duration:
            parse_duration(self.duration)
        else:
            self.check_warmup(self.steps)
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

    def check_warmup(self, steps: int) -> None:
        """Check that the warm-up ends before the training.

        Raises:
            ValueError: it does not.
        """
        if not 0 <= self.warmup_steps < steps:
            raise ValueError(
                f"warmup_steps must be in [0, steps={steps}), got {self.warmup_steps}: choose "
                "fewer by --config.train.warmup_steps"
            )


@dataclass(frozen=True, kw_only=True)
class LabelTrainPart(TrainPart):
    """Training by a loss of logits and labels."""

    loss: str = option("cross_entropy", "name of a registered function of logits and labels")
    label_smoothing: float = option(0.0, "probability that is moved to the whole vocabulary")
    z_loss: float = option(0.0, "coefficient of the squared logsumexp of the logits")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        one_of("loss", self.loss, tuple(LOSSES))
        check_share("label_smoothing", self.label_smoothing)
        check_at_least("z_loss", self.z_loss, 0)


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
        raise ValueError(f"duration needs a number, as in '10 epochs', got {text!r}")
    one_of("duration: the unit", unit, UNITS)
    return Fraction(amount), unit


def with_steps(train: AnyTrainPart, epoch: Callable[[], Epoch]) -> AnyTrainPart:
    """Return a training with the steps of its `duration`, rounded up, in its place.

    Args:
        train: of a config; returned as it is without a duration.
        epoch: counts the data; called only for a duration.

    Raises:
        UsageError: the warm-up is longer.
    """
    if not train.duration:
        return train
    (number, unit), data = parse_duration(train.duration), epoch()
    in_an_epoch = {"epochs": 1, **data._asdict()}[unit]
    steps = math.ceil(number * data.steps / in_an_epoch)  # exact, as these are fractions
    with as_usage_errors(f"train.duration={train.duration!r}: train."):
        resolved = replace(train, steps=steps, duration="")
    print(f"{train.duration} are {steps:,} steps")
    return resolved
