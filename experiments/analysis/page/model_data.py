"""A model as JSON, for the JavaScript of the page."""

from typing import Any

from experiments.tasks.task import Task
from experiments.training.step import TrainState


class NotInPageError(ValueError):
    """The page cannot run a model; the message is a sentence that tells why."""


def model_data(task: Task, state: TrainState) -> dict[str, Any]:
    """Return a model and its tokens, for `loadModel` in `model.js`.

    Raises:
        NotInPageError: a model that the page cannot run.
    """
    del task, state
    raise NotInPageError("this model is not in the page yet")
