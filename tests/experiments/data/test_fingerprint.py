from experiments.data.fingerprint import fingerprint, of_splits
from experiments.data.pairs import SentencePair


def test_fingerprint_depends_on_every_line():
    texts = ["a", "b"], ["a"], ["b", "a"], ["ab"], []
    assert len({*map(fingerprint, texts)}) == len(texts)
    assert fingerprint(iter("ab")) == fingerprint(["a", "b"])


def test_fingerprint_of_pairs_depends_on_both_sides():
    pairs = [SentencePair("a", "b"), SentencePair("c", "d")]
    others = [pairs[::-1], [SentencePair("a", "x"), pairs[1]], [SentencePair("x", "b"), pairs[1]]]
    found = of_splits({"0": pairs, **{str(n): other for n, other in enumerate(others, start=1)}})
    assert [*found] == ["0", "1", "2", "3"] and len({*found.values()}) == 4
    again = [
        SentencePair("a", "b", "0-0"),
        SentencePair("c", "d"),
    ]  # links are not part of the text
    assert of_splits({"test": again}) == {"test": found["0"]}
