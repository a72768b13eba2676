"""The training loop, to be read downwards."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import jax
import numpy as np
from jax import Array
from tqdm import tqdm

from experiments.config.train import TrainPart
from experiments.training.checkpoint import Checkpoints
from experiments.training.metrics import Metrics
from experiments.training.plateau import best_step, out_of_patience, stalls
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
    progress: Mapping[str, Any] = BEGINNING,
) -> tuple[TrainState, Mapping[str, Any]]:
    """Trains up to step `config.steps`, from wherever the state stands, or to the end of patience.

    Args:
        state: the training state; its memory is reused.
        batches: the batch of each step, counted from 0.
        train_step: of `make_steps`.
        config: steps, log_every, evaluate_every, sample_every and checkpoint_every; patience, the
            evaluations without gain after which it stops, 0 for never; and, for the "plateau"
            schedule, how many it takes to lower the learning rate, and to which part.
        metrics: where measurements go.
        checkpoints: where states go.
        evaluate: measures the validation set.
        sample: shows what the model can do.
        progress: of a run that goes on, as its last checkpoint has it.

    Returns:
        The last state, and what its checkpoint says of it: the seconds of training in all, and the
        losses of all evaluations.

    Raises:
        FloatingPointError: a loss that is not finite; the checkpoints before it stay.
    """
    started, first = time.perf_counter() - progress["seconds"], int(state.step)
    losses = [(step, loss) for step, loss in progress["losses"]]
    pending, pending_since = [], time.perf_counter()
    with tqdm(total=config.steps, initial=first, unit="step", mininterval=0.5) as bar:
        for step in range(first + 1, config.steps + 1):
            if out_of_patience(losses, config.patience):
                bar.write(f"the validation loss was lowest at step {best_step(losses):,}")
                break
            state, measured = train_step(state, batches[step - 1])
            pending.append(measured)
            jax.block_until_ready(pending[-2:-1])  # stay one step ahead of the device, not fifty
            bar.update()
            last = step == config.steps

            # Whatever is saved was looked at before: no checkpoint holds a loss that is not finite.
            if step % config.log_every == 0 or step % config.checkpoint_every == 0 or last:
                row = _summary(step, pending, time.perf_counter() - pending_since)
                metrics.write(step, "train", row)
                bar.set_postfix_str(
                    f"loss {row['loss']:.3f}, {row['tokens_per_second']:,.0f} tokens/s"
                )
                pending = []

            if step % config.evaluate_every == 0 or last:
                evaluated = evaluate(state)
                _check_finite("validation loss", evaluated["loss"], step, 1)
                metrics.write(step, "validation", evaluated)
                losses.append((step, evaluated["loss"]))
                if config.schedule == "plateau" and stalls(losses, config.plateau_patience):
                    state = state._replace(slowdown=state.slowdown * config.plateau_factor)

            if step % config.sample_every == 0 or last:
                bar.write(sample(state))

            if step % config.checkpoint_every == 0 or last:
                seconds = time.perf_counter() - started
                progress = {"seconds": seconds, "losses": losses}
                checkpoints.save(state, progress)

            if not pending:  # speeds are those of the steps alone
                pending_since = time.perf_counter()
    return state, progress


def _summary(step: int, pending: list[dict[str, Array]], seconds: float) -> dict[str, float]:
    """Means over the tokens, of the gradient norm over the steps, since the last row."""
    measured = jax.device_get(pending)  # waits for them
    tokens = [each.pop("tokens") for each in measured]
    row = {}
    for name in measured[0]:
        # A batch may hold nothing that counts.
        weights = None if name == "gradient_norm" else np.maximum(tokens, 1e-9)
        row[name] = float(np.average([each[name] for each in measured], weights=weights))
    for name in ("loss", "gradient_norm"):
        _check_finite(name, row[name], step, len(pending))
    return row | {
        "tokens_per_second": float(sum(tokens)) / seconds,
        "steps_per_second": len(pending) / seconds,
    }


def _check_finite(name: str, value: float, step: int, number: int) -> None:
    if not np.isfinite(value):
        raise FloatingPointError(
            f"the {name} became {value} within the last {number} steps before step {step}: lower "
            "train.learning_rate or train.clip_norm"
        )
