"""Text generation with the checkpoint of a released model."""

import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

import jax
from ml_collections import ConfigDict

from attention.decoding import GNMT, Beam, Greedy, Strategy, stream
from attention.decoding import generate as generate_text
from experiments.compilation import compiled
from experiments.errors import UsageError, as_usage_errors, check_at_least
from experiments.evaluation.writer import check_decoding, sampling
from experiments.workdir import Workdir

NEEDS = 'reading weights needs an extra: pip install "attention[weights]"'


def check(config: ConfigDict) -> None:
    """Check `config.decoding`.

    Raises:
        UsageError: in one sentence.
    """
    with as_usage_errors():
        check_decoding(config.decoding)
        check_at_least("decoding.num_beams", config.decoding.num_beams, 1)


def generate(config: ConfigDict, folder: Workdir, groups: Iterable[list[str]]) -> int:
    """Continue each line, or translate it with an encoder-decoder, as `config.decoding` says.

    Args:
        config: with the field `decoding`.
        folder: contains config.json, safetensors and tokenizer.json.
        groups: lines of text.

    Returns:
        Number of lines that could not be read; each has a message on standard error.
    """
    model, tokenizer = _load(folder)
    options = _options(config.decoding, model) | {"tokenizer": tokenizer}
    failed = 0
    for number, line in enumerate(chain.from_iterable(groups), start=1):
        try:
            if model.is_prompted:
                print(line, end="", flush=True)
            for piece in _pieces(model, line, options):
                print(piece, end="", flush=True)
        except ValueError as error:
            failed += 1
            print(f"line {number}: {error}", file=sys.stderr, flush=True)
        print(flush=True)
    return failed


def _pieces(model: Any, line: str, options: dict[str, Any]) -> Iterable[str]:  # noqa: ANN401
    if isinstance(options["strategy"], Beam):
        return generate_text(model, [line], **options).text
    return stream(model, line, **options)


def _load(folder: Workdir) -> tuple[Any, Any]:
    """Return model and tokenizer.

    Raises:
        UsageError: a folder that cannot be read, or a model that does not generate text.
    """
    try:
        from attention.weights import load, load_tokenizer
    except ModuleNotFoundError as error:
        raise UsageError(NEEDS) from error
    with as_usage_errors():
        model = load(folder.path)
        if not hasattr(model, "prefill"):
            name = type(model).__name__
            raise ValueError(f"{folder.path} contains a {name}, which generates no text")
        return model, load_tokenizer(folder.path)


def _options(decoding: ConfigDict, model: Any) -> dict[str, Any]:  # noqa: ANN401 - any model
    """Return arguments of `generate`; end and start tokens are those of the checkpoint."""
    settings = model.source.settings
    end = settings.get("eos_token_id")
    stop = [] if end is None else end if isinstance(end, list) else [end]
    strategy: Strategy = sampling(decoding) if decoding.strategy == "sample" else Greedy()
    if decoding.num_beams > 1:
        strategy = Beam(decoding.num_beams, length_penalty=GNMT(decoding.length_penalty))
    options = {
        "strategy": strategy,
        "max_tokens": decoding.max_tokens,
        "stop": stop,
        "rng": jax.random.key(decoding.seed) if decoding.strategy == "sample" else None,
        "compile": compiled,
    }
    if not model.is_prompted:
        options["start"] = settings.get("decoder_start_token_id", settings.get("pad_token_id", 0))
    return options
