"""The training loop, to be read downwards."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import Array
from ml_collections import ConfigDict
from tqdm import tqdm

from experiments.training.checkpoint import Checkpoints
from experiments.training.metrics import Metrics
from experiments.training.step import TrainState


def fit(
    state: TrainState,
    batches: Iterator[Any],
    train_step: Callable[[TrainState, Any], tuple[TrainState, dict[str, Array]]],
    *,
    config: ConfigDict,
    metrics: Metrics,
    checkpoints: Checkpoints,
    evaluate: Callable[[TrainState], dict[str, float]],
    sample: Callable[[TrainState], str],
    seconds: float = 0.0,
) -> tuple[TrainState, float]:
    """Trains up to step `config.steps`, from wherever the state stands.

    Args:
        state: the training state; its memory is reused.
        batches: an iterator that stands where the state does, and can say where (grain).
        train_step: of `make_steps`.
        config: steps, log_every, evaluate_every, sample_every and checkpoint_every.
        metrics: where measurements go.
        checkpoints: where states go.
        evaluate: measures the validation set.
        sample: shows what the model can do.
        seconds: training time before this call, of a run that goes on.

    Returns:
        The last state, and the seconds of training in all, as its checkpoint has them.

    Raises:
        FloatingPointError: a loss that is not finite; the checkpoints before it stay.
    """
    started, first = time.perf_counter() - seconds, int(state.step)
    pending, pending_since = [], time.perf_counter()
    with tqdm(total=config.steps, initial=first, unit="step", mininterval=0.5) as bar:
        for step in range(first + 1, config.steps + 1):
            state, measured = train_step(state, next(batches))
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
                metrics.write(step, "validation", evaluate(state))

            if step % config.sample_every == 0 or last:
                bar.write(sample(state))

            if step % config.checkpoint_every == 0 or last:
                seconds = time.perf_counter() - started
                checkpoints.save(state, {"batches": batches.get_state(), "seconds": seconds})

            if not pending:  # speeds are those of the steps alone
                pending_since = time.perf_counter()
    return state, seconds


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
        if not np.isfinite(row[name]):
            raise FloatingPointError(
                f"the {name} became {row[name]} within the last {len(pending)} steps before step "
                f"{step}: lower train.learning_rate or train.clip_norm"
            )
    return row | {
        "tokens_per_second": float(sum(tokens)) / seconds,
        "steps_per_second": len(pending) / seconds,
    }
