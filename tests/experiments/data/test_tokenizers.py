"""Words, characters and subwords: ids, text, files, unknown words, and BPE dropout."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.config.parts import SUBWORDS, TextPart
from experiments.data.subwords import Subwords, subword_dropout
from experiments.data.tokenizers import (
    SPECIALS,
    UNKNOWN_CHARACTER,
    WORDS,
    Characters,
    CharacterTokenizer,
    EncodedExamples,
    SentencePair,
    Words,
    WordTokenizer,
    detokenize,
    segment_pairs,
    tokenize,
)
from experiments.errors import UsageError
from tests.experiments.data.corpora import learn

WORD = st.text("abcéœ-XY", min_size=1, max_size=6)
TOKEN = st.tuples(st.sampled_from(["", "l'", "qu'", "d'"]), WORD)
KNOWN = WordTokenizer((*SPECIALS, "the", "sat", "may", "May", "Jane", "<eos>"), WORDS)
PAIRS = [
    SentencePair(f"{number} dogs run over the  meadow", f"{number} Hunde rennen über die Wiese")
    for number in ("two", "three", "seven", "ten", "no", "many", "some", "old", "the", "red")
]


@given(st.lists(TOKEN, max_size=9))
def test_detokenize_inverts_tokenize(words):
    text = " ".join(elided + word for elided, word in words)
    assert detokenize(tokenize(text)) == text
    assert len(tokenize(text)) == sum(1 + bool(elided) for elided, _ in words)


def test_words_are_sorted_by_frequency_and_decoded_up_to_eos(tmp_path):
    pairs = [SentencePair(text) for text in ("the cat sat", "the dog sat", "the <eos>")]
    tokenizer = learn(Words(), None, pairs, tmp_path).source
    assert tokenizer.vocabulary == (*SPECIALS, "the", "sat", "<eos>", "cat", "dog")
    the, sat, eos = tokenizer.encode("the sat <eos>")
    assert tokenizer.decode([1, the, 0, sat, eos, 2, the]) == "the sat <eos>"


def test_word_known_in_another_case_is_respelt():
    words = ["jane", "JANE", "May", "may", "MAY", "teh", "<PAD>"]
    assert [*map(KNOWN.respell, words)] == ["Jane", "Jane", "May", "may", "may", "teh", "<PAD>"]
    assert KNOWN.decode(KNOWN.read("The may JANE. ")) == "the may Jane"


@pytest.mark.parametrize(
    ("read", "word", "sentence"),
    [
        (KNOWN.encode, "Jan", "word 'Jan' is not .*did you mean 'Jane'"),
        (KNOWN.encode, "<pad>", "the word '<pad>' is not in the vocabulary"),
        (CharacterTokenizer.of(["to"]).read, "tz", "the character 'z' is not in the text"),
    ],
)
def test_error_names_the_word(read, word, sentence):
    with pytest.raises(ValueError, match=sentence):
        read(word)


def test_characters_and_ids():
    characters = CharacterTokenizer.of(["to be\n", "or not"])
    assert characters.vocabulary == f"\n benort{UNKNOWN_CHARACTER}"
    assert characters.encode("bet\n") == characters.read("bet\n") == [2, 3, 7, 0]
    assert characters.decode([2, 3, 7, 0]) == "bet\n"
    assert characters.decode(characters.encode("bz,")) == f"b{UNKNOWN_CHARACTER * 2}"


TEXTS = {
    "words": (Words(), None),
    "shared words": (Words(WORDS, shared=True), None),
    "characters": (Characters(), None),
    "subwords": (Subwords(), TextPart(size=300, joint=False)),
    "shared subwords": (Subwords(), TextPart(size=300, joint=True)),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_tokenizers_are_saved_once_and_loaded(kind, tmp_path, tmp_path_factory):
    """Line separators of Unicode are characters, and parts of words."""
    pairs = [SentencePair("l'a b\u2028", "l'a b\r\u0085c")] * 2
    (text, config), workdir = TEXTS[kind], tmp_path / "workdir"
    workdir.mkdir()
    tokenizers = learn(text, config, pairs, tmp_path)
    for _ in range(2):  # in a cache of all kinds, to the byte
        assert learn(text, config, pairs, tmp_path_factory.getbasetemp()) == tokenizers
    assert (tokenizers.source == tokenizers.target) == ("shared" in kind)
    for _ in range(2):
        tokenizers.keep(workdir)
    assert text.load(workdir) == tokenizers
    assert text.load(workdir, (0,)) == tokenizers._replace(target=None)
    line = pairs[0].target
    words = " ".join(line.split()) if isinstance(text, Words) else line
    assert tokenizers.target.decode(tokenizers.encode(pairs[0]).target) == words
    with pytest.raises(UsageError, match="holds other words than the data"):
        learn(text, config, [SentencePair("x", "y")], tmp_path).keep(workdir)
    (workdir / text.FILE.format(side="source")).write_bytes(b"the")
    with pytest.raises(UsageError, match=r"source.* cannot be read"):
        text.load(workdir)


@pytest.fixture(scope="module", params=[True, False], ids=["joint", "separate"])
def subwords(tmp_path_factory, request):
    settings = TextPart(size=300, joint=request.param)
    return learn(Subwords(), settings, PAIRS, tmp_path_factory.mktemp("cache"))


def test_dropout_of_rate_zero_equals_sentencepiece(subwords):
    segment = subword_dropout(subwords.source, 0.0)
    random = np.random.default_rng(0)
    # Merges overlap here, so their order matters.
    texts = ["".join(random.choice([*" overthdgs"], 30)) for _ in range(100)]
    texts += ["", " ", "ten  dogs ", "naïve 犬", "<unk> <bos> <0x41>", "a▁\ufdd0b", PAIRS[0].source]
    for text in texts:
        assert segment(text, random) == subwords.source.encode(text)


@pytest.mark.parametrize("kind", SUBWORDS)
def test_decode_inverts_encode_for_every_kind_of_subwords(kind, tmp_path):
    pairs = [SentencePair("a dog", "ein Hund"), SentencePair("two  dogs", "zwei Käfer")] * 3
    settings = TextPart(kind=kind, size=269 if kind == "word" else 278)
    target = learn(Subwords(), settings, pairs, tmp_path).target

    @example("ein  Hund ")
    @example("naïve 犬_▁ ▁")
    @example("<unk> </s> <0x41>")
    @example("\ufdd0\ufdd1\ufdd11▁\ufdd10")
    @given(st.text(st.characters(exclude_categories=("Cs",))))
    def decodes(text):
        assert target.decode(target.encode(text)) == text

    decodes()


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


def test_each_merge_is_dropped_with_the_given_rate(tmp_path):
    """The word needs two merges, and the second depends on the first."""
    settings = TextPart(size=3 + 1 + 256 + 3 + 2)
    tokenizer = learn(Subwords(), settings, [SentencePair("ab", "ab")] * 9, tmp_path).source
    segment, random = subword_dropout(tokenizer, 0.25), np.random.default_rng(0)
    tokens = [tuple(map(tokenizer.token, segment("ab", random))) for _ in range(4_000)]
    shares = {split: number / 4_000 for split, number in Counter(tokens).items()}
    assert shares == {
        ("_", "a", "b"): pytest.approx(0.25, abs=0.02),
        ("_", "ab"): pytest.approx(0.75 * 0.25, abs=0.02),
        ("_ab",): pytest.approx(0.75**2, abs=0.02),
    }


def test_segmentations_depend_on_the_generator_and_decode_to_the_same_text(subwords):
    plain = EncodedExamples(map(subwords.encode, PAIRS))

    def segmented(rate, most, seed):
        segments = [subword_dropout(tokenizer, rate) for tokenizer in subwords]
        return segment_pairs(segments, PAIRS, plain, most, np.random.default_rng(seed))

    first, again, other = (segmented(0.3, (99, 99), seed) for seed in (0, 0, 1))
    assert first == again != other and first != plain
    for pair, encoded in zip(PAIRS, first, strict=True):
        assert subwords.source.decode(encoded.source) == pair.source
        assert subwords.target.decode(encoded.target) == pair.target
    # A segmentation that is too long is replaced by the usual one.
    redrawn = segmented(0.5, (25, 23), 0)
    assert (redrawn.lengths <= (25, 23)).all()
    assert {new is old for new, old in zip(redrawn, plain, strict=True)} == {True, False}


def test_words_of_subwords(subwords):
    tokenizer, text = subwords.source, " a_b naïve▁犬  over "
    ids = tokenizer.encode(text)
    parts: dict[int, list[int]] = {}
    for number, word in zip(ids, tokenizer.word_numbers(ids), strict=True):
        parts.setdefault(word, []).append(number)
    words = [tokenizer.decode(parts[word]).strip() for word in sorted(parts)]
    assert [*filter(None, words)] == tokenizer.words(text)
