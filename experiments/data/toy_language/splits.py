"""Splits of the corpus: distinct sentences, held-out combinations, longer sentences."""

import random
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from experiments.config.build import option
from experiments.config.data import SMALLEST_TRAIN, Sizes
from experiments.data.tokenizers import tokenize
from experiments.data.toy_language.grammar import Derivation, derive, famous
from experiments.data.toy_language.phrase import Pair

SHORTEST, LONGEST, LONGEST_OF_ALL = 3, 20, 32
# One combination in 25 is held out for the compositional split.
HELD_OUT_ONE_IN = 25
FAMOUS = tuple(pair.en for pair in famous())
# Combinations in the famous sentences are never held out.
_ALWAYS_SEEN = frozenset({
    ("adjective", "fluffy", "creature"), ("adjective", "blue", "creature"),
    ("adjective", "verdant", "forest"), ("object", "roam", "forest"),
    ("subject", "creature", "roam"), ("place", "object", "Africa"),
})  # fmt: skip


def least_count(sizes: "ToySizes") -> int:
    """Return the least number of occurrences in train of each word: 20 at the default size."""
    return max(1, sizes.train // 2_000)


def is_held_out(combination: tuple[str, str, str], seed: int) -> bool:
    """Return whether train contains no sentence with this combination, for this seed."""
    if combination in _ALWAYS_SEEN:
        return False
    return zlib.crc32(f"{seed} {' '.join(combination)}".encode()) % HELD_OUT_ONE_IN == 0


def derivations(seed: int) -> Iterator[Derivation]:
    """Yield derivations without end; they may repeat."""
    rng = random.Random(seed)
    while True:
        yield derive(rng)


def sample(seed: int, n: int) -> Iterator[Pair]:
    """Yield the first n distinct pairs for a seed, of any length and combination."""
    seen: set[str] = set()
    for derivation in derivations(seed):
        if len(seen) == n:
            return
        if derivation.pair.en not in seen:
            seen.add(derivation.pair.en)
            yield derivation.pair


def _split_of(derivation: Derivation, seed: int) -> str | None:
    """Return the pool of a sentence; None if it suits no split."""
    pair = derivation.pair
    english, french = len(pair.en.split()), len(tokenize(pair.fr))
    if min(english, french) < SHORTEST or max(english, french) > LONGEST_OF_ALL:
        return None
    unseen = any(is_held_out(combination, seed) for combination in derivation.combinations)
    if english > LONGEST:
        return None if unseen else "longer"
    if french > LONGEST:
        return None
    return "compositional" if unseen else "familiar"


def corpus(seed: int = 0, sizes: "ToySizes | None" = None) -> dict[str, list[Pair]]:
    """Return all splits, without duplicates; train has every word at least `least_count` times.

    Args:
        seed: equal seeds give equal pairs in equal order.
        sizes: number of pairs of each split.

    Returns:
        The pairs of train, validation, test, compositional and longer.
    """
    sizes = sizes or ToySizes()
    least = least_count(sizes)
    wanted = {
        "familiar": sizes.train + sizes.validation + sizes.test,
        "compositional": sizes.compositional,
        "longer": sizes.longer,
    }
    pools: dict[str, list[Pair]] = {name: [] for name in wanted}
    stream, seen, rare = derivations(seed), set(FAMOUS), set()
    while True:
        _fill(pools, wanted, stream, seed, seen, rare)
        test, validation, train = _deal(pools["familiar"], sizes)
        counts = Counter(word for pair in train for word in pair.forms)
        used = {word for pairs in pools.values() for pair in pairs for word in pair.forms}
        newly_rare = {word for word in used if counts[word] < least}
        if not newly_rare:
            break
        rare |= newly_rare
        pools = {name: _without(pairs, rare) for name, pairs in pools.items()}
    return {
        "train": train,
        "validation": validation,
        "test": (_attested(famous(), counts, least) + test)[: sizes.test],
        "compositional": pools["compositional"],
        "longer": pools["longer"],
    }


def _fill(
    pools: dict[str, list[Pair]],
    wanted: dict[str, int],
    stream: Iterator[Derivation],
    seed: int,
    seen: set[str],
    rare: set[str],
) -> None:
    """Draw sentences until every pool is full."""
    while any(len(pools[name]) < wanted[name] for name in wanted):
        derivation = next(stream)
        name = _split_of(derivation, seed)
        pair = derivation.pair
        if name is None or pair.en in seen or len(pools[name]) == wanted[name]:
            continue
        if rare.isdisjoint(pair.forms):
            seen.add(pair.en)
            pools[name].append(pair)


def _deal(pairs: list[Pair], sizes: "ToySizes") -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Shuffle the pairs and split them into test, validation and train.

    Without the shuffle, later splits would contain less probable sentences: a late sentence is
    kept only if it was not drawn before.
    """
    pairs = pairs.copy()
    random.Random(len(pairs)).shuffle(pairs)
    first, second = sizes.test, sizes.test + sizes.validation
    return pairs[:first], pairs[first:second], pairs[second : second + sizes.train]


def _attested(pairs: Iterable[Pair], counts: Counter[str], least: int) -> list[Pair]:
    """Return the pairs in which every word occurs at least `least` times in train."""
    return [pair for pair in pairs if all(counts[word] >= least for word in pair.forms)]


def _without(pairs: list[Pair], words: set[str]) -> list[Pair]:
    return [pair for pair in pairs if words.isdisjoint(pair.forms)]


@dataclass(frozen=True, kw_only=True)
class ToySizes(Sizes):
    """Sentences of each split of the toy language."""

    train: int = option(40_000, least=SMALLEST_TRAIN)
    compositional: int = option(1_000, least=1)
    longer: int = option(500, least=1)
