"""Text generation with the checkpoint of a released model, and its attention in a sentence."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention.decoding import (
    GNMT,
    AllowedTokens,
    Beam,
    Greedy,
    History,
    Strategy,
    generate,
    stream,
)
from attention.modules import EncoderDecoder
from experiments.compilation import compiled
from experiments.config.build import build
from experiments.config.model import PretrainedPart
from experiments.errors import UsageError, as_usage_errors
from experiments.inference.prediction import Prediction, predictions, show
from experiments.inference.text_generator import Continuation, generated, sampling
from experiments.workdir import Workdir

NEEDS = 'reading weights needs an extra: pip install ".[weights]"'

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
    del cache
    decoding = build(PretrainedPart, config.decoding.to_dict(), "decoding.")
    model, tokenizer, settings = _load(folder)
    if decoding.strategy == "auto":
        decoding = replace(decoding, strategy="sample" if model.is_prompted else "greedy")
    options = _options(decoding, settings, model)
    options |= {"tokenizer": tokenizer}
    _check_max_tokens(model, decoding.max_tokens)

    def read(line: str) -> str:
        ids = tokenizer.encode(line)
        _check_vocabulary(model, ids)
        _check_line(model, len(ids), decoding.max_tokens)
        return line

    def answer(lines: Sequence[str]) -> Iterable[Prediction]:
        return (_prediction(model, line, options) for line in lines)

    return show((predictions(lines, read, answer) for lines in groups), form)


def _prediction(model: Any, line: str, options: dict[str, Any]) -> Prediction:  # noqa: ANN401 - any model
    if model.is_prompted:
        tokenizer = options["tokenizer"]
        options = options | {"tokenizer": Continuation(tokenizer, tuple(tokenizer.encode(line)))}

    def details() -> dict[str, Any]:
        return {"prompt": line, **generated(generate(model, [line], **options))}

    def pieces() -> Iterator[str]:
        yield from [line] if model.is_prompted else []
        if isinstance(options["strategy"], Beam):
            yield details()["text"]
        else:
            yield from stream(model, line, **options)

    return Prediction(pieces(), details)


def _check_max_tokens(model: Any, max_tokens: int) -> None:  # noqa: ANN401 - any model
    """Raise a UsageError if an answer can be longer than the model allows after any input."""
    longest = model.max_input_length(max_tokens)
    most = model.max_input_length(1) if longest is not None and longest < 1 else None
    if not model.is_prompted:
        most = model.target_embedding.num_positions
    if most is not None and max_tokens > most:
        raise UsageError(
            f"--config.decoding.max_tokens={max_tokens} is more than the {most} tokens that the "
            "model can write"
        )


def _check_vocabulary(model: Any, ids: Sequence[int]) -> None:  # noqa: ANN401 - any model
    """Raise a ValueError for a token that only the tokenizer has."""
    if isinstance(model, EncoderDecoder):
        size = model.input_vocab_size
    else:
        size = model.embedding.vocab_size
    if max(ids, default=0) >= size:
        raise ValueError(
            f"the tokenizer has token {max(ids)}, and the vocabulary of the model {size} tokens"
        )


def _check_line(model: Any, num_tokens: int, max_tokens: int) -> None:  # noqa: ANN401 - any model
    """Raise a ValueError if the model cannot read so many tokens and write `max_tokens` more."""
    longest, most = model.max_input_length(max_tokens), model.max_input_length(1)
    if longest is None or num_tokens <= longest:
        return
    if num_tokens > most:
        raise ValueError(f"{num_tokens} tokens are more than the {most} that the model reads")
    raise ValueError(
        f"{num_tokens} tokens leave room for {most + 1 - num_tokens} more, and "
        f"--config.decoding.max_tokens={max_tokens}"
    )


def _load(folder: Workdir, *, is_written: bool = True) -> tuple[Any, Any, dict[str, Any]]:
    """Return model, tokenizer, and the fields of config.json and generation_config.json.

    A field of generation_config.json is used in place of that of config.json, unless it is null.

    Args:
        folder: of the checkpoint.
        is_written: whether the model has to generate text.

    Raises:
        UsageError: a folder that cannot be read, or a model that does not generate text.
    """
    try:
        from attention.weights import load, load_tokenizer
        from attention.weights.files import read_json
    except ModuleNotFoundError as error:
        raise UsageError(NEEDS) from error
    with as_usage_errors():
        try:
            model = load(folder.path, scan=False)
        except FileNotFoundError as error:
            raise ValueError(str(error)) from error
        if is_written and not hasattr(model, "prefill"):
            name = type(model).__name__
            raise ValueError(f"{folder.path} contains a {name}, which generates no text")
        path = folder.path / "generation_config.json"
        given = read_json(path) if path.is_file() else {}
        given = {name: value for name, value in given.items() if value is not None}
        return model, load_tokenizer(folder.path), {**model.source.settings, **given}


def _options(
    decoding: PretrainedPart,
    settings: dict[str, Any],
    model: Any,  # noqa: ANN401 - any model
) -> dict[str, Any]:
    """Return arguments of `generate`; the tokens with a meaning are those of the checkpoint.

    Raises:
        UsageError: a token outside the vocabulary of the model, or more beams than tokens.
    """
    if decoding.num_beams > model.vocab_size:
        raise UsageError(
            f"--config.decoding.num_beams={decoding.num_beams} is more than the "
            f"{model.vocab_size} tokens of the vocabulary"
        )

    def ids(name: str) -> list[Any]:
        """Return the ids of a field, or lists of ids: none if it is null."""
        found = settings.get(name)
        for token in jax.tree.leaves(found):
            if not isinstance(token, int) or not 0 <= token < model.vocab_size:
                raise UsageError(
                    f"{name} of the checkpoint has token {token!r}, and the vocabulary has "
                    f"{model.vocab_size} tokens"
                )
        return found if isinstance(found, list) else [] if found is None else [found]

    stop = ids("eos_token_id")
    strategy: Strategy = sampling(decoding) if decoding.strategy == "sample" else Greedy()
    if decoding.num_beams > 1:
        strategy = Beam(decoding.num_beams, length_penalty=GNMT(decoding.length_penalty))
    excluded = [words if isinstance(words, list) else [words] for words in ids("bad_words_ids")]
    excluded = [words for words in excluded if words not in [[end] for end in stop]]
    excluded += [[token] for token in ids("suppress_tokens")]
    options = {
        "strategy": strategy,
        "max_tokens": decoding.max_tokens,
        "stop": stop,
        "logit_processors": [exclude(excluded, model.vocab_size)] if excluded else (),
        "rng": jax.random.key(decoding.seed) if decoding.strategy == "sample" else None,
        "buckets": BUCKETS,
        "compile": compiled,
    }
    if not model.is_prompted:
        names = ("decoder_start_token_id", "pad_token_id")
        given = [name for name in names if settings.get(name) is not None]
        options["start"] = ids(given[0])[0] if given else 0
        forced = ids("forced_bos_token_id")
        options["prefix"] = [forced] if forced else None
    return options


def exclude(sequences: Sequence[Sequence[int]], vocab_size: int) -> AllowedTokens:
    """Return a logit processor by which answers contain none of some sequences of ids."""
    single = np.ones(vocab_size, bool)
    single[[ids[0] for ids in sequences if len(ids) == 1]] = False

    def allowed(history: History) -> jax.Array:
        found = jnp.broadcast_to(single, (*history.length.shape, vocab_size))
        for *before, last in (ids for ids in sequences if len(ids) > 1):
            begun = history.length >= len(before)
            for back, token in enumerate(reversed(before), start=1):
                place = (history.length - back)[..., None]
                read = jnp.take_along_axis(history.tokens, place, axis=-1, mode="clip")
                begun &= read[..., 0] == token
            found = found.at[..., last].min(~begun)
        return found

    return AllowedTokens(allowed)
