"""Subwords restore a text exactly; BPE dropout has a rate and resumes exactly."""

from collections import Counter

import jax
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from configs import multi30k
from experiments.config import Config
from experiments.config.data import SUBWORDS, TextPart
from experiments.data.source import Splits, store_text
from experiments.data.subwords import PairDropout, SubwordDropout, Subwords
from experiments.data.tokenizers import SentencePair
from experiments.errors import UsageError
from experiments.tasks.translation import Translation
from tests.experiments.data.corpora import learn

PAIRS = [
    SentencePair(f"{number} dogs run over the  meadow", f"{number} Hunde rennen über die Wiese")
    for number in ("two", "three", "seven", "ten", "no", "many", "some", "old", "the", "red")
]


def learned(pairs, size, cache, joint=True):
    return learn(Subwords(), TextPart(size=size, joint=joint), pairs, cache)


@pytest.fixture(scope="module", params=[True, False], ids=["joint", "separate"])
def tokenizers(tmp_path_factory, request):
    return learned(PAIRS, 300, tmp_path_factory.mktemp("cache"), request.param)


def test_rate_zero_equals_sentencepiece(tokenizers):
    segment = SubwordDropout(tokenizers.source, 0.0)
    random = np.random.default_rng(0)
    # Merges overlap here, so their order matters.
    texts = ["".join(random.choice([*" overthdgs"], 30)) for _ in range(100)]
    texts += ["", " ", "ten  dogs ", "naïve 犬", "<unk> <bos> <0x41>", "a▁\ufdd0b", PAIRS[0].source]
    for text in texts:
        assert segment(text, np.random.default_rng(0)) == tokenizers.source.encode(text)


@pytest.mark.parametrize("kind", SUBWORDS)
def test_decode_inverts_encode_for_every_kind_of_subwords(kind, tmp_path):
    pairs = [SentencePair("a dog", "ein Hund"), SentencePair("two  dogs", "zwei Käfer")] * 3
    settings = TextPart(kind=kind, size=269 if kind == "word" else 278)
    tokenizers = learn(Subwords(), settings, pairs, tmp_path)

    @example("ein  Hund ")
    @example("naïve 犬_▁ ▁")
    @example("<unk> </s> <0x41>")
    @example("\ufdd0\ufdd1\ufdd11▁\ufdd10")
    @given(st.text(st.characters(exclude_categories=("Cs",))))
    def decodes(text):
        assert tokenizers.target.decode(tokenizers.target.encode(text)) == text

    decodes()
    assert learn(Subwords(), settings, pairs, tmp_path / "elsewhere") == tokenizers  # to the byte


def test_subwords_are_learned_from_long_and_unusual_lines(tmp_path):
    settings = TextPart(kind="char", size=300)
    for line in ("Ω" * 5_000, "▅Ω"):
        tokens = learn(Subwords(), settings, [SentencePair("a b", line)], tmp_path).source
        assert tokens.encode("Ω") == tokens.encode("Ω" * 2)[:-1]  # one token, not bytes
        assert tokens.decode(tokens.encode("▅Ω a")) == "▅Ω a"


@pytest.mark.parametrize(
    ("size", "words"), [(10_000, r"10000 .*at most \d+$"), (262, r"262 .*at least \d+$")]
)
def test_number_of_subwords_that_a_text_does_not_have_raises(size, words, tmp_path):
    with pytest.raises(UsageError, match=f"text.size={words}"):
        learned(PAIRS, size, tmp_path)


def test_damaged_model_raises(tokenizers, tmp_path):
    tokenizers.keep(tmp_path)
    assert Subwords().load(tmp_path) == tokenizers
    (tmp_path / "subwords.source.model").write_bytes(b"spoiled")
    with pytest.raises(UsageError, match=r"subwords\.source\.model cannot be read"):
        Subwords().load(tmp_path)


def test_each_merge_is_dropped_with_the_given_rate(tmp_path):
    """The word needs two merges, and the second depends on the first."""
    tokenizer = learned([SentencePair("ab", "ab")] * 9, 3 + 1 + 256 + 3 + 2, tmp_path).source
    segment, random = SubwordDropout(tokenizer, 0.25), np.random.default_rng(0)
    tokens = [tuple(map(tokenizer.token, segment("ab", random))) for _ in range(4_000)]
    shares = {split: number / 4_000 for split, number in Counter(tokens).items()}
    assert shares == {
        ("_", "a", "b"): pytest.approx(0.25, abs=0.02),
        ("_", "ab"): pytest.approx(0.75 * 0.25, abs=0.02),
        ("_ab",): pytest.approx(0.75**2, abs=0.02),
    }


def test_segmentations_depend_on_the_generator_and_decode_to_the_same_text(tokenizers):
    segment = PairDropout(tokenizers, 0.3, most=(99, 99))
    plain = [tokenizers.encode(pair) for pair in PAIRS]
    first, again, other = (segment(PAIRS, plain, np.random.default_rng(i)) for i in (0, 0, 1))
    assert first == again != other
    assert first != plain
    for pair, encoded in zip(PAIRS, first, strict=True):
        assert tokenizers.source.decode(encoded.source) == pair.source
        assert tokenizers.target.decode(encoded.target) == pair.target


def test_too_long_segmentations_are_replaced_by_the_usual_one(tokenizers):
    plain = [tokenizers.encode(pair) for pair in PAIRS]
    redrawn = PairDropout(tokenizers, 0.5, most=(25, 23))(PAIRS, plain, np.random.default_rng(0))
    assert (redrawn.lengths <= (25, 23)).all()
    kept = [new is old for new, old in zip(redrawn, plain, strict=True)]
    assert any(kept) and not all(kept)


def test_epochs_resume_exactly_without_building_past_ones(tokenizers, tmp_path):
    config = multi30k.get_config("tiny")
    config.text.dropout = 0.2
    config.batch.tokens = 320
    config = Config.read(config.to_dict())
    splits = Splits(config.data, tmp_path)
    splits["train"] = store_text(tmp_path, lambda: PAIRS)
    batches, resumed = (
        Translation(config, tokenizers, splits).training_batches() for _ in range(2)
    )
    straight = [batches[step] for step in range(12)]
    for step in (11, 3):
        jax.tree.map(np.testing.assert_array_equal, resumed[step], straight[step])
    segmentations = Counter()
    for batch in straight:
        for row, segments in zip(batch.source.labels, batch.source.segments, strict=True):
            for segment in range(1, segments.max() + 1):
                ids = row[segments == segment]
                segmentations[tokenizers.source.decode(ids), (*ids.tolist(),)] += 1
    assert {text for text, _ in segmentations} == {pair.source for pair in PAIRS}
    assert len(segmentations) > 2 * len(PAIRS)


@pytest.mark.parametrize("text", ["ten  dogs run", " a_b naïve▁犬 over", "the dogs "])
def test_words_of_subwords(tokenizers, text):
    tokenizer = tokenizers.source
    ids = tokenizer.encode(text)
    parts: dict[int, list[int]] = {}
    for number, word in zip(ids, tokenizer.word_numbers(ids), strict=True):
        parts.setdefault(word, []).append(number)
    words = [tokenizer.decode(parts[word]).strip() for word in sorted(parts)]
    assert [*filter(None, words)] == tokenizer.words(text)
