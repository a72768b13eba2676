"""Checkpoints: training states on disk, each complete or absent."""

import json
import logging
import os
import re
import sys
import warnings
import zlib
from pathlib import Path
from textwrap import shorten
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from experiments.errors import UsageError
from experiments.training.step import TrainState


class Checkpoints:
    """The newest training states of a run, each with the progress of its run."""

    def __init__(self, directory: Path, *, keep: int = 2, read_only: bool = False) -> None:
        """Open a directory of checkpoints; create it if it is missing.

        Args:
            directory: of the checkpoints.
            keep: number of newest checkpoints that are kept, at least two in case one is damaged.
            read_only: whether another process may be writing them; then none is saved or deleted.
        """
        self._directory = directory
        # Of the errors of a save, orbax raises the first; asyncio would report the others too.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        self._manager = ocp.CheckpointManager(
            directory.absolute(),
            options=ocp.CheckpointManagerOptions(max_to_keep=max(2, keep), read_only=read_only),
        )

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, None without one."""
        return self._manager.latest_step()

    def save(self, state: TrainState, progress: dict[str, Any]) -> None:
        """Write a checkpoint, and return when it is complete.

        Args:
            state: the training state.
            progress: of the run, as plain JSON.

        Raises:
            UsageError: it cannot be written.
        """
        progress = {"checksum": _checksum(state, progress), **progress}
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(progress)
        )
        step = int(state.step)
        try:
            self._manager.save(step, args=arguments)
            # A save that has only returned is lost if the process is killed now.
            self._manager.wait_until_finished()
        except (ValueError, OSError) as error:  # of a full disk
            place = self._directory / str(step)
            raise UsageError(
                f"the checkpoint {place} cannot be written ({_cause(error)})"
            ) from error

    def restore(self, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Read the newest checkpoint and its progress.

        Args:
            like: a state of the same shapes, or its `jax.eval_shape`.

        Raises:
            UsageError: there is none, or it is damaged.
        """
        step = self.latest_step()
        if step is None:
            raise UsageError(f"there is no checkpoint yet in {self._directory}: train first")
        return self._read(step, like)

    def averaged(self, newest: TrainState, number: int, last: int) -> TrainState:
        """Return the state of a checkpoint with the mean parameters of it and earlier checkpoints.

        (Vaswani et al. 2017, section 6.1.)

        Args:
            newest: the state of the newest checkpoint, which is not read again.
            number: of checkpoints; if some are missing, a message on standard error tells so.
            last: step of the last of them.

        Raises:
            UsageError: one of them is damaged, or the last is missing.
        """
        steps = sorted(step for step in self._manager.all_steps() if step <= last)
        if last not in steps:
            raise UsageError(
                f"the checkpoint {self._directory / str(last)} is the best of its run, and is "
                "missing: train again in another --workdir"
            )
        *older, _ = steps[-number:]
        if len(older) + 1 < number:
            here = f"{len(older) + 1} of the last {number} checkpoints of {self._directory}"
            print(f"only {here} are there: the mean is of these", file=sys.stderr)
        state = (newest if newest.step == last else self._read(last, newest)[0]).to_use()
        total = state.parameters
        for step in older:
            total = jax.tree.map(jnp.add, total, self._read(step, newest)[0].to_use().parameters)
        count = len(older) + 1
        return state._replace(parameters=jax.tree.map(lambda leaf: leaf / count, total))

    def _read(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        arguments = ocp.args.Composite(
            state=ocp.args.StandardRestore(target), progress=ocp.args.JsonRestore()
        )
        try:
            restored = self._manager.restore(step, args=arguments)
            state, progress = restored.state, {**restored.progress}
            if progress.pop("checksum", None) != _checksum(state, progress):
                raise ValueError("it is not what was saved, or not saved by this version")
        except Exception as error:  # its type depends on the missing part
            raise UsageError(
                f"the checkpoint {self._directory / str(step)} cannot be read ({_cause(error)}): "
                "if it is damaged, delete it to go on from the one before it, or choose another "
                "--workdir"
            ) from error
        return state, progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for a save, and close."""
        self._manager.close()


def _cause(error: Exception) -> str:
    """Return the reason of the system, else the beginning of the message of the library."""
    number = re.search(r"os_error_code='(\d+)'", str(error))  # of tensorstore
    if number or isinstance(error, OSError):
        return os.strerror(int(number[1])) if number else error.strerror or str(error)
    return shorten(str(error) or type(error).__name__, 80, placeholder=" …")


def _checksum(state: TrainState, progress: dict[str, Any]) -> int:
    """Return a checksum of all numbers: a damaged file may be readable."""
    checksum = zlib.crc32(json.dumps(progress, sort_keys=True).encode())
    for leaf in jax.tree.leaves(state):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        checksum = zlib.crc32(np.ascontiguousarray(array).view(np.uint8), checksum)
    return checksum
