"""Generated datasets, and SCAN: their splits, tokens and tasks."""

import re
from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from experiments.data import digits
from experiments.data.denoising import MASK, documents, infill, permute
from experiments.data.digits import DigitsData
from experiments.data.sentiment import LONGER_SCOPES, LONGEST, SCOPES, WORDS
from experiments.data.summary import CIRCUMSTANCES, PERSONS
from experiments.errors import UsageError
from experiments.registry import DATASETS
from tests.experiments.data.corpora import changed, data_part, learn, load_split

TOKENS = [f"w{i}" for i in range(1_009)]
SIZES = {
    "toy": {"train": 1_000, "validation": 20, "test": 20, "compositional": 20, "longer": 20},
    "reverse": {"train": 1_000, "validation": 70, "test": 70, "in_range": 70, "longer": 70},
    "copy": {"train": 200, "validation": 70, "test": 70},
    "scan": {},
    "denoising": {"train": 1_000, "validation": 20, "test": 20},
    "summary": {"train": 1_000, "validation": 70, "test": 70},
    "sentiment": {"train": 6_000, "validation": 100, "test": 1_000, "longer": 500},
}
NEGATORS = ("not", "never", "no", "nobody", "hardly")
BORDERS = (",", "and", "but", "because", "although")
# Words of the source and actions of the target of each command of a small SCAN.
NUMBERS = [(1, 1), (2, 2), (3, 2), (4, 3), (5, 25), (6, 23), (7, 22), (8, 26), (9, 28)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return a cache folder with a small SCAN."""
    path = tmp_path_factory.mktemp("cache")
    lines = [f"IN: {'go ' * words}OUT: {'I_GO ' * actions}" for words, actions in NUMBERS]
    for split in ("simple", "length"):
        (path / f"{split}_train.txt").write_text("\n".join(lines[:6]) + "\n")
        (path / f"{split}_test.txt").write_text("\n".join(lines[6:]) + "\n")
    return path


@pytest.fixture
def load(cache):
    """Return a function that loads all splits of the smallest form of a dataset, with changes."""

    def load(name, **changes):
        tree = {"path": str(cache), "validation": 3} if name == "scan" else {"sizes": SIZES[name]}
        config = changed(data_part(name, tree), changes)
        splits = ("train", "validation", *DATASETS[name].source.tests)
        return {split: load_split(config, split, cache) for split in splits}

    return load


@pytest.mark.parametrize("name", SIZES)
def test_split_depends_on_seed_and_name_and_train_has_every_token(name, load, cache):
    splits = load(name)
    if name not in ("scan", "denoising"):
        assert {split: len(pairs) for split, pairs in splits.items()} == SIZES[name]
    assert splits == load(name)
    assert splits["train"] != load(name, seed=1)["train"]
    assert len({tuple(sorted(pairs)) for pairs in splits.values()}) == len(splits)
    learned = {pair.source for pair in splits["train"]}
    tokenizers = learn(DATASETS[name].source.text, None, splits["train"], cache)
    assert (tokenizers.source == tokenizers.target) == DATASETS[name].config.is_shared
    for split, pairs in splits.items():
        for pair in pairs:
            encoded = tokenizers.encode(pair)
            assert encoded.source and tokenizers.target.decode(encoded.target) == pair.target
            # Short sequences may be in several splits.
            assert split == "train" or name == "reverse" or pair.source not in learned


@pytest.mark.parametrize(
    "name, changes, words",
    [
        ("reverse", {"sizes.train": 999}, "data.sizes.train must be at least 1000, got 999"),
        ("copy", {"sizes.train": 199}, "data.sizes.train must be at least 200, got 199"),
        ("scan", {"split": "lenght"}, "got 'lenght'; did you mean 'length'?"),
        ("scan", {"path": "no/scan"}, "no/scan has no file simple_train.txt: name a folder"),
        ("scan", {"validation": 6}, "data.validation=6 and data.validation_from=0 leave a split"),
        ("denoising", {"rates.infill": 1.5}, "data.rates.infill must be in [0, 1], got 1.5"),
        ("denoising", {"sizes.test": 1}, "data.sizes.test must be at least 2, got 1"),
    ],
)
def test_usage_error(name, changes, words, load):
    with pytest.raises((UsageError, ValueError), match=re.escape(words)):
        load(name, **changes)


def test_copy_and_reverse_tasks(load):
    pairs = load("copy")["train"]
    assert all(pair.source == pair.target for pair in pairs)
    assert {len(pair.source.split()) for pair in pairs} == {*range(10, 31)}
    splits = load("reverse")
    lengths = {name: {len(pair.source.split()) for pair in split} for name, split in splits.items()}
    assert lengths["train"] == {*range(1, 26)}
    assert max(lengths["validation"]) == max(lengths["test"]) == 30
    assert min(lengths["test"]) < 10
    assert max(lengths["in_range"]) == 25
    assert lengths["longer"] == {*range(26, 31)}
    for pair in splits["test"]:
        assert pair.target.split()[::-1] == pair.source.split()


@pytest.mark.parametrize(
    "changes, validation, test",
    [
        ({"split": "simple"}, None, [7, 8, 9]),
        ({"split": "length"}, None, [5, 6, 8, 9]),
        ({"split": "length", "cutoff": 26}, None, [9]),
        # The longest commands up to the cutoff, of 23 and 22 actions.
        ({"split": "length", "cutoff": 23, "validation_from": 22}, [6, 7], [5, 8, 9]),
    ],
)
def test_scan_splits(load, changes, validation, test):
    splits = {
        name: sorted(len(pair.source.split()) for pair in pairs)
        for name, pairs in load("scan", **changes).items()
    }
    assert splits["test"] == test
    assert splits["validation"] == validation or (not validation and len(splits["validation"]) == 3)
    assert sorted(number for split in splits.values() for number in split) == [*range(1, 10)]


def test_invalid_scan_line_raises(load, tmp_path):
    for part in ("train", "test"):
        (tmp_path / f"simple_{part}.txt").write_text("IN: jump OUT: I_JUMP\nIN: jump I_JUMP\n")
    with pytest.raises(ValueError, match=r"simple_train.txt, line 2: 'IN: ... OUT: ...' expected"):
        load("scan", path=str(tmp_path))


def test_noise_differs_between_epochs(load):
    pairs = load("denoising")["train"]
    assert sum("<mask>" in pair.source for pair in pairs) > 0.95 * len(pairs)
    assert len({pair.source for pair in pairs}) == len(pairs)


def test_infill_replaces_its_share_in_spans_of_poisson_length():
    masks, lengths = 0, []
    for seed in range(40):
        noised = infill(TOKENS, np.random.default_rng(seed), 0.3)
        kept = [token for token in noised if token != MASK]
        rest = iter(TOKENS)
        assert all(token in rest for token in kept)  # in their order
        assert len(TOKENS) - len(kept) == round(0.3 * len(TOKENS))
        masks += len(noised) - len(kept)
        for left, middle, right in zip(noised, noised[1:], noised[2:], strict=False):
            if middle == MASK and MASK not in (left, right):  # one span
                lengths.append(TOKENS.index(right) - TOKENS.index(left) - 1)
    assert 40 * 0.3 * len(TOKENS) / masks == pytest.approx(3, rel=0.05)
    # A single mask replaces a Poisson(3) number of tokens; 0: it is inserted.
    for length, probability in enumerate([0.0498, 0.1494, 0.2240, 0.2240, 0.1680, 0.1008]):
        assert lengths.count(length) / len(lengths) == pytest.approx(probability, rel=0.25)
    assert infill(TOKENS, np.random.default_rng(0), 0.0) == TOKENS


def test_permute_moves_whole_sentences():
    tokens = ["a", "b", ";", "c", ";", "d", "e", "f"]
    permuted = {" ".join(permute(tokens, np.random.default_rng(seed), 1.0)) for seed in range(60)}
    assert permuted == {" ; ".join(order) for order in permutations(["a b", "c", "d e f"])}
    assert permute(tokens, np.random.default_rng(0), 0.0) == tokens


@pytest.mark.parametrize("number", [2, 3, 5, 100, 101])
def test_documents_contain_every_sentence_once_in_alphabetical_order(number):
    sentences = [f"w{i}" for i in range(number)]
    texts = [text.split(" ; ") for text in documents(sentences, np.random.default_rng(0))]
    assert sorted(sentence for text in texts for sentence in text) == sorted(sentences)
    assert all(2 <= len(text) <= 4 and text == sorted(text) for text in texts)


def test_summary_lists_the_actions_of_the_most_active_person_in_order(load):
    pattern = re.compile(rf"(\w+) (.+?)(?: (?:{'|'.join(CIRCUMSTANCES)}))?")
    first = other = 0
    pairs = load("summary")["train"]
    for document, summary, _ in pairs:
        actions = [pattern.fullmatch(sentence).groups() for sentence in document.split(" ; ")]
        assert 3 <= len(actions) <= 5
        (person, most), *others = Counter(person for person, _ in actions).most_common()
        assert all(number < most for _, number in others)
        expected = [*dict.fromkeys(action for who, action in actions if who == person)]
        name, told = summary.split(" ", 1)
        assert (name, re.split(" , | and ", told)) == (person, expected)
        assert summary not in document.split(" ; ")
        first += actions[0][0] == person
        ((most_named, _),) = Counter(re.findall("|".join(PERSONS), document)).most_common(1)
        other += most_named != person
    # The person is often not the first, and not the one who is named most.
    assert first < 0.75 * len(pairs) and other > 20


def opinions(text):
    """Yield whether each opinion praises, and counts, and its distances from its negators."""
    negators, counts = [], True
    text = re.sub(", which [^,]* ,", "aside", text)  # counts as one word
    for place, word in enumerate(text.split()):
        if word in BORDERS:
            negators, counts = [], word != "although"
        elif word in NEGATORS:
            negators.append(place)
        elif word in WORDS["praise"] + WORDS["blame"]:
            praises = (word in WORDS["praise"]) != len(negators) % 2
            yield praises, counts, [place - negator for negator in negators]


def test_sentiment_follows_the_rule_with_longer_scopes_in_split_longer(load):
    for name, pairs in load("sentiment").items():
        distances = set()
        for text, label, _ in pairs:
            found = [*opinions(text)]
            assert ["blame", "praise"][
                [praises for praises, counts, _ in found if counts][-1]
            ] == label
            distances.update(*(each for *_, each in found))
        assert distances <= {*(LONGER_SCOPES if name == "longer" else SCOPES)}
        assert max(distances) - min(distances) >= 8
        assert Counter(pair.target for pair in pairs)["praise"] == len(pairs) / 2
        assert len({pair.source for pair in pairs}) == len(pairs)
        assert max(len(pair.source.split()) for pair in pairs) <= LONGEST


@pytest.mark.parametrize("longest", [1, 2], ids=["words", "bigrams"])
def test_bag_of_words_does_not_predict_the_sentiment(load, longest):
    from sklearn.feature_extraction.text import CountVectorizer  # imported here: it takes a second
    from sklearn.linear_model import LogisticRegression

    splits = load("sentiment")
    texts, labels, _ = zip(*splits["train"], strict=True)
    count = CountVectorizer(token_pattern=r"\S+", ngram_range=(1, longest))
    model = LogisticRegression(max_iter=500, C=0.1).fit(count.fit_transform(texts), labels)
    for name in ("test", "longer"):
        texts, labels, _ = zip(*splits[name], strict=True)
        assert model.score(count.transform(texts), labels) <= 0.65


def test_every_image_is_in_one_split_with_its_label():
    from sklearn.datasets import load_digits  # takes a second, in each worker

    splits = {split: [*digits.load(DigitsData(), split, None)] for split in digits.SIZES}
    assert {split: len(examples) for split, examples in splits.items()} == digits.SIZES
    examples = [example for split in splits.values() for example in split]
    images = np.stack([example.source for example in examples])
    assert (images.shape[1:], images.dtype) == ((8, 8, 1), np.float32)
    assert (images.min(), images.max()) == (0, 1)
    ours = [(*(16 * pair.source.ravel()), int(pair.target)) for pair in examples]
    theirs = zip(*load_digits(return_X_y=True), strict=True)
    assert sorted(ours) == sorted((*pixels, label) for pixels, label in theirs)
    other = [*digits.load(DigitsData(seed=1), "test", None)]
    assert [pair.target for pair in other] != [pair.target for pair in splits["test"]]
