"""Training states on disk, complete or not there at all."""

from pathlib import Path
from typing import Any, Self

import jax
import orbax.checkpoint as ocp

from experiments.errors import UsageError
from experiments.training.step import TrainState


class Checkpoints:
    """The newest training states of a run, each with where its data iterator stood."""

    def __init__(self, directory: Path) -> None:
        """Opens, and makes if need be, a directory of checkpoints."""
        self._directory = directory
        self._manager = ocp.CheckpointManager(
            directory.absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2)
        )

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint, None if there is none."""
        return self._manager.latest_step()

    def save(self, state: TrainState, progress: dict[str, Any]) -> None:
        """Writes a checkpoint and returns when it is safe.

        Args:
            state: the training state.
            progress: what else goes on from here, as plain JSON.
        """
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(progress)
        )
        self._manager.save(int(state.step), args=arguments)
        # A save that has only returned is lost if the process is killed now.
        self._manager.wait_until_finished()

    def restore(self, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Reads the newest checkpoint.

        Args:
            like: a state of the same shapes, or its `jax.eval_shape`.

        Raises:
            UsageError: there is none, or it is damaged.
        """
        step = self.latest_step()
        if step is None:
            raise UsageError(f"there is no checkpoint yet in {self._directory}: train first")
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        arguments = ocp.args.Composite(
            state=ocp.args.StandardRestore(target), progress=ocp.args.JsonRestore()
        )
        try:
            restored = self._manager.restore(step, args=arguments)
        except Exception as error:  # what is missing decides its type, down to a bare Exception
            raise UsageError(
                f"the checkpoint {self._directory / str(step)} is damaged: delete it to go on "
                "from the one before it, or choose another --workdir"
            ) from error
        return restored.state, restored.progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Waits for what is under way, and closes."""
        self._manager.close()
