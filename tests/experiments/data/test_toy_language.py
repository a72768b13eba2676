"""The whole corpus: its properties, splits and files."""

import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from experiments.data.tokenizers import detokenize, tokenize
from experiments.data.toy_language import Pair, corpus, prepare, sample
from experiments.data.toy_language import builder as builder_module
from experiments.data.toy_language.entries import SENSES
from experiments.data.toy_language.morphology import english_plural, french_plural
from experiments.data.toy_language.splits import (
    FAMOUS,
    LONGEST,
    ToySizes,
    derivations,
    is_held_out,
)

TINY = ToySizes(train=1_000, validation=20, test=20, compositional=20, longer=20)


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Pair]]:
    """Return the corpus of the default size."""
    return corpus(seed=0)


@pytest.fixture(scope="module")
def tiny() -> dict[str, list[Pair]]:
    """Return a small corpus."""
    return corpus(0, TINY)


@pytest.fixture
def generated_once(tiny: dict[str, list[Pair]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare the small corpus in place of others, because generating one takes long."""
    monkeypatch.setattr(builder_module, "corpus", lambda *_: tiny)


@pytest.fixture(scope="module")
def pairs(splits: dict[str, list[Pair]]) -> list[Pair]:
    """Return all pairs of the corpus."""
    return [pair for split in splits.values() for pair in split]


def _forms(pairs: list[Pair], side: str) -> Counter[str]:
    return Counter(word for pair in pairs for word in tokenize(getattr(pair, side)))


def test_sizes(splits: dict[str, list[Pair]]) -> None:
    sizes = {name: len(split) for name, split in splits.items()}
    assert sizes == {
        "train": 40_000, "validation": 1_000, "test": 1_000, "compositional": 1_000, "longer": 500,
    }  # fmt: skip


def test_no_sentence_repeats(pairs: list[Pair]) -> None:
    assert len({pair.en for pair in pairs}) == len(pairs)


def test_translation_is_a_function() -> None:
    french: dict[str, str] = {}
    for derivation in islice(derivations(seed=7), 20_000):
        pair = derivation.pair
        assert french.setdefault(pair.en, pair.fr) == pair.fr


def test_equal_seeds_give_equal_pairs(tiny: dict[str, list[Pair]]) -> None:
    assert corpus(0, TINY) == tiny != corpus(4, TINY)
    assert list(sample(3, 50)) == list(sample(3, 50))


def test_pairs_do_not_depend_on_the_hash_seed(tiny: dict[str, list[Pair]]) -> None:
    """Those of this process, in which it is random, equal those of another one."""
    script = (
        "from tests.experiments.data.test_toy_language import TINY, corpus;"
        "print(hash(tuple(ord(c) for c in repr(corpus(0, TINY)))))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONHASHSEED": "1"}, check=True,
        capture_output=True, cwd=Path(__file__).parents[3],
    ).stdout  # fmt: skip
    assert int(said) == hash(tuple(ord(c) for c in repr(tiny)))


def test_vocabulary(splits: dict[str, list[Pair]]) -> None:
    assert len(_forms(splits["train"], "en")) >= 250
    assert len({noun.english for noun in SENSES}) >= 8


@pytest.mark.parametrize("side", ["en", "fr"])
def test_every_word_is_frequent_in_train(
    splits: dict[str, list[Pair]], pairs: list[Pair], side: str
) -> None:
    train = _forms(splits["train"], side)
    assert min(train[word] for word in _forms(pairs, side)) >= 20


def test_lengths(splits: dict[str, list[Pair]]) -> None:
    for name, split in splits.items():
        for pair in split:
            english, french = len(tokenize(pair.en)), len(tokenize(pair.fr))
            assert min(english, french) >= 3
            assert english > LONGEST if name == "longer" else max(english, french) <= LONGEST


def test_held_out_combinations_are_only_in_compositional(
    splits: dict[str, list[Pair]],
) -> None:
    where = {pair.en: name for name, split in splits.items() for pair in split}
    found = Counter()
    for derivation in islice(derivations(seed=0), 10_000):
        name = where.get(derivation.pair.en)
        unseen = [c for c in derivation.combinations if is_held_out(c, seed=0)]
        if name:
            assert bool(unseen) == (name == "compositional"), derivation.pair.en
        if name == "compositional":
            found.update(kind for kind, _, _ in unseen)
    assert found.keys() >= {"adjective", "object", "subject", "place", "pronoun"}


def test_alignment_is_in_range_and_covers_content(pairs: list[Pair]) -> None:
    for pair in pairs:
        english, french = tokenize(pair.en), tokenize(pair.fr)
        assert len(set(pair.alignment)) == len(pair.alignment)
        assert all(0 <= i < len(english) and 0 <= j < len(french) for i, j in pair.alignment)
        unaligned = {french[j] for j in set(range(len(french))) - {j for _, j in pair.alignment}}
        # Only French has these words: la France, l'Afrique, et between adjectives, jouer au.
        assert unaligned <= {"le", "la", "l'", "les", "et", "de", "du", "à", "au", "aux"}, pair


def test_detokenize_inverts_tokenize(pairs: list[Pair]) -> None:
    for pair in pairs:
        assert detokenize(tokenize(pair.en)) == pair.en
        assert detokenize(tokenize(pair.fr)) == pair.fr


_VOWEL = "[aeiouéèêâîôœ]"


@pytest.mark.parametrize(
    "wrong",
    [
        rf"\b(le|la|de|ne|je|me|que|ma|sa|ce) {_VOWEL}",
        r"\b(le|la|de|ne|ma|sa|ce) h(omme|ôtel|ôpital|istoire|irondelle|onnête|istorien|orloge)",
        r"\bd[eu] les\b", r"\bde le (?!\w+er\b)", r"\bà les?\b",
        r"\b(bel|vieil|nouvel|cet) [bcdfgjklmnpqrstvwxz]",
        r"\b(beau|vieux|nouveau|ce) (homme|hôtel|hôpital|oiseau|aigle|ami|avion|éléphant)\b",
        r"\w' ", r"  ", r"[A-ZÀ]'", r"[.,;!?]",
        r"\bl'(hibou|hérisson)", r"\b(un|une|des|du) .* de les\b",
    ],
)  # fmt: skip
def test_french_never_contains(pairs: list[Pair], wrong: str) -> None:
    pattern = re.compile(wrong)
    assert [pair.fr for pair in pairs if pattern.search(pair.fr)] == []


def test_famous_sentences_are_in_the_test_split(splits: dict[str, list[Pair]]) -> None:
    assert {pair.en for pair in splits["test"]} >= set(FAMOUS)


def test_cues_and_translation_agree_on_one_sense(pairs: list[Pair]) -> None:
    checked = Counter()
    for pair in pairs:
        english, french = set(pair.en.replace("in spring", "").split()), set(tokenize(pair.fr))
        for word in {noun.english for noun in SENSES}:
            if not english & {word, english_plural(word)}:
                continue
            spoken_for = [
                noun for noun in SENSES if noun.english == word
                and any(english & {cue, english_plural(cue)} for cue in noun.sense.cues)
            ]  # fmt: skip
            assert len(spoken_for) == 1, pair
            noun = spoken_for[0]
            assert french & {noun.french, french_plural(noun.french)}, pair
            checked[noun.french] += 1
    assert min(checked[noun.french] for noun in SENSES) >= 50


def test_builder_round_trip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: dict[str, list[Pair]]
) -> None:
    builder = prepare(tmp_path, sizes=TINY)
    assert capsys.readouterr().out == ""
    for name, expected in tiny.items():
        source = builder.as_data_source(split=name)
        read = {
            Pair(
                row["en"].decode(), row["fr"].decode(),
                tuple(
                    tuple(int(k) for k in link.split("-"))
                    for link in row["alignment"].decode().split()
                ),
            )
            for row in (source[i] for i in range(len(source)))
        }  # fmt: skip
        assert read == set(expected)


@pytest.mark.usefixtures("generated_once")
def test_each_corpus_is_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(tmp_path, sizes=TINY)
    other = prepare(tmp_path, sizes=TINY, seed=1)
    assert first.data_dir != other.data_dir
    monkeypatch.setattr(builder_module, "corpus", None)  # a second call would fail
    assert prepare(tmp_path, sizes=TINY).data_dir == first.data_dir


@pytest.mark.usefixtures("generated_once")
def test_interrupted_preparation_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: object, pairs: list[Pair]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(builder_module.ToyTranslation, "_generate_examples", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path, sizes=TINY)
    assert len(prepare(tmp_path, sizes=TINY).as_data_source(split="train")) == TINY.train


def test_dataset_that_another_process_generates_meanwhile(tmp_path, monkeypatch, tiny):
    others = [lambda: prepare(tmp_path, sizes=TINY)]

    def generate(*_):
        if others:
            others.pop()()
        return tiny

    monkeypatch.setattr(builder_module, "corpus", generate)
    found = prepare(tmp_path, sizes=TINY)
    assert not others and len(found.as_data_source(split="train")) == TINY.train
