"""Text generation with the checkpoint of a released model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from attention.decoding import (
    GNMT,
    AllowedTokens,
    Beam,
    generate,
    stream,
)
from experiments.config.build import build
from experiments.config.parts import PretrainedPart
from experiments.devices import compiled
from experiments.errors import UsageError, as_usage_errors
from experiments.tasks.prediction import Prediction, predictions, show
from experiments.tasks.text_generator import Continuation, generated, sampling
from experiments.workdir import Workdir

BUCKETS = tuple(64 * 4**power for power in range(7))  # padded lengths of lines: each is compiled


def predict(
    config: ConfigDict, folder: Workdir, cache: Path, groups: Iterable[Sequence[str]], form: str
) -> int:
    """Continue each line, or translate it with an encoder-decoder, by `config.decoding`.

    Args:
        config: with the field `decoding`.
        folder: contains config.json, safetensors and tokenizer.json.
        cache: unused.
        groups: lines of text.
        form: of the output, "text" or "json".

    Returns:
        Number of lines without an answer; each has a message on standard error.
    """
    decoding = build(PretrainedPart, config.decoding.to_dict(), "decoding.")
    model, tokenizer, settings = _load(folder.path)
    if decoding.strategy == "auto":
        decoding = replace(decoding, strategy="sample" if model.is_prompted else "greedy")
    options = _options(decoding, settings, model)
    vocab_size = model.vocab_size if model.is_prompted else model.input_vocab_size
    longest = model.max_input_length(decoding.max_tokens)

    def read(line: str) -> tuple[str, list[int]]:
        ids = tokenizer.encode(line)
        if not line.strip():
            raise ValueError("the line is empty")
        if max(ids) >= vocab_size:
            raise ValueError(
                f"the tokenizer has token {max(ids)}, and the vocabulary of the model {vocab_size} "
                "tokens"
            )
        if longest is not None and len(ids) > longest:
            raise ValueError(
                f"{len(ids)} tokens are more than the {max(0, longest)} that the model reads with "
                f"--config.decoding.max_tokens={decoding.max_tokens}"
            )
        return line, ids

    def answer(inputs: Sequence[tuple[str, list[int]]]) -> Iterable[Prediction]:
        return (_prediction(model, tokenizer, line, ids, options) for line, ids in inputs)

    return show((predictions(lines, read, answer) for lines in groups), form)


def _prediction(
    model: Any,  # noqa: ANN401 - any model
    tokenizer: Any,  # noqa: ANN401 - of the library tokenizers
    line: str,
    ids: list[int],
    options: dict[str, Any],
) -> Prediction:
    decoder = Continuation(tokenizer, tuple(ids)) if model.is_prompted else tokenizer
    options = options | {"tokenizer": decoder}

    def details() -> dict[str, Any]:
        return {"prompt": line, **generated(generate(model, [ids], **options))}

    def pieces() -> Iterator[str]:
        yield from [line] if model.is_prompted else []
        if isinstance(options["strategy"], Beam):
            yield details()["text"]
        else:
            yield from stream(model, ids, **options)

    return Prediction(pieces(), details)


def _load(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Return model, tokenizer, and the fields of config.json and generation_config.json.

    A field of generation_config.json is used in place of that of config.json, unless it is null.

    Raises:
        UsageError: a folder that cannot be read, or a model that does not generate text.
    """
    try:
        from attention.weights import load, load_tokenizer
        from attention.weights.files import read_json
    except ModuleNotFoundError as error:
        needs = 'reading weights needs an extra: pip install ".[weights]"'
        raise UsageError(needs) from error
    with as_usage_errors():
        try:
            model = load(folder, scan=False)
        except FileNotFoundError as error:
            raise ValueError(str(error)) from error
        if not hasattr(model, "prefill"):
            name = type(model).__name__
            raise ValueError(f"{folder} contains a {name}, which generates no text")
        path = folder / "generation_config.json"
        fields = read_json(path) if path.is_file() else {}
        own = {name: value for name, value in fields.items() if value is not None}
        return model, load_tokenizer(folder), {**model.source.settings, **own}


def _options(
    decoding: PretrainedPart,
    settings: dict[str, Any],
    model: Any,  # noqa: ANN401 - any model
) -> dict[str, Any]:
    """Return arguments of `generate`; the tokens with a meaning are those of the checkpoint.

    Raises:
        UsageError: a token outside the vocabulary of the model, or more beams or tokens than it
            has.
    """
    size = model.vocab_size
    longest = None if model.is_prompted else model.target_embedding.num_positions
    for name, most in (("num_beams", size), ("max_tokens", longest)):
        if most is not None and getattr(decoding, name) > most:
            raise UsageError(
                f"--config.decoding.{name}={getattr(decoding, name)} is more than the {most} "
                "tokens that the model can write"
            )

    def ids(name: str) -> list[Any]:
        """Return the ids of a field, or lists of ids: none if it is null."""
        value = settings.get(name)
        for token in jax.tree.leaves(value):
            if not isinstance(token, int) or not 0 <= token < size:
                raise UsageError(
                    f"{name} of the checkpoint has token {token!r}, and the vocabulary has {size} "
                    "tokens"
                )
        return value if isinstance(value, list) else [] if value is None else [value]

    stop = ids("eos_token_id")
    options = sampling(decoding) | {
        "max_tokens": decoding.max_tokens,
        "stop": stop,
        "buckets": BUCKETS,
        "compile": compiled,
    }
    if decoding.num_beams > 1:
        options["strategy"] = Beam(decoding.num_beams, length_penalty=GNMT(decoding.length_penalty))
    words = [word if isinstance(word, list) else [word] for word in ids("bad_words_ids")]
    if several := next((word for word in words if len(word) > 1), None):
        raise UsageError(f"bad_words_ids of the checkpoint has {several}, not single tokens alone")
    excluded = {word[0] for word in words} - {*stop} | {*ids("suppress_tokens")}
    if excluded:
        allowed = np.ones((1, size), bool)
        allowed[:, [*excluded]] = False
        options["logit_processors"] = [AllowedTokens(lambda history: allowed)]
    if not model.is_prompted:
        begin = [*ids("decoder_start_token_id"), *ids("pad_token_id"), 0]
        forced = ids("forced_bos_token_id")
        options |= {"start": begin[0], "prefix": [forced] if forced else None}
    return options
