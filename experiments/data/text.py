"""Text, character by character: what a language model of letters reads and says."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.config.data import CharactersData
from experiments.data.epoch import Epoch
from experiments.data.sequences.draw import generator
from experiments.data.toy_language import sample
from experiments.errors import UsageError

TRAIN_SHARE = 0.9


def load_text(config: CharactersData) -> str:
    """The text of a file, or of sentences of the toy language, one a line.

    Args:
        config: path of a file; if that is "", seed and number of the sentences.

    Raises:
        ValueError: a file that cannot be read.
    """
    if config.path:
        return _read(config.path)
    sentences = [pair.en for pair in sample(config.seed, config.sentences)]
    # The likelier a sentence, the sooner it is said: without a shuffle the end would be unlike.
    return "\n".join(generator(config.seed, "text").permutation(sentences).tolist()) + "\n"


def _read(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(
            f"data.path={path} is not there: name a text file, or '' for ours"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"data.path={path} cannot be read as UTF-8 text: {error}") from None
    if not text:
        raise ValueError(f"data.path={path} is empty")
    return text


def split_text(text: str) -> tuple[str, str]:
    """Its beginning, nine tenths of it, to train on, and its end to validate with."""
    cut = int(len(text) * TRAIN_SHARE)
    return text[:cut], text[cut:]


@dataclass(frozen=True)
class Characters:
    """The characters of a text; the id of each is its place.

    Attributes:
        characters: each once.
    """

    characters: str

    def __post_init__(self) -> None:
        """Refuses what could not be read back."""
        if len({*self.characters}) != len(self.characters):
            raise ValueError("a list of characters names each once")

    @classmethod
    def of(cls, text: str) -> "Characters":
        """All characters of a text, in the order of Unicode."""
        return cls("".join(sorted({*text})))

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each character."""
        return {character: number for number, character in enumerate(self.characters)}

    def __len__(self) -> int:
        """The number of characters."""
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, `[T]`.

        Raises:
            ValueError: a character that is not one of these.
        """
        try:
            return np.array([self.ids[character] for character in text], np.int32)
        except KeyError as error:
            raise ValueError(
                f"the character {error.args[0]!r} is not in the text that was learned"
            ) from None

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids `[T]`."""
        return "".join(self.characters[number] for number in ids)

    def as_text(self) -> str:
        """One line of JSON, in which a line break is not one."""
        return json.dumps(self.characters, ensure_ascii=False) + "\n"

    @classmethod
    def from_text(cls, text: str) -> "Characters":
        """Reads what `as_text` wrote."""
        return cls(json.loads(text))


class TextBatch(NamedTuple):
    """Windows of a text, all `[B, T]`.

    Attributes:
        inputs: ids.
        labels: ids, what comes next.
        counted: bool, the labels that a loss counts.
    """

    inputs: np.ndarray
    labels: np.ndarray
    counted: np.ndarray


class RandomWindows:
    """The batch of each training step: windows that begin anywhere.

    Batch i follows from (seed, i) alone, which is what makes a run resume exactly.
    """

    def __init__(
        self, ids: np.ndarray, *, context: int, size: int, num_batches: int, seed: int
    ) -> None:
        """Makes a sequence of batches.

        Args:
            ids: of the text, `[characters]`.
            context: T, the ids of a window.
            size: B, the windows of a batch.
            num_batches: how many there are.
            seed: of the places.

        Raises:
            UsageError: a text shorter than a window and what comes next.
        """
        _check_context(ids, context)
        self._ids = ids
        self._context = context
        self._size = size
        self._num_batches = num_batches
        self._seed = seed

    @property
    def epoch(self) -> Epoch:
        """As many windows as the text is long; where they begin is drawn."""
        tokens = len(self._ids) - 1
        windows = -(-tokens // self._context)
        return Epoch(-(-windows // self._size), examples=windows, tokens=tokens)

    def __len__(self) -> int:
        """The number of batches."""
        return self._num_batches

    def __getitem__(self, index: int) -> TextBatch:
        """The batch of one training step."""
        random = np.random.default_rng((self._seed, index))
        starts = random.integers(len(self._ids) - self._context, size=self._size)
        return _windows(self._ids, starts, self._context)


def fixed_windows(ids: np.ndarray, *, context: int, size: int) -> list[TextBatch]:
    """Batches of one shape that count every label of a text once: all ids but the first.

    Windows follow one another. The last one begins early enough to end with the text, and counts
    only what none counted before; a last batch with too few windows repeats it, and counts nothing.

    Args:
        ids: of the text, `[characters]`.
        context: T, the ids of a window.
        size: B, the windows of a batch.

    Raises:
        UsageError: a text shorter than a window and what comes next.
    """
    _check_context(ids, context)
    last = len(ids) - 1 - context
    wanted = np.arange(0, len(ids) - 1, context)
    wanted = np.append(wanted, np.full(-len(wanted) % size, len(ids)))
    batches = []
    for begins in wanted.reshape(-1, size):
        starts = np.minimum(begins, last)
        places = starts[:, None] + np.arange(context)
        windows = _windows(ids, starts, context)
        batches.append(windows._replace(counted=places >= begins[:, None]))
    return batches


def _check_context(ids: np.ndarray, context: int) -> None:
    if len(ids) <= context:
        raise UsageError(
            f"batch.row_length={context} needs a text of at least {context + 1} characters, "
            f"got {len(ids)}"
        )


def _windows(ids: np.ndarray, starts: np.ndarray, context: int) -> TextBatch:
    places = starts[:, None] + np.arange(context)
    inputs, labels = ids[places], ids[places + 1]
    return TextBatch(inputs, labels, np.ones_like(labels, bool))
