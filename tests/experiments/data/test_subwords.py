"""Subwords restore a text exactly; BPE dropout has a rate and resumes exactly."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.config.parts import SUBWORDS, TextPart
from experiments.data.subwords import PairDropout, SubwordDropout, Subwords
from experiments.data.tokenizers import SentencePair
from experiments.errors import UsageError
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


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_any_size_fits_a_text(kind, tmp_path):
    """There are at most `size` subwords, but one for each character."""
    ideographs = [chr(number) for number in range(0x4E00, 0x4E00 + 9_000)]
    chinese = ["".join(ideographs[start : start + 180]) for start in range(0, 9_000, 180)]
    for texts in (["a"] * 50, chinese, [pair.source for pair in PAIRS]):
        for size in (0, 262, 8_000):
            settings = TextPart(kind=kind, size=size)
            pairs = [SentencePair(text, text) for text in texts]
            tokens = learn(Subwords(), settings, pairs, tmp_path).source
            letters = {" "}.union(*texts)
            assert 260 + len(letters) <= len(tokens) <= max(260 + len(letters), size or 8_000)
            assert tokens.decode(tokens.encode(texts[-1])) == texts[-1]


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
    # A segmentation that is too long is replaced by the usual one.
    redrawn = PairDropout(tokenizers, 0.5, most=(25, 23))(PAIRS, plain, np.random.default_rng(0))
    assert (redrawn.lengths <= (25, 23)).all()
    kept = [new is old for new, old in zip(redrawn, plain, strict=True)]
    assert any(kept) and not all(kept)


def test_words_of_subwords(tokenizers):
    tokenizer, text = tokenizers.source, " a_b naïve▁犬  over "
    ids = tokenizer.encode(text)
    parts: dict[int, list[int]] = {}
    for number, word in zip(ids, tokenizer.word_numbers(ids), strict=True):
        parts.setdefault(word, []).append(number)
    words = [tokenizer.decode(parts[word]).strip() for word in sorted(parts)]
    assert [*filter(None, words)] == tokenizer.words(text)
