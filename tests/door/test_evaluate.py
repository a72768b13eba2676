"""--mode=evaluate: all test splits, one split, moved text, and a comparison with another run."""

import json
import shutil
from pathlib import Path

import pytest
from ml_collections import ConfigDict

import run
from experiments.cli import Command
from experiments.data import sources
from experiments.errors import UsageError
from experiments.evaluation.scores import paired_bootstrap
from tests.door.command import TINY, config_of
from tests.experiments.data.corpora import load_split

pytestmark = pytest.mark.usefixtures("trained")


@pytest.fixture
def read(monkeypatch):
    """Return a list to which the names of loaded splits are appended."""
    names, original = [], sources.store_split
    monkeypatch.setattr(sources, "store_split", lambda *a: names.append(a[1]) or original(*a))
    return names


def test_finished_run_is_evaluated_and_not_trained(place, knock, read):
    before = (place / "tiny" / "metrics.jsonl").read_text()
    status, output, _ = knock(*TINY)
    assert status == 0
    assert "exact match" in output
    assert (place / "tiny" / "metrics.jsonl").read_text() == before
    assert sorted(read) == ["compositional", "longer", "test", "train", "validation"]


def test_evaluate_needs_only_the_workdir(own, knock, read):
    before = json.loads((own / "results.json").read_text())
    (own / "results.json").unlink()
    assert knock("--mode=evaluate", workdir=own)[0] == 0
    assert json.loads((own / "results.json").read_text()) == before
    assert sorted(read) == ["compositional", "longer", "test"]


def test_evaluating_one_split_keeps_the_other_scores(own, knock, read):
    results = own / "results.json"
    before = json.loads(results.read_text())
    picture = (own / "attention.png").stat().st_mtime_ns
    status, output, _ = knock("--mode=evaluate", "--split=longer", workdir=own)
    assert (status, json.loads(results.read_text()), read) == (0, before, ["longer"])
    assert (own / "attention.png").stat().st_mtime_ns == picture  # it shows the test split
    assert not any(line.startswith("test ") for line in output.splitlines())
    assert knock("--mode=evaluate", "--split=validation", workdir=own)[0] == 0
    now = json.loads(results.read_text())
    scores = now["splits"].pop("validation")
    assert now == before
    hypotheses = (own / "hypotheses.validation.txt").read_text()
    assert len(hypotheses.splitlines()) == scores["sentences"]


@pytest.mark.parametrize("what", ["decoding", "step"])
def test_scores_from_other_settings_are_dropped(own, knock, what):
    results = own / "results.json"
    before = results.read_text()
    if what == "step":
        results.write_text(json.dumps(json.loads(before) | {"step": 10}))
    otherwise = ["--config.decoding.length_penalty=0.5"] if what == "decoding" else []
    _, output, _ = knock("--mode=evaluate", "--split=longer", *otherwise, workdir=own)
    message = "scores of agreement, compositional, order, polysemy, test were measured otherwise"
    assert message in output
    assert [*json.loads(results.read_text())["splits"]] == ["longer"]


def test_scores_do_not_depend_on_the_batch_size_of_decoding(own, knock):
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
def test_damaged_results_raise_before_evaluation(own, knock, text, reason):
    results, hypotheses = own / "results.json", own / "hypotheses.longer.txt"
    written = hypotheses.stat().st_mtime_ns
    results.write_text(text)
    status, _, error = knock("--mode=evaluate", "--split=longer", workdir=own)
    assert (status, f"{results} cannot be read: {reason}" in error) == (2, True)
    assert hypotheses.stat().st_mtime_ns == written


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
def test_invalid_split_is_a_usage_error(place, knock, arguments, sentence):
    before = (place / "tiny" / "results.json").read_text()
    assert knock(*arguments)[::2] == (2, f"run.py: {sentence}\n")
    assert (place / "tiny" / "results.json").read_text() == before


@pytest.mark.usefixtures("echoing")
def test_moved_text_is_accepted_and_changed_text_is_not(place, knock, captions, tmp_path):
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
    answer = knock("--mode=translate", workdir="moved", given="sniez\n\nierd")
    assert answer == (0, "sniez\n\nierd\n", "")
    assert knock(*flags, new, workdir="moved")[0] == 0
    evaluate = "--mode=evaluate", "--config.decoding.length_penalty=0.5"
    status, _, error = knock(*evaluate, workdir="moved")
    assert (status, f"data.path={here} has no test_2016.en" in error) == (2, True)
    assert knock("--mode=evaluate", "--split=train", new, workdir="moved")[0] == 0
    (there / "train.en").unlink()  # it is not read
    assert knock(*evaluate, new, workdir="moved")[0] == 0
    assert json.loads(results.read_text())["splits"] == before["splits"]

    for split, stem in (("test", "test_2016"), ("validation", "validation")):
        lines = (there / f"{stem}.de").read_text().splitlines()
        (there / f"{stem}.de").write_text("\n".join(lines[::-1]) + "\n")
        written = results.read_text()
        result = knock("--mode=evaluate", f"--split={split}", new, workdir="moved")
        assert result[::2] == (
            2,
            f"run.py: the {split} split is another text than {place / 'moved'} has read: name the "
            "place of that one by data.path\n",
        )
        assert results.read_text() == written
    assert texts.read_text() == known


