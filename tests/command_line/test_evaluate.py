"""--mode=evaluate: all test splits, one split, other data, and a comparison with another run."""

import json
import shutil
from pathlib import Path

import pytest

import run
from experiments.metrics import paired_bootstrap
from experiments.workdir import Workdir
from tests.command_line.command import command, config_of, in_repository, make_untrained
from tests.experiments.data.corpora import load_split

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(scope="module")
def evaluated(place, compile_once):
    """Return the workdir of a small run that was measured."""
    folder = make_untrained(place, "toy_translation", "evaluated")
    with in_repository():
        assert run.main(command(place, folder, "--mode=evaluate")) == 0
    return folder


@pytest.fixture
def own(evaluated, tmp_path):
    """Return a copy of the run that a test may change."""
    return Path(shutil.copytree(evaluated, tmp_path / "own"))


def read_rows(folder, split):
    """Return the rows of a file of hypotheses."""
    lines = (folder / f"hypotheses.{split}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def read_results(folder):
    return json.loads((folder / "results.json").read_text())


def test_scores_are_added_with_their_settings(place, own, run_command):
    before = read_results(own)
    picture = (own / "attention.png").stat().st_mtime_ns
    beams = "--config.decoding.num_beams=2", "--config.decoding.hypotheses=7"
    status, output, _ = run_command("--mode=evaluate", "--split=validation", *beams, workdir=own)
    assert (status, "\n              decoding.num_beams=2\n" in output) == (0, True)
    assert (own / "attention.png").stat().st_mtime_ns == picture  # it shows the test split
    run_command("--mode=evaluate", "--split=validation", workdir=own)
    metric = "--config.decoding.metrics=('exact_match',)"
    run_command("--mode=evaluate", "--split=longer", beams[1], metric, workdir=own)
    now = read_results(own)
    searched, greedy = (now["splits"].pop(f"validation{end}") for end in ("@num_beams=2", ""))
    assert now == before  # also the other metrics of "longer"
    assert searched.pop("settings") == {"decoding.num_beams": 2}
    assert searched.keys() == greedy.keys() and searched["nll"] == greedy["nll"]
    rows = read_rows(own, "validation@num_beams=2")
    pair = load_split(config_of(own).data, "validation", place / "cache")[0]
    assert len(rows) == greedy["sentences"]
    assert (rows[0]["source"], rows[0]["reference"]) == pair[:2]
    assert rows[0].keys() == {"source", "reference", "hypothesis"}


def test_damaged_results_raise_before_evaluation(own, run_command):
    results, hypotheses = own / "results.json", own / "hypotheses.longer.jsonl"
    written = hypotheses.stat().st_mtime_ns
    results.write_text('{"step": 7, "training_seconds": "long"}')
    status, _, error = run_command("--mode=evaluate", "--split=longer", workdir=own)
    assert (status, f"{results} cannot be read: " in error) == (2, True)
    assert hypotheses.stat().st_mtime_ns == written


@pytest.mark.usefixtures("echoing")
class TestOtherData:
    """Data that has moved or changed, and other files."""

    @pytest.fixture
    def here(self, captions, tmp_path):
        return Path(shutil.copytree(captions, tmp_path / "here"))

    @pytest.fixture
    def measured(self, place, here, tmp_path, run_command):
        """Return the workdir of a run that was measured on the data in the folder `here`."""
        run = make_untrained(place, "multi30k", tmp_path / "run", **{"data.path": str(here)})
        assert run_command("--mode=evaluate", workdir=run)[0] == 0
        return run

    def test_moved_data_is_that_of_the_run(self, measured, here, run_command):
        before = read_results(measured)
        there = here.rename(here.with_name("there"))
        assert "embedding tokens" in run_command("--mode=describe", workdir=measured)[1]
        status, _, error = run_command("--mode=evaluate", workdir=measured)
        assert (status, "data.path" in error) == (2, True), error
        (there / "train.en").unlink()  # it is not read
        new = f"--config.data.path={there}"
        assert run_command("--mode=evaluate", new, workdir=measured)[0] == 0
        assert read_results(measured) == before

    def test_other_files_have_a_result_of_their_own(self, measured, here, run_command):
        before = read_results(measured)
        hypotheses = (measured / "hypotheses.test.jsonl").read_bytes()
        for language in ("en", "de"):
            (here / f"dialogue.{language}").write_text("eins\nzwei\n")
        flags = "--mode=evaluate", "--config.data.files.test=dialogue"
        status, output, _ = run_command(*flags, workdir=measured)
        assert (status, "test@dialogue" in output) == (0, True)
        results = read_results(measured)
        scores = results["splits"].pop("test@dialogue")
        assert results == before
        assert (scores["sentences"], scores["exact_match"]) == (2, 1.0)  # echoed
        assert scores["settings"] == {"data.files.test": "dialogue"}
        assert [row["source"] for row in read_rows(measured, "test@dialogue")] == ["eins", "zwei"]
        assert (measured / "hypotheses.test.jsonl").read_bytes() == hypotheses

    def test_other_texts_of_one_name_have_results_of_their_own(
        self, measured, here, run_command, tmp_path, monkeypatch
    ):
        def evaluate(name, text):
            """Return the labels of the results after a text was measured."""
            folder = tmp_path / name / "mine"
            shutil.copytree(here, folder, dirs_exist_ok=True)
            for language in ("en", "de"):
                (folder / f"test_2016.{language}").write_text(text)
            monkeypatch.chdir(folder)
            status, _, error = run_command(
                "--mode=evaluate", "--config.data.path=.", workdir=measured
            )
            assert (status, error) == (0, "")
            return [*read_results(measured)["splits"]]

        assert evaluate("a", "eins\n") == ["test", "test@mine"]
        labels = evaluate("b", "zwei\n")
        texts = json.loads((measured / "texts.json").read_text())
        assert labels == ["test", "test@mine", other := f"test@mine-{texts[labels[2]][:6]}"]
        assert [row["source"] for row in read_rows(measured, other)] == ["zwei"]
        assert evaluate("b", "zwei\n") == labels == evaluate("a", "eins\n")
        assert len(evaluate("a", "corrected\n")) == 4


@pytest.fixture
def other(evaluated, tmp_path):
    """Return a run with equal hypotheses, except that the first of split longer is correct."""
    other = tmp_path / "other"
    other.mkdir()
    for name in ("config.json", "results.json", "texts.json", "hypotheses.longer.jsonl"):
        shutil.copy(evaluated / name, other)
    (source, target, _), *rows = (tuple(row.values()) for row in read_rows(other, "longer"))
    Workdir(other).save_hypotheses("longer", [(source, target, target), *rows])
    return other


LONGER = "--mode=evaluate", "--split=longer"


def test_comparison_with_another_run(own, run_command, other):
    status, output, _ = run_command(*LONGER, f"--against={other}", workdir=own)
    scores = read_results(own)["splits"]["longer"]
    rows, theirs = read_rows(own, "longer"), read_rows(other, "longer")
    answers = ([row["hypothesis"] for row in each] for each in (theirs, rows))
    p = paired_bootstrap(*answers, [row["reference"] for row in rows])
    assert (status, p < 1) == (0, True)
    assert scores["against"] == {"workdir": str(other), "bleu": scores["bleu"], "p": p}
    assert f"against {other} BLEU {scores['bleu']:6.2f}   p {p:.3f} (paired bootstrap" in output


def test_runs_that_cannot_be_compared(evaluated, run_command, other):
    def refused(against=other):
        status, _, error = run_command(*LONGER, f"--against={against}", workdir=evaluated)
        assert status == 2
        return error

    own = evaluated / ".." / evaluated.name
    assert f"--against needs another run than {evaluated} itself" in refused(own)
    (other / "hypotheses.longer.jsonl").write_bytes(b"\xff\xfe")
    assert f"{other / 'hypotheses.longer.jsonl'} cannot be read" in refused()
    (other / "texts.json").write_text('{"longer": "another"}')
    assert f"{other} has no bleu of the sentences of the longer split: --mode=" in refused()
    (other / "results.json").unlink()
    assert f"{other} has no results yet: --mode=evaluate" in refused()
