"""Checkpoints: training states on disk, each complete or absent."""

import json
import logging
import os
import re
import shutil
import sys
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, Self

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from experiments.errors import UsageError
from experiments.processes import any_process
from experiments.training.digest import digests
from experiments.training.plateau import best_step
from experiments.training.step import TrainState

UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of the folder of a save that has not ended
WRITE_ERRORS = OSError, ValueError  # of a full disk


class Checkpoints:
    """The newest training states of a run, each with the progress of its run."""

    def __init__(
        self,
        directory: Path,
        *,
        every: int = 1,
        keep: int = 2,
        keep_best: bool = False,
        read_only: bool = False,
    ) -> None:
        """Open a directory of checkpoints; create it if it is missing.

        What a kill left of a save is removed.

        Args:
            directory: of the checkpoints.
            every: steps between two regular checkpoints. Others are saved when a run is stopped or
                minutes have passed: no mean contains them, as they differ between equal runs.
            keep: number of newest regular checkpoints that are kept. The two newest are always
                kept, in case one is damaged.
            keep_best: whether the checkpoint with the lowest validation loss is kept too.
            read_only: whether another process may be writing them; then none is saved or deleted.
        """
        self._directory, self._every, self._read_only = directory, every, read_only
        self._saving: int | None = None
        self._policy, self._keep_best = _Newest(every, keep), keep_best
        # Of the errors of a save, orbax raises the first; asyncio would report the others too.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._policy,
            read_only=read_only,
            async_options=ocp.options.AsyncOptions(barrier_sync_fn=_barrier),
            single_host_load_and_broadcast=True,  # else each process may list other checkpoints
        )
        if not read_only and jax.process_index() == 0:
            # orbax leaves those that it had only just created, and cannot save the step again.
            for unfinished in directory.glob(f"*{UNFINISHED}*"):
                shutil.rmtree(unfinished)
        self._manager = self._reader = ocp.CheckpointManager(directory.absolute(), options=options)
        if jax.process_count() > 1:
            # Each reads for itself: those that read together wait for one that finds damage.
            own = jax.process_index()
            alone = ocp.options.MultiprocessingOptions(
                primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"reader{own}"
            )
            options = ocp.CheckpointManagerOptions(read_only=True, multiprocessing_options=alone)
            self._reader = ocp.CheckpointManager(directory.absolute(), options=options)

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, None without one."""
        return self._manager.latest_step()

    def save(self, state: TrainState, progress: dict[str, Any]) -> None:
        """Copy a state to the host, and write it in the background.

        The first checkpoint of a directory is complete when this returns: a run with rows of later
        steps and without a checkpoint has lost them.

        Args:
            state: the training state, with any sharding. Its memory may be reused at once.
            progress: of the run, as plain JSON; its "losses" are those of `best_step`.

        Raises:
            UsageError: this one or the one before cannot be written.
        """
        self.wait()
        step, is_first = int(state.step), self.latest_step() is None
        found = digests(state)
        written = {"progress": progress, "digests": found, "checksum": _checksum(progress, found)}
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(written)
        )
        self._saving = step
        if self._keep_best and progress["losses"]:
            self._policy.best = best_step(progress["losses"])
        with self._write_errors():
            if step in self._manager.all_steps():  # of a run that was stopped while it measured
                self._manager.delete(step)
            self._manager.save(step, args=arguments, force=True)
        if is_first:
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is complete: a step for the timeout of steps.

        Raises:
            UsageError: it cannot be written.
        """
        with self._write_errors():
            self._manager.wait_until_finished()

    def restore(self, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Read the newest checkpoint and its progress.

        A damaged one is reported on standard error, and the one before it is read. A process that
        writes checkpoints appends ".damaged" to the name of its folder.

        Args:
            like: a state of the same shapes, or its `jax.eval_shape`. The arrays are restored onto
                its shardings, or onto the first device where it has none.

        Raises:
            UsageError: there is none, or all are damaged.
        """
        if (newest := self.latest_step()) is None:
            raise UsageError(f"there is no checkpoint yet in {self._directory}: train first")
        damaged: dict[int, UsageError] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                found = self._read(step, like)
            except UsageError as error:
                # The training may have deleted it meanwhile.
                if any_process(not self._path(step).exists()):
                    raise
                damaged[step] = error
                continue
            for error in damaged.values():
                print(f"{error}: the one of step {step} is used", file=sys.stderr)
            if damaged and not self._read_only:
                self._set_aside(damaged)
            return found
        raise UsageError(
            f"{damaged[newest]}, and none before it can: choose another --workdir"
        ) from damaged[newest]

    def averaged(self, newest: TrainState, number: int, last: int) -> TrainState:
        """Return the state of a checkpoint with the mean parameters of it and earlier checkpoints.

        (Vaswani et al. 2017, section 6.1.)

        Args:
            newest: the state of the newest checkpoint, which is not read again.
            number: of checkpoints; missing and damaged ones are reported on standard error.
            last: step of the last of them; the others are regular ones.

        Raises:
            UsageError: the last is missing or damaged.
        """
        steps = sorted(step for step in self._manager.all_steps() if step <= last)
        steps = [step for step in steps if step % self._every == 0 or step == last]
        if last not in steps:
            raise UsageError(
                f"the checkpoint {self._path(last)} is the best of its run, and is missing: train "
                "again in another --workdir"
            )
        *older, _ = steps[-number:]
        if len(older) + 1 < number:
            here = f"{len(older) + 1} of the last {number} checkpoints of {self._directory}"
            print(f"only {here} are there: the mean is of these", file=sys.stderr)
        state = (newest if newest.step == last else self._read(last, newest)[0]).to_use()
        total, count = state.parameters, 1
        for step in older:
            try:
                parameters = self._read(step, newest)[0].to_use().parameters
            except UsageError as error:
                print(f"{error}: the mean is of the others", file=sys.stderr)
                continue
            total, count = jax.tree.map(jnp.add, total, parameters), count + 1
        if count == 1:
            return state
        return state._replace(parameters=jax.tree.map(lambda leaf: leaf / count, total))

    def _read(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        arguments = ocp.args.Composite(
            state=ocp.args.StandardRestore(jax.tree.map(_with_sharding, like)),
            progress=ocp.args.JsonRestore(),
        )
        damage = ""
        try:
            restored = self._reader.restore(step, args=arguments)
            progress, written = restored.progress["progress"], restored.progress["digests"]
            if restored.progress["checksum"] != _checksum(progress, written):
                damage = "its progress is not what was saved"
        except Exception as error:  # its type depends on the damaged part
            damage = _cause(error)
        if not any_process(bool(damage)):
            found = digests(restored.state).items()
            damage = next((name for name, digest in found if written[name] != digest), "")
            damage = damage and f"its array {damage} is not what was saved"
        if any_process(bool(damage)):
            damage = damage or "by another process"
            raise UsageError(f"the checkpoint {self._path(step)} cannot be read ({damage})")
        return restored.state, progress

    def _set_aside(self, steps: Iterable[int]) -> None:
        """Rename the folders of checkpoints, so that they are not read again."""
        for step in steps if jax.process_index() == 0 else ():
            aside = self._path(step).with_name(f"{step}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            self._path(step).rename(aside)
        any_process(False)  # all wait for the first
        self._manager.reload()

    def _path(self, step: int) -> Path:
        return self._directory / str(step)

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except WRITE_ERRORS as error:
            place = self._path(self._saving or 0)
            raise UsageError(
                f"the checkpoint {place} cannot be written ({_cause(error)})"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for a save, and close."""
        for each in {self._manager, self._reader}:
            each.close()


class _Newest(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the newest regular checkpoints, the two newest of all, and that of step `best`."""

    def __init__(self, every: int, keep: int) -> None:
        self._every, self._keep = every, keep
        self.best: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: object) -> list[bool]:
        """Return whether each checkpoint is kept, given the oldest first."""
        steps = [each.step for each in checkpoints]
        regular = [step for step in steps if step % self._every == 0]
        kept = {*steps[-2:], *regular[-self._keep :], self.best}
        return [step in kept for step in steps]


def _barrier(*, key: str, timeout_ms: int) -> None:
    """Wait in the background for the other processes, unless the save of this one has failed.

    After an error, orbax would wait 20 minutes for processes that wait at another barrier. This
    process ends with the error instead, and the loss of its heartbeat ends the others.
    """
    error = sys.exc_info()[1]
    if isinstance(error, WRITE_ERRORS):
        raise error
    ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


def _with_sharding(leaf: Any) -> jax.ShapeDtypeStruct:  # noqa: ANN401 - an array or its shape
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _cause(error: Exception) -> str:
    """Return the reason of the system, else the beginning of the message of the library.

    A model has other shapes than its checkpoint if someone edited a file of the run.
    """
    if found := re.search(r"Requested shape: (\(.*?\)) .* stored shape: (\(.*?\))", str(error)):
        shapes = f"an array has shape {found[2]}, but {found[1]} in the model"
        return f"{shapes}: config.json or a vocabulary has changed"
    number = re.search(r"os_error_code='(\d+)'", str(error))  # of tensorstore
    if number or isinstance(error, OSError):
        return os.strerror(int(number[1])) if number else error.strerror or str(error)
    return shorten(str(error) or type(error).__name__, 80, placeholder=" …")


def _checksum(progress: dict[str, Any], written: dict[str, str]) -> int:
    """Return a checksum of JSON values: a damaged file may be readable."""
    return zlib.crc32(json.dumps([progress, written], sort_keys=True).encode())
