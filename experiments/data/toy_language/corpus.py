"""Splits of the corpus: distinct sentences, held-out combinations, longer sentences."""

import random
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from experiments.config.build import option
from experiments.config.data import SMALLEST_TRAIN, Sizes
from experiments.data.tokenizers import SentencePair, tokenize
from experiments.data.toy_language.sentences import Derivation, derive

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
_IN_FAMOUS = (
    ("adjective", "fluffy", "creature"), ("adjective", "blue", "creature"),
    ("adjective", "verdant", "forest"), ("object", "roam", "forest"),
    ("subject", "creature", "roam"), ("place", "object", "Africa"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ToySizes(Sizes):
    """Sentences of each split of the toy language."""

    train: int = option(40_000, least=SMALLEST_TRAIN)
    compositional: int = option(1_000, least=1)
    longer: int = option(500, least=1)


def is_held_out(combination: tuple[str, str, str], seed: int) -> bool:
    """Return whether train contains no sentence with this combination, for this seed."""
    if combination in _IN_FAMOUS:
        return False
    return zlib.crc32(f"{seed} {' '.join(combination)}".encode()) % HELD_OUT_ONE_IN == 0


def derivations(seed: int) -> Iterator[Derivation]:
    """Yield derivations without end; they may repeat."""
    rng = random.Random(seed)
    while True:
        yield derive(rng)


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
    """Return all splits, without duplicates; train has every word at least 20 times.

    A smaller train has them less often, in proportion.

    Args:
        seed: equal seeds give equal pairs in equal order.
        sizes: number of pairs of each split.

    Returns:
        The pairs of train, validation, test, compositional and longer.
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
    if min(english, french) < SHORTEST or max(english, french) > LONGEST_OF_ALL:
        return None
    if english > LONGEST:
        return None if is_compositional else "longer"
    if french > LONGEST:
        return None
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
