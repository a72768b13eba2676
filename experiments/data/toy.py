"""The toy language, English to French: generated once, and stored by TFDS.

Hardly any word can be translated by itself: adjectives are reordered, determiners and participles
agree over long distances, articles elide and contract, object pronouns precede the verb, negation
has two parts around it, and the sense of polysemous words (bank, bat, key ...) depends on another
word. Every English sentence has exactly one translation, and every pair has its word alignment.

Version 2.0.0 added the words and constructions of the usual sentences of attention tutorials, such
as "I went to the bank to deposit money": purposes, compound nouns, postures, meals, companies and
sentences with a word in two senses. In version 2.1.0, I, we and you have attributes (I was tired),
and only one person is the object of a verb. Version 2.2.0 added questions (who am I). Data of other
versions are not read.
"""

import contextlib
import io
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from experiments.config.build import option
from experiments.config.parts import SMALLEST_TRAIN, RandomData, Sizes
from experiments.data.source import Source
from experiments.data.tokenizers import WORDS, SentencePair, Words, tokenize
from experiments.data.toy_language.sentences import derive
from experiments.registry import dataset

SHORTEST, LONGEST, LONGEST_OF_ALL = 3, 20, 32
# One combination in 25 is held out for the compositional split.
HELD_OUT_ONE_IN = 25
# Well-known examples, which are always in the test split; their combinations are never held out.
FAMOUS = (
    SentencePair("Jane visits Africa in September", "Jane visite l'Afrique en septembre",
                 "0-0 1-1 2-3 3-4 4-5"),
    SentencePair("a fluffy blue creature roamed the verdant forest",
                 "une créature bleue et duveteuse parcourait la forêt verdoyante",
                 "0-0 1-4 2-2 3-1 4-5 5-6 6-8 7-7"),
)  # fmt: skip
_NEVER_HELD_OUT = (
    ("adjective", "fluffy", "creature"), ("adjective", "blue", "creature"),
    ("adjective", "verdant", "forest"), ("object", "roam", "forest"),
    ("subject", "creature", "roam"), ("place", "object", "Africa"),
    # The classical sentences of docs/translation.md, which may be in any split.
    ("object", "deposit", "money"), ("subject", "cat", "sit"), ("place", "on", "mat"),
    ("object", "eat", "apple"), ("subject", "Apple", "release"), ("object", "release", "phone"),
    ("adjective", "new", "phone"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ToySizes(Sizes):
    """Sentences of each split of the toy language."""

    train: int = option(40_000, least=SMALLEST_TRAIN)
    compositional: int = option(1_000, least=1)
    longer: int = option(500, least=1)


def is_held_out(combination: tuple[str, str, str], seed: int) -> bool:
    """Return whether train contains no sentence with this combination, for this seed."""
    if combination in _NEVER_HELD_OUT:
        return False
    return zlib.crc32(f"{seed} {' '.join(combination)}".encode()) % HELD_OUT_ONE_IN == 0


def derivations(seed: int) -> Iterator[tuple[SentencePair, set[tuple[str, str, str]]]]:
    """Return results of `derive` without end; they may repeat."""
    return map(derive, repeat(random.Random(seed)))


def sample(seed: int, n: int) -> Iterator[SentencePair]:
    """Yield the first n distinct pairs for a seed, of any length and combination."""
    seen: set[str] = set()
    for pair, _ in derivations(seed):
        if len(seen) == n:
            return
        if pair.source not in seen:
            seen.add(pair.source)
            yield pair


def corpus(seed: int, sizes: ToySizes) -> dict[str, list[SentencePair]]:
    """Return the pairs of all splits, without duplicates; equal seeds give equal pairs in order.

    Train has every word at least 20 times; a smaller train has them less often, in proportion.
    """
    least = max(1, sizes.train // 2_000)
    familiar = sizes.train + sizes.validation + sizes.test
    wanted = dict(familiar=familiar, compositional=sizes.compositional, longer=sizes.longer)
    pools: dict[str, list[SentencePair]] = {name: [] for name in wanted}
    stream, seen, rare = derivations(seed), {pair.source for pair in FAMOUS}, set()
    while True:
        while any(len(pools[name]) < wanted[name] for name in wanted):
            pair, combinations = next(stream)
            name = _pool_of(pair, any(is_held_out(words, seed) for words in combinations))
            is_wanted = name and pair.source not in seen and len(pools[name]) < wanted[name]
            if is_wanted and rare.isdisjoint(_forms(pair)):
                seen.add(pair.source)
                pools[name].append(pair)
        train, validation, test = _deal(pools["familiar"], sizes)
        counts = Counter(word for pair in train for word in _forms(pair))
        used = {word for pairs in pools.values() for pair in pairs for word in _forms(pair)}
        newly_rare = {word for word in used if counts[word] < least}
        if not newly_rare:
            break
        rare |= newly_rare
        for name, pairs in pools.items():
            pools[name] = [pair for pair in pairs if rare.isdisjoint(_forms(pair))]
    famous = [pair for pair in FAMOUS if all(counts[word] >= least for word in _forms(pair))]
    del pools["familiar"]
    test = (famous + test)[: sizes.test]
    return {"train": train, "validation": validation, "test": test, **pools}


def _pool_of(pair: SentencePair, is_compositional: bool) -> str | None:
    """Return the pool of a sentence; None if it suits no split."""
    english, french = len(tokenize(pair.source)), len(tokenize(pair.target))
    if english < SHORTEST or max(english, french) > LONGEST_OF_ALL:
        return None
    if max(english, french) > LONGEST:
        return "longer" if english > LONGEST and not is_compositional else None
    return "compositional" if is_compositional else "familiar"


def _deal(pairs: list[SentencePair], sizes: ToySizes) -> tuple[list[SentencePair], ...]:
    """Shuffle the pairs and split them into train, validation and test.

    Without the shuffle, later splits would contain less probable sentences: a late sentence is
    kept only if it was not drawn before.
    """
    pairs = pairs.copy()
    random.Random(len(pairs)).shuffle(pairs)
    first, second = sizes.test, sizes.test + sizes.validation
    return pairs[second : second + sizes.train], pairs[first:second], pairs[:first]


def _forms(pair: SentencePair) -> list[str]:
    """Return the words of both sides, with a prefix for the language."""
    sides = (("en", pair.source), ("fr", pair.target))
    return [f"{language} {word}" for language, text in sides for word in tokenize(text)]


class ToyTranslation(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """English to French, generated offline."""

    VERSION = tfds.core.Version("2.2.0")

    def __init__(self, seed: int, sizes: ToySizes, data_dir: Path) -> None:
        """Take seed and sizes, which name a folder of the corpus inside `data_dir`."""
        self.seed, self.sizes = seed, sizes
        folder = data_dir / f"en_fr_seed{seed}_{'_'.join(map(str, astuple(sizes)))}"
        super().__init__(data_dir=str(folder), file_format="array_record")

    def _info(self) -> tfds.core.DatasetInfo:
        """Return the features of an example; the alignment is as in `SentencePair.links`."""
        text = tfds.features.Text
        features = {"en": text(), "fr": text(), "alignment": text()}
        return self.dataset_info_from_configs(
            description=__doc__, features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        """Return the five splits of one corpus; nothing is downloaded."""
        del dl_manager
        splits = corpus(self.seed, self.sizes)
        return {split: self._generate_examples(pairs) for split, pairs in splits.items()}

    def _generate_examples(self, pairs: list[SentencePair]) -> Iterator[tuple[int, dict[str, str]]]:
        for i, pair in enumerate(pairs):
            yield i, dict(zip(("en", "fr", "alignment"), pair, strict=True))


def prepare(data_dir: Path, seed: int, sizes: ToySizes) -> ToyTranslation:
    """Generate a corpus into a directory, unless it exists; return a builder that can read it.

    TFDS writes into a temporary directory and renames it at the end, so an interrupted preparation
    leaves no incomplete dataset, and several processes may prepare it at once.
    """
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints what it does
        builder = ToyTranslation(seed, sizes, data_dir)
        try:
            builder.download_and_prepare()
        except OSError:
            if not Path(builder.data_dir).exists():
                raise
            return ToyTranslation(seed, sizes, data_dir)  # another process has generated it
    return builder


def load_pairs(seed: int, sizes: ToySizes, split: str, cache: Path) -> list[SentencePair]:
    """Return a split of a toy language, which is generated the first time."""
    examples = prepare(cache / "data", seed, sizes).as_data_source(split=split)
    return [
        SentencePair(*(example[side].decode() for side in ("en", "fr", "alignment")))
        for example in examples.__getitems__(range(len(examples)))
    ]


SOURCE = Source(
    lambda config, split, cache: load_pairs(config.seed, config.sizes, split, cache),
    tests=("test", "compositional", "longer"),
    text=Words(WORDS),
    has_phenomena=True,
    name=lambda config: f"{config} {ToyTranslation.VERSION}",
)


@dataset(source=SOURCE, contains=("text", "pairs"))
@dataclass(frozen=True, kw_only=True)
class ToyData(RandomData):
    """The toy language, English and French."""

    name: str = "toy"
    sizes: ToySizes = field(default_factory=ToySizes)
