"""Generated datasets: their splits, tokens and tasks."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.data.digits import DigitsData
from experiments.data.source import Splits
from experiments.data.tokenizers import SentencePair
from experiments.errors import UsageError
from experiments.registry import DATASETS
from tests.experiments.data.corpora import changed, data_part, learn, load_split

DATA = {
    "toy": {
        "sizes": {"train": 1_000, "validation": 20, "test": 20, "compositional": 20, "longer": 20}
    },
    "reverse": {
        "sizes": {"train": 1_000, "validation": 70, "test": 70, "in_range": 70, "longer": 70}
    },
    "copy": {"sizes": {"train": 200, "validation": 70, "test": 70}},
    "scan": {"validation": 3},
    "denoising": {"passes": 2, "sizes": {"train": 1_000, "validation": 20, "test": 20}},
    "summary": {"sizes": {"train": 1_000, "validation": 70, "test": 70}},
}
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
        here = {"path": str(cache)} if name == "scan" else {}
        config = changed(data_part(name, DATA[name]), here | changes)
        return {split: load_split(config, split, cache) for split in DATASETS[name].source.splits}

    return load


@pytest.mark.parametrize("name", DATA)
def test_split_depends_on_seed_and_name_and_train_has_every_token(name, load, cache):
    splits = load(name)
    if name not in ("scan", "denoising"):
        assert {split: len(pairs) for split, pairs in splits.items()} == DATA[name]["sizes"]
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
        ("copy", {"longest": 9}, "data.longest must be at least 10, got 9"),
        ("copy", {"sizes.train": 199}, "data.sizes.train must be at least 200, got 199"),
        ("scan", {"split": "lenght"}, "got 'lenght'; did you mean 'length'?"),
        ("scan", {"path": "no/scan"}, "no/scan has no file simple_train.txt: name a folder"),
        ("scan", {"validation": 6}, "data.validation=6 and data.validation_from=0 leave a split"),
        ("scan", {"split": "length", "cutoff": 28}, "data.cutoff=28, data.validation=3 and"),
        ("scan", {"validation_from": 2}, "must be from 0 to 0, the cutoff with split"),
        ("denoising", {"rates.mask": 1.5}, "data.rates.mask must be in [0, 1], got 1.5"),
        ("denoising", {"sizes.test": 1}, "data.sizes.test must be at least 2, got 1"),
        ("summary", {"longest": 2}, "data.longest must be at least 3, got 2"),
    ],
)
def test_usage_error(name, changes, words, load):
    with pytest.raises((UsageError, ValueError)) as refused:
        load(name, **changes)
    assert words in str(refused.value)


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


def test_copy_task(load):
    pairs = load("copy")["train"]
    assert all(pair.source == pair.target for pair in pairs)
    assert {len(pair.source.split()) for pair in pairs} == {*range(10, 31)}


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


@pytest.mark.parametrize("split, sizes", [("simple", (16_228, 4_182)), ("length", (16_490, 3_920))])
def test_real_scan_has_the_published_sizes(load, real_data, split, sizes):
    splits = load("scan", path=str(real_data("scan")), split=split, validation=500)
    assert (len(splits["train"]), len(splits["test"])) == sizes


def test_noise_differs_between_epochs(load):
    pairs = load("denoising")["train"]
    assert sum("<mask>" in pair.source for pair in pairs) > 0.95 * len(pairs)
    assert len({pair.source for pair in pairs}) == len(pairs)


@pytest.mark.parametrize("config", [data_part("copy", {}), DigitsData()])
def test_a_class_may_be_a_number(config, tmp_path, monkeypatch):
    is_image = config.name == "digits"
    source = np.zeros((2, 2, 1)) if is_image else "a"
    replace_examples(monkeypatch, config.name, [SentencePair(source, i) for i in (3, np.int64(4))])
    assert [pair.target for pair in Splits(config, tmp_path)["train"]] == ["3", "4"]


@pytest.mark.parametrize("values", [np.uint8([0, 255]), np.float32([-1, 1])])
def test_images_of_another_range_raise(values, tmp_path, monkeypatch):
    replace_examples(monkeypatch, "digits", [SentencePair(values.reshape(2, 1, 1), "a")])
    low, high = values
    with pytest.raises(UsageError, match=f"=digits must have values from 0 .* got {low} to {high}"):
        Splits(DigitsData(), tmp_path)["train"]


def replace_examples(monkeypatch, name, examples):
    """Let a dataset return these examples."""
    entry = DATASETS[name]
    source = replace(entry.source, load=lambda *_: examples)
    monkeypatch.setitem(DATASETS, name, entry._replace(source=source))
