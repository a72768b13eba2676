"""A trained run is measured: all that tests, one split, text that moved, beside another run."""

import json
import shutil
from pathlib import Path

import pytest
from ml_collections import ConfigDict

import run
from experiments import translation
from experiments.cli import Command
from experiments.data.sources import load_split
from experiments.errors import UsageError
from experiments.evaluation.scores import paired_bootstrap
from experiments.workdir import Workdir
from tests.door.command import TINY

pytestmark = pytest.mark.usefixtures("trained")


@pytest.fixture
def read(monkeypatch):
    """The splits that are read, as they are."""
    names = []

    def noting(original):
        return lambda *a: names.append(a[1]) or original(*a)

    for function in ("load_split", "store_split"):
        monkeypatch.setattr(translation, function, noting(getattr(translation, function)))
    return names


def test_a_finished_run_is_measured_again_and_not_trained(place, knock, read):
    before = (place / "tiny" / "metrics.jsonl").read_text()
    status, output, _ = knock(*TINY)
    assert status == 0
    assert "exact match" in output
    assert (place / "tiny" / "metrics.jsonl").read_text() == before
    assert sorted(read) == ["compositional", "longer", "test", "train", "validation"]


def test_evaluate_needs_the_workdir_alone(own, knock, read):
    before = json.loads((own / "results.json").read_text())
    (own / "results.json").unlink()
    assert knock("--mode=evaluate", workdir=own)[0] == 0
    assert json.loads((own / "results.json").read_text()) == before
    assert sorted(read) == ["compositional", "longer", "test"]


def test_a_split_is_measured_beside_the_others(own, knock, read):
    results = own / "results.json"
    before = json.loads(results.read_text())
    picture = (own / "attention.png").stat().st_mtime_ns
    status, output, _ = knock("--mode=evaluate", "--split=longer", workdir=own)
    assert (status, json.loads(results.read_text()), read) == (0, before, ["longer"])
    assert (own / "attention.png").stat().st_mtime_ns == picture  # is of the test split
    assert not any(line.startswith("test ") for line in output.splitlines())
    assert knock("--mode=evaluate", "--split=validation", workdir=own)[0] == 0
    now = json.loads(results.read_text())
    scores = now["splits"].pop("validation")
    assert now == before
    hypotheses = (own / "hypotheses.validation.txt").read_text()
    assert len(hypotheses.splitlines()) == scores["sentences"]


@pytest.mark.parametrize("what", ["decoding", "step"])
def test_scores_of_what_was_measured_otherwise_are_left_out(own, knock, what):
    results = own / "results.json"
    before = results.read_text()
    if what == "step":
        results.write_text(json.dumps(json.loads(before) | {"step": 10}))
    otherwise = ["--config.decoding.length_penalty=0.5"] if what == "decoding" else []
    _, output, _ = knock("--mode=evaluate", "--split=longer", *otherwise, workdir=own)
    told = "scores of agreement, compositional, order, polysemy, test were measured otherwise"
    assert told in output
    assert [*json.loads(results.read_text())["splits"]] == ["longer"]


def test_how_many_are_translated_at_once_says_nothing_of_what_was_measured(own, knock):
    results = own / "results.json"
    before = results.read_text()
    knock("--mode=evaluate", "--split=longer", "--config.decoding.hypotheses=7", workdir=own)
    after = json.loads(results.read_text())
    assert after["splits"] == json.loads(before)["splits"]
    assert after["decoding"]["hypotheses"] == 7


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a', "Unterminated string"),
        ("[]", "it is []"),
        ('{"step": 7, "training_seconds": "long"}', "its training_seconds is 'long'"),
    ],
)
def test_damaged_results_are_told_before_anything_is_measured(own, knock, text, reason):
    results, said = own / "results.json", own / "hypotheses.longer.txt"
    written = said.stat().st_mtime_ns
    results.write_text(text)
    status, _, error = knock("--mode=evaluate", "--split=longer", workdir=own)
    assert (status, f"{results} cannot be read: {reason}" in error) == (2, True)
    assert said.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--mode=evaluate", "--split=longr"],
            "--split must be one of train, validation, test, compositional, longer, got 'longr'; "
            "did you mean 'longer'?",
        ),
        (["--split=test"], "--split is for --mode=evaluate alone, got --mode=train"),
    ],
)
def test_a_split_that_is_not_measured_is_refused(place, knock, arguments, sentence):
    before = (place / "tiny" / "results.json").read_text()
    assert knock(*arguments)[::2] == (2, f"run.py: {sentence}\n")
    assert (place / "tiny" / "results.json").read_text() == before


