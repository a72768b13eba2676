"""What no configuration of a translation may say."""

import math

from ml_collections import ConfigDict

from experiments.data.sources import SOURCES
from experiments.errors import UsageError, check_at_least


def check_buckets(config: ConfigDict) -> None:
    """Check the lengths of batches, `data.bucket_lengths`, and their size, `train.batch_tokens`.

    Raises:
        UsageError: a length that no sentence or no model has, or a batch without room for one.
    """
    longest = config.model.max_length
    if not config.data.bucket_lengths:
        raise UsageError("data.bucket_lengths must name a length, got none")
    lengths = config.data.bucket_lengths
    if not all(isinstance(length, int) and 2 <= length <= longest for length in lengths):
        raise UsageError(
            f"data.bucket_lengths must lie in [2, model.max_length={longest}], got {tuple(lengths)}"
        )
    if config.train.batch_tokens < longest:
        raise UsageError(
            f"train.batch_tokens={config.train.batch_tokens} has no room for a sentence of "
            f"model.max_length={longest}"
        )


def check_decoding(config: ConfigDict) -> None:
    """Refuses a penalty that orders nothing, and hypotheses that there are not or nobody would see.

    Raises:
        ValueError: in one sentence.
    """
    if not math.isfinite(config.length_penalty):
        raise ValueError(f"decoding.length_penalty must be finite, got {config.length_penalty}")
    check_at_least("decoding.num_beams", config.num_beams, 1)
    if config.hypotheses < config.num_beams:
        raise ValueError(
            f"decoding.hypotheses={config.hypotheses} are fewer than the decoding.num_beams="
            f"{config.num_beams} of one sentence"
        )
    if not 1 <= config.n_best <= config.num_beams:
        raise ValueError(
            f"decoding.n_best must lie in 1 to decoding.num_beams={config.num_beams}, "
            f"got {config.n_best}"
        )
    if config.n_best > 1 and not config.details:
        raise ValueError(f"decoding.n_best={config.n_best} is shown by decoding.details=True alone")


def check_rows(config: ConfigDict) -> None:
    """Refuses rows of several pairs that are too long, or that the model cannot read.

    Raises:
        ValueError: in one sentence.
    """
    length, longest = config.data.get("row_length", 0), config.model.max_length
    if not 0 <= length <= longest:
        raise ValueError(
            f"data.row_length must lie in [0, model.max_length={longest}], where 0 chooses by the "
            f"data, got {length}"
        )
    if config.data.get("packed") and config.architecture != "transformer":
        raise ValueError(
            f"data.packed must be False for architecture={config.architecture!r}: only a "
            "Transformer can tell the pairs of a row apart"
        )


def check_transformer(config: ConfigDict) -> None:
    """Refuses a Transformer that does not translate.

    Raises:
        ValueError: in one sentence.
    """
    for name in ("encoder_layers", "decoder_layers"):
        check_at_least(f"model.{name}", config.model[name], 1)
    is_shared = SOURCES[config.data.name].text.is_shared(config.data)
    if config.model.tie == "all" and not is_shared:
        raise ValueError(
            "model.tie='all' needs one vocabulary, and each language has its own: use 'output'"
        )
