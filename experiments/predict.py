"""Answer each line of standard input, with the model of a run or with a released checkpoint."""

import codecs
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
from ml_collections import ConfigDict

from attention.decoding import GNMT, AllowedTokens, Beam
from experiments.config import Config
from experiments.config.build import build
from experiments.config.parts import PretrainedPart
from experiments.errors import UsageError
from experiments.tasks.language_model import Continuation, continuation, sampling
from experiments.tasks.prediction import Prediction, predictions
from experiments.trained import Run, smoke_test
from experiments.workdir import Workdir

BUCKETS = 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144  # padded lengths of lines


def predict(
    config: Config | ConfigDict,
    workdir: Workdir,
    cache: Path,
    groups: Iterable[Sequence[str]],
    form: str,
) -> int:
    """Answer groups of lines together, as they come; return the number of lines without an answer.

    `config` is that of the run in `workdir`; or of a released checkpoint there, which has
    config.json, safetensors and tokenizer.json. `form` of the output is "text" or "json".
    """
    if isinstance(config, Config):
        run = Run.load(workdir, cache, config)
        step = int(run.state.step)
        about = f"{step:,} steps of training{smoke_test(step)}"
        print(f"{workdir.path}: {about}", file=sys.stderr, flush=True)
        answer = run.predict
    else:
        released = Released(config, workdir.path)
        answer = partial(predictions, read=released.read, answer=released.answers)
    failed = 0
    for number, prediction in enumerate(chain.from_iterable(map(answer, groups)), start=1):
        if form == "json":
            error = {"error": prediction.error} if prediction.error else {}
            print(json.dumps({**prediction.details(), **error}, ensure_ascii=False), end="")
        for piece in prediction.text if form == "text" else ():
            print(piece, end="", flush=True)
        print(flush=True)
        if message := prediction.error or prediction.note:
            print(f"line {number}: {message}", file=sys.stderr, flush=True)
        failed += bool(prediction.error)
    return failed


def lines_as_they_come(stream: TextIO) -> Iterator[list[str]]:
    """Yield all lines that have arrived since the last time, so that they are answered together.

    A terminal shows a prompt. Bytes that are no UTF-8 become U+FFFD, and a byte order mark at the
    beginning is left out.
    """
    if stream.isatty():
        print("one input per line; end with Ctrl-D")
    rest, mark, ended = b"", codecs.BOM_UTF8, False
    while not ended:
        if stream.isatty():
            print("> ", end="", flush=True)
        received = stream.buffer.read1(2**16)  # as many bytes as a pipe holds
        ended = not received
        *lines, rest = (rest + received).split(b"\n")
        if ended and rest:
            lines = [rest]  # the last line may lack its end
        if lines:
            lines[0], mark = lines[0].removeprefix(mark), b""
            yield [line.removesuffix(b"\r").decode(errors="replace") for line in lines]


class Released:
    """A released model, which continues a line, or translates it with an encoder-decoder."""

    def __init__(self, config: ConfigDict, folder: Path) -> None:
        """Load the model; raise a UsageError if it cannot be read, or generates no text."""
        decoding = build(PretrainedPart, config.decoding.to_dict(), "decoding.")
        self._model, self._tokenizer, settings = _load(folder)
        if decoding.strategy == "auto":
            strategy = "sample" if self._model.is_prompted else "greedy"
            decoding = replace(decoding, strategy=strategy)
        self._options = _options(decoding, settings, self._model)

    def read(self, line: str) -> tuple[str, list[int]]:
        """Return a line with its ids, or raise a ValueError."""
        model, ids = self._model, self._tokenizer.encode(line)
        if not line.strip():
            raise ValueError("the line is empty")
        size = model.vocab_size if model.is_prompted else model.input_vocab_size
        if max(ids) >= size:
            raise ValueError(
                f"the tokenizer has token {max(ids)}, and the vocabulary of the model {size} tokens"
            )
        max_tokens = self._options["max_tokens"]
        longest = model.max_input_length(max_tokens)
        if longest is not None and len(ids) > longest:
            raise ValueError(
                f"{len(ids)} tokens are more than the {max(0, longest)} that the model reads with "
                f"--config.decoding.max_tokens={max_tokens}"
            )
        return line, ids

    def answers(self, inputs: Sequence[tuple[str, list[int]]]) -> Iterator[Prediction]:
        """Continue or translate each line."""
        model, tokenizer = self._model, self._tokenizer
        for line, ids in inputs:
            decoder = Continuation(tokenizer, tuple(ids)) if model.is_prompted else tokenizer
            answer = continuation(line, model, ids, self._options | {"tokenizer": decoder})
            text = answer.text if model.is_prompted else islice(answer.text, 1, None)
            yield answer._replace(text=text)


def _load(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Return model, tokenizer, and config.json with what generation_config.json replaces."""
    try:
        from attention.weights import load, load_tokenizer
        from attention.weights.files import read_json
    except ModuleNotFoundError as error:
        raise UsageError(
            'reading weights needs an extra: pip install "attention-jax[weights]"'
        ) from error
    path = folder / "generation_config.json"
    try:
        model = load(folder, scan=False)
        if not hasattr(model, "prefill"):
            raise ValueError(f"{folder} contains a {type(model).__name__}, which generates no text")
        tokenizer, fields = load_tokenizer(folder), read_json(path) if path.is_file() else {}
    except (ValueError, FileNotFoundError) as error:
        raise UsageError(str(error)) from error
    own = {name: value for name, value in fields.items() if value is not None}
    return model, tokenizer, {**model.source.settings, **own}


def _options(
    decoding: PretrainedPart,
    settings: dict[str, Any],
    model: Any,  # noqa: ANN401 - any model
) -> dict[str, Any]:
    """Return arguments of `generate`; the tokens with a meaning are those of the checkpoint."""
    size = model.vocab_size
    longest = None if model.is_prompted else model.target_embedding.num_positions
    if longest is not None and decoding.max_tokens > longest:
        raise UsageError(
            f"--config.decoding.max_tokens={decoding.max_tokens} is more than the {longest} tokens "
            "that the model can write"
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
    options = sampling(decoding) | {"stop": stop, "buckets": BUCKETS}
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
