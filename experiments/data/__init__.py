"""What models learn from: importing this package registers the datasets."""

from experiments.data import (
    copy,
    csv,
    denoising,
    digits,
    parallel,
    reverse,
    scan,
    sentiment,
    summary,
    text_file,
    tfds,
    toy,
)

__all__ = [
    "copy",
    "csv",
    "denoising",
    "digits",
    "parallel",
    "reverse",
    "scan",
    "sentiment",
    "summary",
    "text_file",
    "tfds",
    "toy",
]