@pytest.mark.usefixtures("echoing")
def test_text_that_moved_is_found_again_and_no_other(place, knock, captions, tmp_path):
    here = Path(shutil.copytree(captions, tmp_path / "here"))
    for language in ("en", "de"):
        with (here / f"train.{language}").open("a") as file:
            file.write("".join(map(str, range(300))) + "\n")  # one word, and too many subwords
    fewer = "--config.train.steps=2", "--config.train.warmup_steps=1"
    flags = "--config=configs/multi30k.py:tiny", "--config.data.faults=drop", *fewer
    status, _, error = knock(*flags, f"--config.data.path={here}", workdir="moved")
    assert (status, "train: 1 of 61 pairs left out: more than 160 subwords" in error) == (0, True)
    there = here.rename(tmp_path / "there")
    new = f"--config.data.path={there}"
    results, texts = (place / "moved" / name for name in ("results.json", "texts.json"))
    before, known = json.loads(results.read_text()), texts.read_text()
    assert [*json.loads(known)] == ["train", "validation", "test"]

    assert "embedding tokens" in knock("--mode=describe", workdir="moved")[1]
    said = knock("--mode=translate", workdir="moved", given="sniez\n\nierd")
    assert said == (0, "sniez\n\nierd\n", "")
    assert knock(*flags, new, workdir="moved")[0] == 0
    evaluate = "--mode=evaluate", "--config.decoding.length_penalty=0.5"
    status, _, error = knock(*evaluate, workdir="moved")
    assert (status, f"data.path={here} has no test_2016.en" in error) == (2, True)
    assert knock("--mode=evaluate", "--split=train", new, workdir="moved")[0] == 0
    (there / "train.en").unlink()  # which is not read
    assert knock(*evaluate, new, workdir="moved")[0] == 0
    assert json.loads(results.read_text())["splits"] == before["splits"]

    for split, stem in (("test", "test_2016"), ("validation", "validation")):
        lines = (there / f"{stem}.de").read_text().splitlines()
        (there / f"{stem}.de").write_text("\n".join(lines[::-1]) + "\n")
        written = results.read_text()
        told = knock("--mode=evaluate", f"--split={split}", new, workdir="moved")
        assert told[::2] == (
            2,
            f"run.py: the {split} split is another text than {place / 'moved'} has read: name the "
            "place of that one by data.path\n",
        )
        assert results.read_text() == written
    assert texts.read_text() == known


@pytest.fixture
def rival(place, trained, tmp_path):
    """A run with the same hypotheses, but the first of the longer sentences right."""
    rival = tmp_path / "rival"
    rival.mkdir()
    for name in ("results.json", "texts.json", "hypotheses.longer.txt"):
        shutil.copy(place / "tiny" / name, rival)
    said = (rival / "hypotheses.longer.txt").read_text().splitlines()
    data = Workdir(place / "tiny").load_config().data
    right = load_split(data, "longer", place / "cache")[0].target
    (rival / "hypotheses.longer.txt").write_text("\n".join([right, *said[1:], ""]))
    return rival


def test_a_run_is_held_against_another(place, own, knock, rival):
    longer = "--mode=evaluate", "--split=longer"
    status, output, _ = knock(*longer, f"--against={rival}", workdir=own)
    scores = json.loads((own / "results.json").read_text())["splits"]["longer"]
    config = Workdir(own).load_config()
    pairs = load_split(config.data, "longer", place / "cache")
    said = {
        folder: (folder / "hypotheses.longer.txt").read_text().splitlines()
        for folder in (rival, own)
    }
    (p,) = paired_bootstrap(said, [pair.target for pair in pairs]).values()
    assert (status, p < 1) == (0, True)
    against = {"workdir": str(rival), "bleu": scores["bleu"], "p": p}
    assert scores["against"] == against | {"decoding": {"num_beams": 1, "length_penalty": 0.0}}
    assert f"against {rival}: BLEU {scores['bleu']:.2f}, p = {p:.3f} that chance" in output
    beams = knock(*longer, "--config.decoding.num_beams=2", f"--against={rival}", workdir=own)
    assert f"against {rival} (decoding: num_beams=1): BLEU " in beams[1]


def test_what_cannot_be_held_against_is_refused(place, knock, rival):
    def refused(*arguments, against=rival):
        status, _, error = knock(*arguments, f"--against={against}")
        assert status == 2
        return error.removeprefix("run.py: ").removesuffix("\n")

    longer = "--mode=evaluate", "--split=longer"
    itself = place / "tiny" / ".." / "tiny"
    assert refused() == "--against is for --mode=evaluate alone, got --mode=train"
    assert refused(*longer, against="") == "--against needs a name, got none"
    assert refused(*longer, against=itself) == (
        f"--against needs another run than {place / 'tiny'} itself"
    )
    (rival / "hypotheses.longer.txt").write_text("le\nla\n")
    assert f"{rival} translated 2 of the 20 sentences of the longer split" in refused(*longer)
    (rival / "hypotheses.longer.txt").write_bytes(b"\xff\xfe")
    assert f"{rival / 'hypotheses.longer.txt'} cannot be read" in refused(*longer)
    (rival / "texts.json").write_text('{"longer": "another"}')
    assert refused(*longer) == (
        f"the longer split of {rival} has other sentences than that of {place / 'tiny'}"
    )
    (rival / "texts.json").write_text("[1]")
    assert f"{rival / 'texts.json'} cannot be read" in refused(*longer)
    results = json.loads((rival / "results.json").read_text())
    for scores in ({"longer": {"tok_bleu": 1.0}}, {}):
        (rival / "results.json").write_text(json.dumps(results | {"splits": scores}))
        assert refused(*longer) == (
            f"{rival} was not measured on the longer split: --mode=evaluate --split=longer "
            f"--workdir={rival} does it"
        )
    (rival / "results.json").write_text(json.dumps(results | {"splits": {"longer": 3}}))
    assert "cannot be read: its splits have no scores" in refused(*longer)
    (rival / "results.json").unlink()
    assert f"{rival} has no results yet: --mode=evaluate" in refused(*longer)


def test_only_translations_are_held_against_others(tmp_path):
    config = ConfigDict({"experiment": "classification"})
    asked = Command("evaluate", config, tmp_path, tmp_path, against=tmp_path)
    with pytest.raises(UsageError, match="for translations, and classification has none"):
        run.check_mode(asked)
