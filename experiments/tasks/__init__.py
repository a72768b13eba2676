"""What models learn: importing this package registers the tasks."""

from experiments.tasks import (
    classification,
    language_model,
    masked_language_model,
    translation,
    word_vectors,
)

__all__ = [
    "classification",
    "language_model",
    "masked_language_model",
    "translation",
    "word_vectors",
]
