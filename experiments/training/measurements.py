"""Measurements of training steps: means for a row of metrics, speed, and non-finite values."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.devices import peak_memory
from experiments.training.flops import peak_flops

CHECKED = "loss", "gradient_norm"


class Requests(NamedTuple):
    """Whether a checkpoint is requested, and whether a stop."""

    save: bool = False
    stop: bool = False


class NonFiniteError(FloatingPointError):
    """A loss or a gradient that is not finite.

    Attributes:
        step: in which it occurred, counted from 1.
    """

    def __init__(self, message: str, step: int) -> None:
        """Set message and step."""
        super().__init__(message)
        self.step = step


class StepMeasurements:
    """The measurements of the steps after the last row of metrics.

    Attributes:
        pending: of each step, as numbers of Python: equal after they were written as JSON.
        skipped: number of steps in a row that were skipped.
        requests: of any process in the last step that was collected, as in `make_steps`.
    """

    def __init__(self, pending: Sequence[Mapping[str, float]], skipped: int, most: int) -> None:
        """Continue after those in a checkpoint.

        Args:
            pending: as the attribute.
            skipped: as the attribute.
            most: steps in a row that may be skipped, 0 if a step with a non-finite loss or gradient
                is not skipped by the training step.
        """
        self.pending, self.skipped, self._most = [*pending], skipped, most
        self.requests = Requests()
        self._running: tuple[int, Mapping[str, Any]] | None = None

    def add(self, step: int, measured: Mapping[str, Any]) -> None:
        """Take the measurements of a step that may be running, and wait for the step before it.

        The loop is one step ahead of the device, not fifty.
        """
        self.collect()
        self._running = step, measured

    def collect(self) -> None:
        """Wait for the running step.

        Raises:
            NonFiniteError: a loss or a gradient norm that is not finite, which is the last of
                `pending`, and was not skipped or came after too many that were.
        """
        if self._running is None:
            return
        step, measured = self._running
        found = dict(jax.device_get(measured))
        self.requests = Requests(*found.pop("requests", ()))
        values = {name: float(value) for name, value in found.items()}
        self.pending.append(values)
        self._running = None
        name = next((name for name in CHECKED if not math.isfinite(values[name])), None)
        self.skipped = 0 if name is None else self.skipped + 1
        if name is not None and self.skipped >= self._most:
            raise NonFiniteError(self._described(name, step), step)

    def row(self) -> dict[str, float]:
        """Return means over tokens, the gradient norm over steps, and the last learning rate.

        Skipped steps are counted and belong to no mean, unless all were skipped.
        """
        used = [each for each in self.pending if not each.get("skipped")] or self.pending
        tokens = np.maximum([each["tokens"] for each in used], 1e-9)  # a batch may have none
        row = {}
        for name in used[0]:
            if name not in ("tokens", "skipped"):
                weights = None if name == "gradient_norm" else tokens
                row[name] = float(np.average([each[name] for each in used], weights=weights))
        # Steps before or after a change of `train.skip_nonfinite` may lack it.
        if skipped := [each["skipped"] for each in self.pending if "skipped" in each]:
            row["skipped"] = sum(skipped)
        return row | {"learning_rate": self.pending[-1]["learning_rate"]}

    def _described(self, name: str, step: int) -> str:
        norms = [each["gradient_norm"] for each in self.pending[-2:]]
        before = "".join(f", {norm:.3g} in the step before" for norm in norms[:-1])
        again = f" after {self.skipped - 1} skipped steps" if self._most else ""
        return (
            f"the {name.replace('_', ' ')} became {self.pending[-1][name]} in step {step:,}{again} "
            f"(norm of the gradient {norms[-1]:.3g}{before})"
        )


class Speed:
    """Steps, tokens, FLOPs and seconds of training, without those of measurements."""

    def __init__(self) -> None:
        """Start the clock."""
        self._steps, self._work, self._seconds = 0, 0.0, 0.0
        self.resume()

    def add(self, work: float) -> None:
        """Count a step of so many FLOPs."""
        self._steps, self._work = self._steps + 1, self._work + work

    def pause(self) -> None:
        """Stop the clock."""
        self._seconds += time.perf_counter() - self._since

    def resume(self) -> None:
        """Start the clock again."""
        self._since = time.perf_counter()

    def row(self, pending: Sequence[Mapping[str, float]], devices: Sequence[jax.Device]) -> dict:
        """Return speeds of the steps that were added, and the peak memory of the process so far.

        Args:
            pending: measurements of these steps, and perhaps of some before the run was resumed.
            devices: that computed them.
        """
        tokens = sum(each["tokens"] for each in pending[-self._steps :])
        speed = {
            "tokens_per_second": tokens / self._seconds,
            "steps_per_second": self._steps / self._seconds,
            "flops_per_second": self._work / self._seconds,
            "peak_memory_bytes": peak_memory(),
        }
        if peak := peak_flops(devices[0]):  # in bfloat16, whatever the model computes in
            used = speed["flops_per_second"] / (peak * len(devices))
            speed["model_flop_utilization"] = used
        return speed