@pytest.fixture
def other(place, trained, tmp_path):
    """Return a run with equal hypotheses, except that the first of split longer is correct."""
    other = tmp_path / "other"
    other.mkdir()
    for name in ("results.json", "texts.json", "hypotheses.longer.txt"):
        shutil.copy(place / "tiny" / name, other)
    hypotheses = (other / "hypotheses.longer.txt").read_text().splitlines()
    data = config_of(place / "tiny").data
    right = load_split(data, "longer", place / "cache")[0].target
    (other / "hypotheses.longer.txt").write_text("\n".join([right, *hypotheses[1:], ""]))
    return other


def test_comparison_with_another_run(place, own, knock, other):
    longer = "--mode=evaluate", "--split=longer"
    status, output, _ = knock(*longer, f"--against={other}", workdir=own)
    scores = json.loads((own / "results.json").read_text())["splits"]["longer"]
    config = config_of(own)
    pairs = load_split(config.data, "longer", place / "cache")
    hypotheses = {
        folder: (folder / "hypotheses.longer.txt").read_text().splitlines()
        for folder in (other, own)
    }
    (p,) = paired_bootstrap(hypotheses, [pair.target for pair in pairs]).values()
    assert (status, p < 1) == (0, True)
    against = {"workdir": str(other), "bleu": scores["bleu"], "p": p}
    assert scores["against"] == against | {"decoding": {"num_beams": 1, "length_penalty": 0.0}}
    assert f"against {other}: BLEU {scores['bleu']:.2f}, p = {p:.3f} that chance" in output
    beams = knock(*longer, "--config.decoding.num_beams=2", f"--against={other}", workdir=own)
    assert f"against {other} (decoding: num_beams=1): BLEU " in beams[1]


def test_invalid_comparison_is_a_usage_error(place, knock, other):
    def refused(*arguments, against=other):
        status, _, error = knock(*arguments, f"--against={against}")
        assert status == 2
        return error.removeprefix("run.py: ").removesuffix("\n")

    longer = "--mode=evaluate", "--split=longer"
    same = place / "tiny" / ".." / "tiny"
    assert refused() == "--against is for --mode=evaluate alone, got --mode=train"
    assert refused(*longer, against="") == "--against needs a name, got none"
    assert refused(*longer, against=same) == (
        f"--against needs another run than {place / 'tiny'} itself"
    )
    (other / "hypotheses.longer.txt").write_text("le\nla\n")
    assert f"{other} translated 2 of the 20 sentences of the longer split" in refused(*longer)
    (other / "hypotheses.longer.txt").write_bytes(b"\xff\xfe")
    assert f"{other / 'hypotheses.longer.txt'} cannot be read" in refused(*longer)
    (other / "texts.json").write_text('{"longer": "another"}')
    assert refused(*longer) == (
        f"the longer split of {other} has other sentences than that of {place / 'tiny'}"
    )
    (other / "texts.json").write_text("[1]")
    assert f"{other / 'texts.json'} cannot be read" in refused(*longer)
    results = json.loads((other / "results.json").read_text())
    for scores in ({"longer": {"tok_bleu": 1.0}}, {}):
        (other / "results.json").write_text(json.dumps(results | {"splits": scores}))
        assert refused(*longer) == (
            f"{other} was not measured on the longer split: --mode=evaluate --split=longer "
            f"--workdir={other} does it"
        )
    (other / "results.json").write_text(json.dumps(results | {"splits": {"longer": 3}}))
    assert "cannot be read: its splits have no scores" in refused(*longer)
    (other / "results.json").unlink()
    assert f"{other} has no results yet: --mode=evaluate" in refused(*longer)


def test_only_translations_are_compared(tmp_path):
    config = ConfigDict({"task": "classification"})
    asked = Command("evaluate", config, tmp_path, tmp_path, against=tmp_path)
    with pytest.raises(UsageError, match="for translations, and classification has none"):
        run.check_mode(asked)
