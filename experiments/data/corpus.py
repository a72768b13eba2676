"""What a language model learns from, by name: windows of characters, or packed sentences."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from attention.primitives.choice import one_of
from experiments.data.fingerprint import fingerprint
from experiments.data.rows import PackedBatch
from experiments.data.sequences import toy
from experiments.data.store import store_ids
from experiments.data.text import (
    Characters,
    RandomWindows,
    check_text,
    fixed_windows,
    load_text,
    split_text,
)
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabulary import BOS, EOS, Vocabulary
from experiments.data.windows import PackedRows, Windows, once
from experiments.data.words import SPACED
from experiments.errors import check_at_least

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
        train: the batch of each step, by `[step]`, and `epoch`, how much text there is.
        validation: batches that count every token once.
        padding: the share of the training positions that no token takes.
        texts: fingerprints of what is read, by split.
    """

    language: Language
    train: RandomWindows | Windows[PackedBatch]
    validation: Sequence[object]
    padding: float
    texts: dict[str, str]


def language_of(kind: str, vocabulary: Characters | Vocabulary) -> Language:
    """The language of a vocabulary that was learned from a corpus of this kind."""
    if kind == "characters":
        return Language(vocabulary, str, list, "".join, (), -1)
    return Language(vocabulary, vocabulary.respell, str.split, " ".join, (BOS,), EOS)


def check_corpus(config: ConfigDict) -> None:
    """Checks that `config.data` asks for text that exists.

    Raises:
        ValueError: in one sentence.
    """
    one_of("data.name", config.name, tuple(CORPORA))
    check_at_least("data.context", config.context, 2)
    CORPORA[config.name].check(config)


def load_corpus(config: ConfigDict, cache: Path) -> Corpus:
    """The text that `config.data` names.

    Args:
        config: of the run: `data`, and of `train` steps and batch_tokens.
        cache: where generated data is kept.
    """
    return CORPORA[config.data.name].load(config, cache)


def load_vocabulary(kind: str, text: str) -> Characters | Vocabulary:
    """Reads what `as_text` of the vocabulary of a corpus of this kind wrote."""
    return CORPORA[kind].vocabulary.from_text(text)


def _load_characters(config: ConfigDict, cache: Path) -> Corpus:
    del cache
    text, context = load_text(config.data), config.data.context
    characters = Characters.of(text)
    parts = split_text(text)
    train, validation = map(characters.encode, parts)
    windows = RandomWindows(
        train,
        context=context,
        size=config.train.batch_tokens // context,
        seed=config.seed,
    )
    size = min(EVALUATED_ROWS, -(-len(validation) // context))
    measured = fixed_windows(validation, context=context, size=size)
    texts = {name: fingerprint([part]) for name, part in zip(SPLITS, parts, strict=True)}
    return Corpus(language_of("characters", characters), windows, measured, 0.0, texts)


def _load_sentences(config: ConfigDict, cache: Path) -> Corpus:
    texts = {split: toy.store(config.data, split, cache) for split in SPLITS}
    words = Vocabulary.of(pair.source.split() for pair in texts["train"])
    tokenizers = [WordTokenizer(words, SPACED)]
    train, validation = (store_ids(cache, texts[split], tokenizers) for split in SPLITS)
    rows = PackedRows([config.data.context], config.train.batch_tokens)
    windows = Windows(train, rows, seed=config.seed)
    return Corpus(
        language_of("sentences", words),
        windows,
        [batch for _, batch in once(validation, rows)],
        padding=windows.padding,
        texts={split: fingerprint(pair.source for pair in texts[split]) for split in SPLITS},
    )


class _Kind(NamedTuple):
    load: Callable[[ConfigDict, Path], Corpus]
    check: Callable[[ConfigDict], None]
    vocabulary: type[Characters] | type[Vocabulary]


CORPORA = {
    "characters": _Kind(_load_characters, check_text, Characters),
    "sentences": _Kind(_load_sentences, toy.check, Vocabulary),
}
