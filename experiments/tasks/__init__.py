"""What models learn: importing this package registers the tasks."""

# ruff: noqa: F401
from experiments.tasks import (
    classification,
    language_model,
    masked_language_model,
    translation,
    word_vectors,
)
