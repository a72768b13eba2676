"""What a language model learns from, by name: windows of characters, or packed sentences."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.config import Config
from experiments.config.build import as_tree
from experiments.data.batching import Epochs, evaluation_batches
from experiments.data.fingerprint import fingerprint
from experiments.data.packing import PackedBatch, PackedRows
from experiments.data.sequences.toy import load_pairs
from experiments.data.text import (
    Characters,
    RandomWindows,
    fixed_windows,
    load_text,
    split_text,
)
from experiments.data.toy_language import Sizes
from experiments.data.vocabulary import BOS, EOS, Vocabulary

SPLITS = "train", "validation"
EVALUATED_ROWS = 256  # windows of a batch that is only measured


class Language(NamedTuple):
    """How text becomes ids and back.

    Attributes:
        vocabulary: of characters or words.
        respell: a character or word that is written otherwise than the vocabulary has it.
        tokenize: a text as characters or words.
        join: characters or words as a text.
        begin: the ids that stand before every text.
        end: the id that ends a text; -1 if none does.
    """

    vocabulary: Characters | Vocabulary
    respell: Callable[[str], str]
    tokenize: Callable[[str], Sequence[str]]
    join: Callable[[Sequence[str]], str]
    begin: tuple[int, ...]
    end: int

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text that goes on, `[T]`.

        Raises:
            ValueError: an empty text where nothing stands before it, or what nobody has learned.
        """
        ids = [*self.begin, *self.vocabulary.encode([*map(self.respell, self.tokenize(text))])]
        if not ids:
            raise ValueError("the prompt is empty")
        return np.array(ids, np.int32)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self.join(self.vocabulary.decode(ids))


class Corpus(NamedTuple):
    """A language and what is read of it.

    Attributes:
        language: its characters or words.
        train: the batch of each step, by `[step]`, and `epoch`, how much they are of.
        validation: batches that count every token once.
        padding: the share of the training positions that no token takes.
        texts: fingerprints of what is read, by split.
    """

    language: Language
    train: RandomWindows | Epochs[PackedBatch]
    validation: Sequence[object]
    padding: float
    texts: dict[str, str]


def language_of(kind: str, vocabulary: Characters | Vocabulary) -> Language:
    """The language of a vocabulary that was learned from a corpus of this kind."""
    if kind == "characters":
        return Language(vocabulary, str, list, "".join, (), -1)
    return Language(vocabulary, vocabulary.respell, str.split, " ".join, (BOS,), EOS)


def load_corpus(config: Config, cache: Path) -> Corpus:
    """The text that `config.data` names.

    Args:
        config: of the run.
        cache: where generated data is kept.

    Raises:
        ValueError: a text that cannot be read.
    """
    return CORPORA[config.data.name].load(config, cache)


def load_vocabulary(kind: str, text: str) -> Characters | Vocabulary:
    """Reads what `as_text` of the vocabulary of a corpus of this kind wrote."""
    return CORPORA[kind].vocabulary.from_text(text)


def _load_characters(config: Config, cache: Path) -> Corpus:
    del cache
    text, context = load_text(config.data), config.batch.row_length
    characters = Characters.of(text)
    parts = split_text(text)
    train, validation = map(characters.encode, parts)
    windows = RandomWindows(
        train,
        context=context,
        size=config.batch.tokens // context,
        num_batches=config.train.steps,
        seed=config.seed,
    )
    size = min(EVALUATED_ROWS, -(-len(validation) // context))
    measured = fixed_windows(validation, context=context, size=size)
    texts = {name: fingerprint([part]) for name, part in zip(SPLITS, parts, strict=True)}
    return Corpus(language_of("characters", characters), windows, measured, 0.0, texts)


def _load_sentences(config: Config, cache: Path) -> Corpus:
    sizes = Sizes(**as_tree(config.data.sizes))
    texts = {
        split: [pair.source.split() for pair in load_pairs(config.data.seed, sizes, split, cache)]
        for split in SPLITS
    }
    words = Vocabulary.of(texts["train"])
    train, validation = (
        PackedRows(
            [words.encode(sentence) for sentence in texts[split]],
            length=config.batch.row_length,
            tokens=config.batch.tokens,
        )
        for split in SPLITS
    )
    return Corpus(
        language_of("sentences", words),
        Epochs(train, num_batches=config.train.steps, seed=config.seed),
        [batch for _, batch in evaluation_batches(validation)],
        padding=train.padding,
        texts={split: fingerprint(map(" ".join, texts[split])) for split in SPLITS},
    )


class _Kind(NamedTuple):
    load: Callable[[Config, Path], Corpus]
    vocabulary: type[Characters] | type[Vocabulary]


CORPORA = {
    "characters": _Kind(_load_characters, Characters),
    "sentences": _Kind(_load_sentences, Vocabulary),
}
