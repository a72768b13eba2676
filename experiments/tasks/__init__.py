"""Model, batches, loss and predictions of each task; importing this package registers them."""

# ruff: noqa: F401
from experiments.tasks import (
    classification,
    language_model,
    masked_language_model,
    translation,
    word_vectors,
)
