"""--mode=evaluate: all test splits, one split, other data, and a comparison with another run."""

import json
import shutil
from pathlib import Path

import pytest

import run
from experiments.data import sources
from experiments.evaluation.scores import paired_bootstrap
from experiments.workdir import Workdir
from tests.command_line.command import command, config_of, in_repository, make_untrained
from tests.experiments.data.corpora import load_split

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(scope="module")
def evaluated(place, compile_once):
    """Return the workdir of a small run that was measured."""
    small = {"model.encoder_layers": 1, "model.decoder_layers": 1}
    folder = make_untrained(place, "toy_translation", "evaluated", **small)
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


@pytest.fixture
def read(monkeypatch):
    """Return a list to which the names of loaded splits are appended."""
    names, original = [], sources.store_split
    monkeypatch.setattr(sources, "store_split", lambda *a: names.append(a[1]) or original(*a))
    return names


def test_evaluate_needs_only_the_workdir(own, run_command, read):
    before = json.loads((own / "results.json").read_text())
    (own / "results.json").unlink()
    assert run_command("--mode=evaluate", workdir=own)[0] == 0
    assert json.loads((own / "results.json").read_text()) == before
    assert sorted(read) == ["compositional", "longer", "test"]


def test_evaluating_one_split_keeps_the_other_scores(place, own, run_command, read):
    results = own / "results.json"
    before = json.loads(results.read_text())
    picture = (own / "attention.png").stat().st_mtime_ns
    status, output, _ = run_command("--mode=evaluate", "--split=longer", workdir=own)
    assert (status, json.loads(results.read_text()), read) == (0, before, ["longer"])
    assert (own / "attention.png").stat().st_mtime_ns == picture  # it shows the test split
    assert not any(line.startswith("test ") for line in output.splitlines())
    assert run_command("--mode=evaluate", "--split=validation", workdir=own)[0] == 0
    now = json.loads(results.read_text())
    scores = now["splits"].pop("validation")
    assert now == before
    rows = read_rows(own, "validation")
    pair = load_split(config_of(own).data, "validation", place / "cache")[0]
    assert len(rows) == scores["sentences"]
    assert (rows[0]["source"], rows[0]["reference"]) == pair[:2]
    assert rows[0].keys() == {"source", "reference", "hypothesis"}


@pytest.mark.parametrize("what", ["decoding", "step"])
def test_scores_from_other_settings_are_dropped(own, run_command, what):
    results = own / "results.json"
    before = results.read_text()
    if what == "step":
        results.write_text(json.dumps(json.loads(before) | {"step": 10}))
    otherwise = ["--config.decoding.length_penalty=0.5"] if what == "decoding" else []
    _, output, _ = run_command("--mode=evaluate", "--split=longer", *otherwise, workdir=own)
    message = "scores of agreement, compositional, order, polysemy, test were measured otherwise"
    assert message in output
    assert [*json.loads(results.read_text())["splits"]] == ["longer"]


def test_scores_do_not_depend_on_the_batch_size_of_decoding(own, run_command):
    results = own / "results.json"
    before = results.read_text()
    run_command("--mode=evaluate", "--split=longer", "--config.decoding.hypotheses=7", workdir=own)
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
def test_damaged_results_raise_before_evaluation(own, run_command, text, reason):
    results, hypotheses = own / "results.json", own / "hypotheses.longer.jsonl"
    written = hypotheses.stat().st_mtime_ns
    results.write_text(text)
    status, _, error = run_command("--mode=evaluate", "--split=longer", workdir=own)
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
        (
            ["--split=test"],
            "--split is for --mode=evaluate and --mode=explain alone, got --mode=train",
        ),
    ],
)
def test_invalid_split_is_a_usage_error(evaluated, run_command, arguments, sentence):
    before = (evaluated / "results.json").read_text()
    assert run_command(*arguments, workdir=evaluated)[::2] == (2, f"run.py: {sentence}\n")
    assert (evaluated / "results.json").read_text() == before


