"""What models learn from: importing this package registers the datasets."""

from experiments.data import (
    csv,
    denoising,
    digits,
    parallel,
    scan,
    sentiment,
    sequences,
    summary,
    text_file,
    tfds,
    toy,
)

__all__ = [
    "csv",
    "denoising",
    "digits",
    "parallel",
    "scan",
    "sentiment",
    "sequences",
    "summary",
    "text_file",
    "tfds",
    "toy",
]
