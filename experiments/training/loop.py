"""The training loop."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import jax
import numpy as np
from jax import Array
from tqdm import tqdm

from experiments.config.train import MONITORED, TrainPart
from experiments.environment import peak_memory
from experiments.training.checkpoint import Checkpoints
from experiments.training.flops import peak_flops
from experiments.training.metrics import Metrics
from experiments.training.plateau import best_step, monitored_loss, out_of_patience, stalls
from experiments.training.step import TrainState

BEGINNING: Mapping[str, Any] = MappingProxyType({"seconds": 0.0, "losses": ()})


class Batches(Protocol):
    """Training batches: a pure function of the step, so a run resumes at any of them."""

    def __getitem__(self, step: int, /) -> Any: ...  # noqa: ANN401 - what `train_step` takes


def fit(
    state: TrainState,
    batches: Batches,
    train_step: Callable[[TrainState, Any], tuple[TrainState, dict[str, Array]]],
    *,
    config: TrainPart,
    metrics: Metrics,
    checkpoints: Checkpoints,
    evaluate: Callable[[TrainState], dict[str, float]],
    sample: Callable[[TrainState], str],
    flops: Callable[[Any], float],
    progress: Mapping[str, Any] = BEGINNING,
) -> tuple[TrainState, Mapping[str, Any]]:
    """Train from the step of `state` to step `config.steps`, or until `config.patience` ends.

    Args:
        state: the training state; its memory is reused.
        batches: the batch of each step, counted from 0.
        train_step: of `make_steps`.
        config: steps, the intervals between measurements, samples and checkpoints, the monitored
            value, patience, and the fields of the "plateau" schedule.
        metrics: takes the measurements.
        checkpoints: takes the states.
        evaluate: measures the validation split.
        sample: shows what the model can do.
        flops: of the training step on a batch.
        progress: of the newest checkpoint, if the run is resumed.

    Returns:
        The last state, and the progress in its checkpoint: seconds of training, and the monitored
        losses with their steps.

    Raises:
        FloatingPointError: a loss that is not finite; earlier checkpoints stay.
        UsageError: before the first step, a monitored value that no evaluator measures.
    """
    started, first = time.perf_counter() - progress["seconds"], int(state.step)
    losses = [(step, loss) for step, loss in progress["losses"]]
    save_every = config.checkpoint_interval
    if not losses and config.monitor not in MONITORED:  # an unknown name ends the run at step 0
        monitored_loss(evaluate(state), config)
    pending, work, pending_since = [], 0.0, time.perf_counter()
    with tqdm(total=config.steps, initial=first, unit="step", mininterval=0.5) as bar:
        for step in range(first + 1, config.steps + 1):
            if out_of_patience(losses, config.patience):
                bar.write(f"the best validation {config.monitor} is of step {best_step(losses):,}")
                break
            batch = batches[step - 1]
            state, measured = train_step(state, batch)
            pending.append(measured)
            work += flops(batch)
            jax.block_until_ready(pending[-2:-1])  # stay one step ahead of the device, not fifty
            bar.update()
            last = step == config.steps

            # A state is saved after its losses were checked: no checkpoint has a non-finite loss.
            if step % config.log_every == 0 or step % save_every == 0 or last:
                measured = jax.device_get(pending)  # waits for them
                speed = _speed(state, measured, work, time.perf_counter() - pending_since)
                row = _means(step, measured)
                metrics.write(step, "train", row)
                metrics.write_timing(step, speed)
                rate = speed["tokens_per_second"]
                bar.set_postfix_str(f"loss {row['loss']:.3f}, {rate:,.0f} tokens/s")
                pending, work = [], 0.0

            if step % config.evaluate_every == 0 or last:
                evaluated = evaluate(state)
                losses.append((step, monitored_loss(evaluated, config)))
                _check_finite("validation loss", evaluated["loss"], step, 1)
                _check_finite(f"validation {config.monitor}", losses[-1][1], step, 1)
                metrics.write(step, "validation", evaluated)
                if config.schedule == "plateau" and stalls(losses, config.plateau_patience):
                    state = state._replace(lr_scale=state.lr_scale * config.plateau_factor)

            if step % config.sample_every == 0 or last:
                bar.write(sample(state))

            if step % save_every == 0 or last:
                seconds = time.perf_counter() - started
                progress = {"seconds": seconds, "losses": losses}
                checkpoints.save(state, progress)

            if not pending:  # speeds are those of the steps alone
                pending_since = time.perf_counter()
    return state, progress


def _means(step: int, measured: list[dict[str, Any]]) -> dict[str, float]:
    """Return means over tokens, the gradient norm over steps, and the last learning rate."""
    tokens = np.maximum([each["tokens"] for each in measured], 1e-9)  # a batch may have none
    row = {}
    for name in measured[0]:
        weights = None if name == "gradient_norm" else tokens
        row[name] = float(np.average([each[name] for each in measured], weights=weights))
    del row["tokens"]
    for name in ("loss", "gradient_norm"):
        _check_finite(name, row[name], step, len(measured))
    return row | {"learning_rate": float(measured[-1]["learning_rate"])}


def _speed(
    state: TrainState, measured: list[dict[str, Any]], work: float, seconds: float
) -> dict[str, float]:
    """Return speeds of some steps, and the peak memory of the process so far.

    Args:
        state: on the devices that compute.
        measured: of each step.
        work: FLOPs of all these steps.
        seconds: that they took.
    """
    speed = {
        "tokens_per_second": float(sum(each["tokens"] for each in measured)) / seconds,
        "steps_per_second": len(measured) / seconds,
        "flops_per_second": work / seconds,
        "peak_memory_bytes": peak_memory(),
    }
    devices = [*state.step.devices()]
    if peak := peak_flops(devices[0]):  # in bfloat16, whatever the model computes in
        speed["model_flop_utilization"] = speed["flops_per_second"] / (peak * len(devices))
    return speed


def _check_finite(name: str, value: float, step: int, number: int) -> None:
    if not np.isfinite(value):
        raise FloatingPointError(
            f"the {name} became {value} within the last {number} steps before step {step}: lower "
            "train.learning_rate or train.clip_norm"
        )
