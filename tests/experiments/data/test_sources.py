"""Properties of every data source, and of single ones."""

import csv

import numpy as np
import pytest

from experiments.config.data import TextPart
from experiments.data.copy import CopyData
from experiments.data.digits import DigitsData
from experiments.data.pairs import SentencePair
from experiments.data.source import Source
from experiments.data.sources import store_split
from experiments.errors import UsageError
from experiments.registry import DATASETS
from tests.experiments.data.corpora import changed, data_part, learn, load_split
from tests.experiments.data.prepared import NAME, prepare

FEW = {"train": "train", "validation": "few", "test": "few"}
DATA = {
    "toy": {
        "sizes": {"train": 1_000, "validation": 20, "test": 20, "compositional": 20, "longer": 20},
    },
    "reverse": {
        "numbers": 50, "longest_train": 25, "longest_test": 30,
        "sizes": {"train": 1_000, "validation": 70, "test": 70, "in_range": 70, "longer": 70},
    },
    "copy": {
        "shortest": 10, "longest": 30, "sizes": {"train": 200, "validation": 70, "test": 70},
    },
    "planted_cue": {
        "cues": 4, "words": 9, "shortest": 5, "longest": 8,
        "sizes": {"train": 180, "validation": 70, "test": 70},
    },
    "scan": {"split": "simple", "validation": 3},
    "denoising": {
        "passes": 2, "noise": ("permute", "infill"),
        "rates": {"mask": 0.15, "delete": 0.15, "infill": 0.3, "permute": 1.0},
        "sizes": {"train": 1_000, "validation": 20, "test": 20},
    },
    "summary": {
        "shortest": 4, "longest": 8, "sizes": {"train": 1_000, "validation": 70, "test": 70},
    },
    "parallel": {"files": FEW},
    "csv": {"files": FEW, "source": "en", "target": "de"},
    "tfds": {"dataset": NAME, "splits": FEW},
}  # fmt: skip
PAIRS = sorted(name for name, each in DATASETS.items() if "pairs" in each.contains)
SUBWORDS = TextPart(size=300)
APART = TextPart(size=300, joint=False)
OF_OTHERS = {"parallel", "csv", "tfds"}  # files decide what is in a split
# Words of the source and actions of the target of each command of a small SCAN.
ENGLISH = ["a dog runs .", "two dogs run", "the dog  ran"]  # two blanks
GERMAN = ["ein Hund rennt .", "zwei Hunde rennen", "der Hund rannte über Äcker"]
NUMBERS = [(1, 1), (2, 2), (3, 2), (4, 3), (5, 25), (6, 23), (7, 22), (8, 26), (9, 28)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return a cache folder with the toy language and small external datasets."""
    path = tmp_path_factory.mktemp("cache")
    lines = [
        f"IN: {' '.join(['go'] * words)} OUT: {' '.join(['I_GO'] * actions)}"
        for words, actions in NUMBERS
    ]
    for split in ("simple", "length"):
        (path / f"{split}_train.txt").write_text("\n".join(lines[:6]) + "\n")
        (path / f"{split}_test.txt").write_text("\n".join(lines[6:]) + "\n")
    for name, number in (("train", 3), ("few", 2)):
        for language, words in (("en", ENGLISH), ("de", GERMAN)):
            (path / f"{name}.{language}").write_text("\n".join(words[:number]) + "\n")
        with (path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("de", "en"), *zip(GERMAN[:number], ENGLISH, strict=False)])
    pairs = [*zip(ENGLISH, GERMAN, strict=True)]
    prepare(path, {"train": pairs, "few": pairs[:2]})
    return path


@pytest.fixture
def data(cache):
    """Return a function that makes the smallest `config.data` of a source, with changes."""

    def make(source: str, **changes: object) -> object:
        config = data_part(source, DATA[source])
        here = {"path": str(cache)} if hasattr(config, "path") else {}
        return changed(config, here | changes)

    return make


@pytest.fixture
def load(data, cache):
    """Return a function that loads all splits of a source."""

    def load(name: str, **changes: object) -> dict[str, list[SentencePair]]:
        config = data(name, **changes)
        return {split: load_split(config, split, cache) for split in DATASETS[name].source.splits}

    return load


def test_every_source_is_tested():
    assert sorted(DATA) == PAIRS


@pytest.mark.parametrize("name", PAIRS)
def test_train_tokens_cover_every_split_and_decode_to_the_text(name, load, data, cache):
    splits = load(name)
    tokenizers = learn(DATASETS[name].source.text, SUBWORDS, splits["train"], cache)
    is_shared = tokenizers.source == tokenizers.target
    assert is_shared == (SUBWORDS.joint if name in OF_OTHERS else data(name).is_shared)
    for pairs in splits.values():
        for pair in pairs:
            encoded = tokenizers.encode(pair)
            assert tokenizers.target.decode(encoded.target) == pair.target
            assert encoded.source


@pytest.mark.parametrize("name", sorted({*PAIRS} - OF_OTHERS))
def test_split_depends_on_seed_and_name_only(name, load):
    first, other = load(name), load(name, seed=1)
    assert first == load(name)
    assert first["train"] != other["train"]
    assert len({tuple(sorted(pairs)) for pairs in first.values()}) == len(first)


@pytest.mark.parametrize("name", sorted({*PAIRS} - OF_OTHERS - {"reverse"}))
def test_test_splits_share_no_example_with_train(name, load):
    splits = load(name)
    learned = {pair.source for pair in splits["train"]}
    for split, pairs in splits.items():
        assert split == "train" or learned.isdisjoint(pair.source for pair in pairs)


@pytest.mark.parametrize("name", ["toy", "reverse", "copy", "planted_cue", "summary"])
def test_split_sizes(name, load):
    assert {split: len(pairs) for split, pairs in load(name).items()} == DATA[name]["sizes"]


@pytest.mark.parametrize(
    "name, changes, words",
    [
        ("reverse", {"sizes.train": 999}, "data.sizes.train must be at least 1000, got 999"),
        ("reverse", {"sizes.longer": 0}, "data.sizes.longer must be at least 1, got 0"),
        ("reverse", {"seed": -1}, "data.seed must be at least 0, got -1"),
        ("copy", {"longest": 9}, "data.longest must be at least 10, got 9"),
        ("copy", {"sizes.train": 199}, "data.sizes.train must be at least 200, got 199"),
        ("planted_cue", {"longest": 4}, "data.longest must be at least 5, got 4"),
        ("planted_cue", {"words": 10}, "data.sizes.train must be at least 200, got 180"),
        ("scan", {"split": "lenght"}, "got 'lenght'; did you mean 'length'?"),
        ("scan", {"path": "no/scan"}, "no/scan has no file simple_train.txt: name its folder by "),
        ("scan", {"validation": 6}, "data.validation must be less than the 6 commands that there"),
        ("scan", {"split": "length", "cutoff": 28}, "data.cutoff=28 leaves nothing to test"),
        ("scan", {"validation_from": 2}, "must be from 0 to 0, the cutoff with split"),
        ("scan", {"split": "length", "validation_from": 23}, "must be from 0 to 22, the cutoff wi"),
        ("scan", {"split": "length", "validation_from": 1}, "data.validation_from=1 leaves not"),
        ("denoising", {"rates.mask": 1.5}, "data.rates.mask must be in [0, 1], got 1.5"),
        ("denoising", {"sizes.test": 1}, "data.sizes.test must be at least 2, got 1"),
        ("summary", {"longest": 3}, "data.longest must be at least 4, got 3"),
    ],
)
def test_usage_error(name, changes, words, data, cache):
    with pytest.raises((UsageError, ValueError)) as refused:
        load_split(data(name, **changes), "train", cache)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_unknown_split_raises(data, cache):
    with pytest.raises(ValueError, match="got 'tets'; did you mean 'test'"):
        store_split(data("copy"), "tets", cache)


@pytest.mark.parametrize("name", ["scan", "parallel"])
def test_tokenizers_are_saved_once_and_loaded(name, tmp_path, load, cache):
    text, pairs = DATASETS[name].source.text, load(name)["train"]
    tokenizers = learn(text, APART, pairs, cache)
    tokenizers.keep(tmp_path)
    tokenizers.keep(tmp_path)
    assert text.load(tmp_path) == tokenizers
    assert {path.name for path in tmp_path.iterdir()} == {
        tokenizers.source.FILE.format(side=side) for side in ("source", "target")
    }
    with pytest.raises(UsageError, match="holds other words than the data"):
        tokenizers._replace(source=tokenizers.target).keep(tmp_path)
    file = tmp_path / tokenizers.source.FILE.format(side="source")
    file.write_bytes(b"spoiled")
    with pytest.raises(UsageError, match="cannot be read"):
        text.load(tmp_path)


def test_reverse_task(load):
    splits = load("reverse")
    lengths = {name: {len(pair.source.split()) for pair in split} for name, split in splits.items()}
    assert lengths["train"] == {*range(1, 26)}
    assert max(lengths["validation"]) == max(lengths["test"]) == 30
    assert min(lengths["test"]) < 10
    assert max(lengths["in_range"]) == 25
    assert lengths["longer"] == {*range(26, 31)}
    for pair in splits["test"]:
        assert pair.target.split()[::-1] == pair.source.split()
    assert {*" ".join(pair.source for pair in splits["train"]).split()} == {*map(str, range(50))}


def test_copy_task(load):
    pairs = load("copy")["train"]
    assert all(pair.source == pair.target for pair in pairs)
    assert {len(pair.source.split()) for pair in pairs} == {*range(10, 31)}
    assert {*" ".join(pair.source for pair in pairs).split()} == {*"0123456789"}


def test_planted_cue(load):
    pairs = load("planted_cue")["train"]
    for pair in pairs:
        words, ((place, target),) = pair.source.split(), pair.alignment
        assert pair.target == words[place].replace("c", "t") and target == 0
        assert [word[0] for word in words].count("c") == 1
    assert {len(pair.source.split()) for pair in pairs} == {*range(5, 9)}
    assert {pair.alignment[0][0] for pair in pairs} == {*range(8)}


def commands(pairs):
    return sorted(len(pair.source.split()) for pair in pairs)


def test_scan_splits_follow_its_files_with_validation_from_train(load):
    splits = load("scan")
    assert commands(splits["train"] + splits["validation"]) == [1, 2, 3, 4, 5, 6]
    assert len(splits["validation"]) == 3
    assert commands(splits["test"]) == [7, 8, 9]
    assert splits["test"][0] == SentencePair(" ".join(["go"] * 7), " ".join(["I_GO"] * 22))


@pytest.mark.parametrize("cutoff, tested", [(22, [5, 6, 8, 9]), (26, [9])])
def test_scan_by_length_has_its_own_split(load, cutoff, tested):
    splits = load("scan", split="length", cutoff=cutoff)
    assert commands(splits["test"]) == tested
    everything = splits["train"] + splits["validation"] + splits["test"]
    assert commands(everything) == [*range(1, 10)]


def test_scan_validation_has_the_longest_commands_up_to_the_cutoff(load):
    splits = load("scan", split="length", cutoff=23, validation_from=22)
    assert commands(splits["validation"]) == [6, 7]  # 23 and 22 actions
    assert commands(splits["train"]) == [1, 2, 3, 4]
    assert commands(splits["test"]) == [5, 8, 9]


def test_invalid_scan_line_raises(data, tmp_path):
    for part in ("train", "test"):
        (tmp_path / f"simple_{part}.txt").write_text("IN: jump OUT: I_JUMP\nIN: jump I_JUMP\n")
    with pytest.raises(ValueError, match=r"simple_train.txt, line 2: 'IN: ... OUT: ...' expected"):
        load_split(data("scan", path=str(tmp_path)), "train", None)


@pytest.mark.parametrize("split, sizes", [("simple", (16_228, 4_182)), ("length", (16_490, 3_920))])
def test_real_scan_has_the_published_sizes(load, real_data, split, sizes, cache):
    splits = load("scan", path=str(real_data("scan")), split=split, cutoff=22, validation=500)
    assert (len(splits["train"]), len(splits["test"])) == sizes
    tokenizers = learn(DATASETS["scan"].source.text, None, splits["train"], cache)
    assert (len(tokenizers.source), len(tokenizers.target)) == (3 + 13, 3 + 6)
    shortest = min(len(pair.target.split()) for pair in splits["test"])
    assert shortest == (24 if split == "length" else 1)


def test_documents_contain_every_sentence_once_in_alphabetical_order(load, data, cache):
    config = data("denoising", noise=())
    splits = {split: load_split(config, split, cache) for split in ("train", "validation")}
    for split, passes in (("train", 2), ("validation", 1)):
        documents = [pair.target.split(" ; ") for pair in splits[split]]
        assert {len(document) for document in documents} <= {2, 3, 4}
        assert all(document == sorted(document) for document in documents)
        sentences = sorted(sentence for document in documents for sentence in document)
        assert len(sentences) == passes * len({*sentences}) == passes * getattr(config.sizes, split)
        assert all(pair.source == pair.target for pair in splits[split])


def test_noise_differs_between_epochs(load):
    pairs = load("denoising")["train"]
    assert sum("<mask>" in pair.source for pair in pairs) > 0.95 * len(pairs)
    assert not any("<mask>" in pair.target for pair in pairs)
    assert len({pair.source for pair in pairs}) == len(pairs)


@pytest.mark.parametrize("config", [CopyData(), DigitsData()])
def test_a_class_may_be_a_number(config, tmp_path, monkeypatch):
    is_image = config.name == "digits"
    source = np.zeros((2, 2, 1)) if is_image else "a"
    examples = [SentencePair(source, target) for target in (3, np.int64(4), "5")]
    own = Source(lambda *_: examples, has_images=is_image)
    monkeypatch.setitem(SOURCES._own, config.name, own)
    stored = store_split(config, "train", tmp_path)
    assert [pair.target for pair in stored] == ["3", "4", "5"]
    assert stored.fingerprint


@pytest.mark.parametrize("values", [np.uint8([0, 255]), np.float32([-1, 1])])
def test_images_of_another_range_raise(values, tmp_path, monkeypatch):
    examples = [SentencePair(values.reshape(2, 1, 1), "a")]
    own = Source(lambda *_: examples, has_images=True)
    monkeypatch.setitem(SOURCES._own, "digits", own)
    low, high = values
    with pytest.raises(ValueError, match=f"=digits must have values from 0 .* got {low} to {high}"):
        store_split(DigitsData(), "train", tmp_path)