@pytest.mark.usefixtures("echoing")
class TestOtherData:
    """Data that has moved or changed, and other files."""

    @pytest.fixture
    def here(self, captions, tmp_path):
        return Path(shutil.copytree(captions, tmp_path / "here"))

    @pytest.fixture
    def made(self, place, here, tmp_path):
        """Return the workdir of a run whose data is in the folder `here`."""
        return make_untrained(place, "multi30k", tmp_path / "run", **{"data.path": str(here)})

    @pytest.fixture
    def measured(self, made, run_command):
        assert run_command("--mode=evaluate", workdir=made)[0] == 0
        return made

    def test_moved_data_is_that_of_the_run(self, measured, here, run_command):
        before = json.loads((measured / "results.json").read_text())
        there = here.rename(here.with_name("there"))
        assert "embedding tokens" in run_command("--mode=describe", workdir=measured)[1]
        status, _, error = run_command("--mode=evaluate", workdir=measured)
        assert (status, f"data.path={here} has no test_2016.en" in error) == (2, True)
        (there / "train.en").unlink()  # it is not read
        new = f"--config.data.path={there}"
        assert run_command("--mode=evaluate", new, workdir=measured)[0] == 0
        assert json.loads((measured / "results.json").read_text()) == before

    def test_changed_data_is_refused(self, made, here, run_command):
        (here / "test_2016.de").write_text("ein\nanderer\ntext\n")
        before = (made / "texts.json").read_text()
        sentence = (
            f"run.py: the test split is another text than {made} has read: name the place of "
            "that one by data.path\n"
        )
        assert run_command("--mode=evaluate", workdir=made)[::2] == (2, sentence)
        there = here.rename(here.with_name("there"))
        train = run_command(f"--config.data.path={there}", workdir=made)
        assert train[::2] == (2, sentence)
        assert before == (made / "texts.json").read_text()

    def test_other_files_have_a_result_of_their_own(self, measured, here, run_command, tmp_path):
        before = json.loads((measured / "results.json").read_text())
        hypotheses = (measured / "hypotheses.test.jsonl").read_bytes()
        for language in ("en", "de"):
            (here / f"dialogue.{language}").write_text("eins\nzwei\n")
        flags = "--mode=evaluate", "--config.data.files.test=dialogue"
        status, output, _ = run_command(*flags, workdir=measured)
        assert (status, "test@dialogue" in output) == (0, True)
        results = json.loads((measured / "results.json").read_text())
        scores = results["splits"].pop("test@dialogue")
        assert results == before
        assert (scores["sentences"], scores["exact_match"]) == (2, 1.0)  # echoed
        assert scores["data"] == {"data.files.test": "dialogue"}
        assert [row["source"] for row in read_rows(measured, "test@dialogue")] == ["eins", "zwei"]
        assert (measured / "hypotheses.test.jsonl").read_bytes() == hypotheses
        other = shutil.copytree(measured, tmp_path / "other")
        status, _, error = run_command(*flags, f"--against={other}", workdir=measured)
        assert (status, error) == (0, "")
        scores = json.loads((measured / "results.json").read_text())["splits"]["test@dialogue"]
        assert scores["against"]["p"] == 1

    def test_other_texts_of_one_name_have_results_of_their_own(
        self, measured, here, run_command, tmp_path, monkeypatch
    ):
        def evaluate(folder, text):
            """Return the labels of the results after a text was measured."""
            for language in ("en", "de"):
                (folder / f"test_2016.{language}").write_text(text)
            monkeypatch.chdir(folder)
            flags = "--mode=evaluate", "--config.data.path=."
            status, _, error = run_command(*flags, workdir=measured)
            assert (status, error) == (0, "")
            results = json.loads((measured / "results.json").read_text())
            return [*results["splits"]]

        first, second = (
            Path(shutil.copytree(here, tmp_path / place / "mine")) for place in ("a", "b")
        )
        assert evaluate(first, "eins\n") == ["test", "test@mine"]
        labels = evaluate(second, "zwei\n")
        texts = json.loads((measured / "texts.json").read_text())
        assert labels == ["test", "test@mine", other := f"test@mine-{texts[labels[2]][:6]}"]
        assert [row["source"] for row in read_rows(measured, other)] == ["zwei"]
        assert evaluate(second, "zwei\n") == labels == evaluate(first, "eins\n")
        assert len(evaluate(first, "corrected\n")) == 4


@pytest.fixture
def other(evaluated, tmp_path):
    """Return a run with equal hypotheses, except that the first of split longer is correct."""
    other = tmp_path / "other"
    other.mkdir()
    for name in ("results.json", "texts.json", "hypotheses.longer.jsonl"):
        shutil.copy(evaluated / name, other)
    (source, target, _), *rows = (tuple(row.values()) for row in read_rows(other, "longer"))
    Workdir(other).keep_hypotheses("longer", [(source, target, target), *rows])
    return other


def test_comparison_with_another_run(place, own, run_command, other):
    longer = "--mode=evaluate", "--split=longer"
    status, output, _ = run_command(*longer, f"--against={other}", workdir=own)
    scores = json.loads((own / "results.json").read_text())["splits"]["longer"]
    config = config_of(own)
    pairs = load_split(config.data, "longer", place / "cache")
    hypotheses = {
        folder: [row["hypothesis"] for row in read_rows(folder, "longer")]
        for folder in (other, own)
    }
    (p,) = paired_bootstrap(hypotheses, [pair.target for pair in pairs]).values()
    assert (status, p < 1) == (0, True)
    against = {"workdir": str(other), "bleu": scores["bleu"], "p": p}
    assert scores["against"] == against | {"decoding": {"num_beams": 1, "length_penalty": 0.0}}
    assert f"against {other}: BLEU {scores['bleu']:.2f}, p = {p:.3f} that chance" in output
    assert "it ignores the variance between seeds" in output
    beams = run_command(*longer, "--config.decoding.num_beams=2", f"--against={other}", workdir=own)
    assert f"against {other} (decoding: num_beams=1): BLEU " in beams[1]


def test_invalid_comparison_is_a_usage_error(evaluated, run_command, other):
    def refused(*arguments, against=other):
        status, _, error = run_command(*arguments, f"--against={against}", workdir=evaluated)
        assert status == 2
        return error.removeprefix("run.py: ").removesuffix("\n")

    longer = "--mode=evaluate", "--split=longer"
    same = evaluated / ".." / evaluated.name
    assert refused() == "--against is for --mode=evaluate alone, got --mode=train"
    assert refused(*longer, against="") == "--against needs a value, got none"
    assert refused(*longer, against=same) == (
        f"--against needs another run than {evaluated} itself"
    )
    Workdir(other).keep_hypotheses("longer", [("a", "b", "c")] * 2)
    assert f"{other} translated 2 of the 20 sentences of the longer split" in refused(*longer)
    (other / "hypotheses.longer.jsonl").write_bytes(b"\xff\xfe")
    assert f"{other / 'hypotheses.longer.jsonl'} cannot be read" in refused(*longer)
    (other / "texts.json").write_text('{"longer": "another"}')
    assert refused(*longer) == (
        f"the longer split of {other} has other sentences than that of {evaluated}"
    )
    (other / "texts.json").write_text("[1]")
    assert f"{other / 'texts.json'} cannot be read" in refused(*longer)
    shutil.copy(evaluated / "texts.json", other)
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
