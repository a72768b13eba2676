"""Running text, character by character: a file, or sentences of the toy language, one a line."""

from collections.abc import Iterator
from pathlib import Path

from experiments.config.data import CharactersData
from experiments.data.pairs import SentencePair
from experiments.data.sequences.draw import generator
from experiments.data.source import Source
from experiments.data.tokenizers import Characters
from experiments.data.toy_language import sample

CHUNK = 65_536  # characters of an example
CUTS = {"train": (0.0, 0.9), "validation": (0.9, 0.95), "test": (0.95, 1.0)}


def load(config: CharactersData, split: str, cache: Path) -> Iterator[SentencePair]:
    """A part of the text, in chunks: its beginning is for training, its end for tests.

    Raises:
        ValueError: a file that cannot be read.
    """
    del cache
    text = load_text(config)
    start, end = (int(len(text) * share) for share in CUTS[split])
    for place in range(start, end, CHUNK):
        yield SentencePair(text[place : min(place + CHUNK, end)], "")


def load_text(config: CharactersData) -> str:
    """The whole text.

    Raises:
        ValueError: a file that cannot be read.
    """
    if config.path:
        return _read(config.path)
    sentences = [pair.en for pair in sample(config.seed, config.sentences)]
    # Likely sentences are drawn first: without a shuffle the end would differ from the beginning.
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


SOURCE = Source(load, text=Characters(), is_running=True)
