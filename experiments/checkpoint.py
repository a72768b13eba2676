"""Checkpoints: training states on disk, each complete or absent, with a digest of each array."""

import errno
import json
import os
import shutil
import sys
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax import Array
from jax.experimental.multihost_utils import process_allgather

from experiments.errors import UsageError
from experiments.files import cause, named_errors
from experiments.learner import TrainState
from experiments.processes import any_process
from experiments.workdir import saved_steps

MULTIPLIER = 0x9E3779B97F4A7C15  # 2⁶⁴ / golden ratio: neighbouring positions get distant weights


@dataclass
class Progress:
    """What a checkpoint contains beside the state, as plain JSON.

    Attributes:
        seconds: of training.
        losses: step and monitored loss of each evaluation.
        pending: the metrics of each step after the last row of `metrics.jsonl`.
        lengths: bytes of each file of the workdir that grows in training.
    """

    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    pending: list[dict[str, float]] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)


class CheckpointWriter(AbstractContextManager):
    """Writes the training states of a run in the background, and deletes old ones."""

    def __init__(self, folder: Path, every: int = 1, keep: int = 2) -> None:
        """Create or open a folder of checkpoints, and remove what a kill left of a save.

        The `keep` newest regular checkpoints are kept, of multiples of `every`, and the two newest
        of all, in case one is damaged. Others than regular ones are saved when a run is stopped or
        minutes have passed: no mean contains them, as they differ between equal runs.
        """
        # orbax keeps folders that a killed process had only just created, and then cannot save.
        if jax.process_index() == 0:
            for unfinished in folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(unfinished)
        self._folder = self._newest = folder
        self._every, self._keep = every, keep
        options = ocp.CheckpointManagerOptions(preservation_policy=self)
        with named_errors(folder):
            self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self, state: TrainState, progress: Progress, best: int | None = None) -> None:
        """Copy a state to the host, and write it in the background.

        The first checkpoint of a folder is complete when this returns: a run with metrics of later
        steps and without a checkpoint has lost its checkpoints. The memory of the state may be
        reused at once; the checkpoint of step `best` is kept.

        Raises:
            UsageError: this one or the one before cannot be written.
        """
        with named_errors(self._newest, ValueError):
            self._manager.wait_until_finished()
        step, self._best = int(state.step), best
        self._newest = self._folder / str(step)
        content = {"progress": asdict(progress), "digests": digests(state)}
        content["checksum"] = _checksum(content)
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(content)
        )
        is_first = self._manager.latest_step() is None
        size = sum(map(attrgetter("nbytes"), jax.tree.leaves(state)))
        with named_errors(self._newest, ValueError):
            # On a full disk, threads of orbax would log many errors. Other files need 256 KiB.
            if any_process(shutil.disk_usage(self._folder).free < size + 2**18):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._manager.save(step, args=arguments, force=True)
            if is_first:
                self._manager.wait_until_finished()

    def should_preserve(self, checkpoints: Sequence[Any], *, context: object) -> list[bool]:
        """Return whether each checkpoint is kept, given the oldest first; for orbax."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        regular = [step for step in steps if step % self._every == 0]
        kept = {*steps[-2:], *regular[-self._keep :], self._best}
        return [step in kept for step in steps]

    def __exit__(self, *exception: object) -> None:
        """Wait for a save, and close."""
        with named_errors(self._newest, ValueError):
            self._manager.close()


def read_newest(
    folder: Path, like: TrainState, *, set_aside: bool = False
) -> tuple[TrainState, Progress]:
    """Read the newest checkpoint that is not damaged.

    Damaged ones after it are reported on standard error, and with `set_aside` get a name that ends
    in ".damaged". A training in another process may save and delete checkpoints meanwhile.

    Raises:
        UsageError: there is none, or all are damaged.
    """
    failed: dict[int, UsageError] = {}
    while steps := [step for step in saved_steps(folder) if step not in failed]:
        try:
            restored = read_checkpoint(folder, steps[-1], like)
        except UsageError as error:
            failed[steps[-1]] = error
            continue
        damaged = [step for step in failed if step > steps[-1]]  # the others were being deleted
        for step in damaged:
            print(f"{failed[step]}: the one of step {steps[-1]} is used", file=sys.stderr)
            if set_aside and jax.process_index() == 0:
                path = folder / f"{step}.damaged"
                shutil.rmtree(path, ignore_errors=True)
                (folder / str(step)).rename(path)
        any_process(False)  # all wait for the first
        return restored
    if not failed:
        raise UsageError(f"there is no checkpoint yet in {folder}: train first")
    raise UsageError(f"{failed[max(failed)]}, and none before it can: choose another --workdir")


def read_checkpoint(folder: Path, step: int, like: TrainState) -> tuple[TrainState, Progress]:
    """Read the checkpoint of a step, onto the shardings of `like`: a state or its shapes.

    Raises:
        UsageError: it is damaged or missing.
    """
    path, damage, own = (folder / str(step)).absolute(), "", jax.process_index()
    # Each process reads for itself: those that read together wait for one that finds damage.
    options = ocp.options.MultiprocessingOptions(
        primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"reader{own}"
    )
    try:
        content = json.loads((path / "progress" / "metadata").read_text("utf-8"))
        if content.pop("checksum") != _checksum(content):
            raise ValueError("its progress is not what was saved")
        progress = Progress(**content["progress"])
        with ocp.StandardCheckpointer(multiprocessing_options=options) as reader:
            state = reader.restore(path / "state", like)
    except Exception as error:  # its type depends on the damaged part
        damage = cause(error)
    if not any_process(bool(damage)):
        wrong = digests(state).items() - content["digests"].items()
        damage = f"its array {min(wrong)[0]} is not what was saved" if wrong else ""
    if any_process(bool(damage)):
        damage = damage or "by another process"
        raise UsageError(f"the checkpoint {folder / str(step)} cannot be read ({damage})")
    return state, progress


def digests(tree: Any) -> dict[str, str]:  # noqa: ANN401 - any pytree
    """Return 16 hexadecimal digits for each array of a tree, by its path.

    A digest is a sum over all elements, modulo 2⁶⁴, of the bits of an element times an odd weight
    of its position: it changes with any single element, and not with the sharding.
    """
    paths, leaves = zip(*jax.tree.leaves_with_path(tree), strict=True)
    sums = np.array([*map(_sum_of_shards, leaves)], np.uint64)
    if jax.process_count() > 1:
        halves = process_allgather(sums.view(np.uint32))  # jax has no 64 bits by default
        sums = halves.view(np.uint64).sum(axis=0, dtype=np.uint64)
    names = map(partial(jax.tree_util.keystr, simple=True, separator="/"), paths)
    return dict(zip(names, map("{:016x}".format, sums.tolist()), strict=True))


def _sum_of_shards(array: Array) -> int:
    """Return the part of a digest that the shards of this process add."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    total = 0
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            sums = np.asarray(shard.data).view(f"u{array.dtype.itemsize}")
            for axis in reversed(range(array.ndim)):
                positions = np.arange(array.shape[axis], dtype=np.uint64)[shard.index[axis]]
                weights = (positions + np.uint64(axis << 40)) * np.uint64(MULTIPLIER) | np.uint64(1)
                sums = np.einsum("...i,i", sums, weights, dtype=np.uint64)
            total += int(sums)
    return total % 2**64


def _checksum(content: dict[str, Any]) -> int:
    """Return a checksum of JSON values: a damaged file may be readable."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
