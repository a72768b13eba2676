from experiments.data.examples import SentencePair, fingerprint
from experiments.data.store import store_text


def test_fingerprint_depends_on_every_line():
    texts = ["a", "b"], ["a"], ["b", "a"], ["ab"], []
    assert len({*map(fingerprint, texts)}) == len(texts)
    assert fingerprint(iter("ab")) == fingerprint(["a", "b"])


def test_fingerprint_of_pairs_depends_on_both_sides(tmp_path):
    def found(pairs):
        return store_text(tmp_path, lambda: pairs).fingerprint

    pairs = [SentencePair("a", "b"), SentencePair("c", "d")]
    others = [pairs[::-1], [SentencePair("a", "x"), pairs[1]], [SentencePair("x", "b"), pairs[1]]]
    assert len({*map(found, (pairs, *others))}) == 4
    again = [SentencePair("a", "b", "0-0"), SentencePair("c", "d")]  # links are no text
    assert found(again) == found(pairs)
