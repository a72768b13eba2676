"""--mode=explain: figures, weights and tables of an untrained run."""

import csv
import json
import re

import pytest

from experiments import explain as command
from experiments.analysis import (
    attribution,
    collect,
    contextual_senses,
    cross_alignment,
    figures,
    inputs,
)
from experiments.analysis.heads import COLUMNS
from experiments.workdir import Workdir
from tests.command_line.command import make_untrained

pytestmark = pytest.mark.usefixtures("initial_states")

SMALL = {"model.max_length": 32, "batch.bucket_lengths": (32,), "model.width": 16}
SMALL |= {"model.num_heads": 2, "model.encoder_layers": 1, "model.decoder_layers": 1}


@pytest.fixture(scope="module")
def made(place, load_once, compile_once):
    changes = SMALL | {"mesh.data": 2}  # trained on two devices
    return make_untrained(place, "toy_translation", "explained", **changes)


@pytest.fixture
def explain(made, run_command, monkeypatch):
    """Return a function that runs the command.

    Inputs have few shapes, since each is compiled. Scores of an untrained model hardly differ, so
    integrated gradients stop at the largest number of parts of the path, each with two nodes here.
    """
    monkeypatch.setattr(attribution, "NODES", 2)
    monkeypatch.setattr(collect, "SHORTEST", SMALL["model.max_length"])
    for module in (contextual_senses, cross_alignment):
        monkeypatch.setattr(module, "AT_ONCE", command.AT_ONCE)
    return lambda *flags: run_command(
        "--mode=explain", f"--cache={made.parent / 'cache'}", *flags, workdir=made
    )


def files(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def data_of(page):
    return json.loads(re.search(rb'id="data">(.*?)</script>', page)[1])


def test_sentence(explain, made, monkeypatch):
    maps = {"kind": "cross", "layers": [1], "queries": ["le"], "keys": ["the", "girl"]}
    for step, weights in ((0, [0.5, 0.5]), (20, [0.9, 0.1])):  # as of a run with sample_maps
        Workdir(made).keep_maps({"step": step, "weights": [[[weights]]], **maps})
    sentence = "--sentence=the girl was happy"
    status, output, error = explain(sentence, "--layer=1", "--head=2")
    assert (status, error) == (0, "")
    folder = made / "explain" / "sentence"
    assert f"{folder}: the girl was happy → " in output
    found = files(folder)
    kinds = dict.fromkeys(("encoder", "decoder", "cross"), (1,))
    figures = {f"{kind}-layer-{layer}" for kind, layers in kinds.items() for layer in layers}
    figures |= {f"{kind}-layer-1-{name}" for kind in kinds for name in ("head-2", "mask")}
    names = {f"{name}.{suffix}" for name in figures for suffix in ("png", "svg")}
    assert {*found} - {f"attributions.{suffix}" for suffix in ("png", "svg", "csv")} == names | {
        f"{kind}.csv" for kind in kinds
    }
    page = (made / "explain" / "sentence.html").read_bytes()
    assert (made / "explain" / "training.gif").read_bytes().startswith(b"GIF89a")
    for name in ("draw_example", "draw_attributions", "draw_animation"):  # tested to be the same
        monkeypatch.setattr(command, name, lambda *_: None)
    assert explain(sentence, "--layer=1", "--head=2")[1] == output
    assert files(folder) == found
    assert (made / "explain" / "sentence.html").read_bytes() == page
    (example,) = data_of(page)["examples"]
    assert example["name"] == "the girl was happy"
    best, *others = example["translations"]
    assert best["tokens"] == example["predicted"] and len(others) == 4
    assert output.startswith(f"{folder}: the girl was happy → {' '.join(best['tokens'][:-1])}")
    assert best["score"] == pytest.approx(sum(best["log_probs"]), abs=1e-3)
    assert {len(step) for step in best["alternatives"]} == {5}
    assert len(example["movement"]["encoder"][0]) == 5


@pytest.fixture
def no_figures(monkeypatch):
    """Draw no figures, because they take long; those of a sentence are tested."""
    for name in ("maps_figure", "draw_mask"):
        monkeypatch.setattr(figures, name, lambda *_, **__: None)
    save = figures.save
    monkeypatch.setattr(figures, "save", lambda figure, *to: figure and save(figure, *to))
    monkeypatch.setattr(command, "draw_attributions", lambda *_: None)


@pytest.mark.usefixtures("no_figures")
def test_split(explain, made, monkeypatch):
    monkeypatch.setattr(inputs, "SHOWN", 1)
    monkeypatch.setattr(command, "IN_PAGE", 2)
    for module in (command, inputs):
        monkeypatch.setattr(module, "MEASURED", 3)
    status, output, error = explain("--split=validation")
    assert (status, error) == (0, "")
    folder = made / "explain" / "validation"
    with (folder / "heads.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["kind"] for row in rows].count("cross") == 2
    for row in rows:  # the run has the initial parameters
        assert row["entropy"] == row["entropy untrained"]
        assert {*COLUMNS} < {*row}
    links = (folder / "alignment.pharaoh").read_text().splitlines()
    assert '"step": ' in (folder / "origin.json").read_text()
    with (folder / "alignment.csv").open(newline="") as file:
        names = [row["alignment"] for row in csv.DictReader(file)]
    assert len(names) == 2 * 2 * (1 + 2) + 3  # one head and both, these also by norms; baselines
    with (folder / "alignment_methods.csv").open(newline="") as file:
        assert len([*csv.DictReader(file)]) == 2 * 2 * 2 * (2 + 2)  # two heads, the mean and norms
    assert "IBM Model 1" in names and len(links) > 10
    with (folder / "replaced_weights.csv").open(newline="") as file:
        replaced = [*csv.DictReader(file)]
    assert [row["attention"].split()[0] for row in replaced] == [
        "encoder",
        "decoder",
        "cross-attention",
    ]
    for row in replaced:  # initial parameters have nothing to lose
        assert 3 < float(row["loss"]) < 9
        assert abs(float(row["rise with uniform weights"])) < 0.5
    assert {"deletion.svg", "agreement.csv"} < {*files(folder)}
    data = data_of((made / "explain" / "validation.html").read_bytes())
    for note in (
        "re-initialised weights move 0% of the cross-attention, and at least 0% in each head",
        "the loss of the validation split, ",
    ):
        assert note in output
        assert any(each.startswith(note) for each in data["notes"])
    assert [row["kind"] for row in data["heads"]] == [row["kind"] for row in rows]
    assert len(data["examples"]) == 2


PAIRS = "the girl was happy\tla fille était heureuse\n"
GOLD = "1-1 2-2 3-3 4-4\n"


@pytest.mark.usefixtures("no_figures")
def test_file_of_pairs(explain, made, monkeypatch):
    monkeypatch.setattr(inputs, "SHOWN", 1)
    pairs, gold = made / "mine.tsv", made / "mine.gold"
    pairs.write_text(2 * PAIRS)
    gold.write_text(2 * GOLD)
    status, output, error = explain(f"--file={pairs}", f"--gold={gold}", "--gold_first=1")
    assert (status, error) == (0, "")
    folder = made / "explain" / "mine.tsv"
    assert f"{folder / '1'}: the girl was happy → la fille était heureuse" in output
    (example, _) = data_of((made / "explain" / "mine.tsv.html").read_bytes())["examples"]
    given, other, *_ = example["translations"]
    assert (given["text"], given["given"]) == ("la fille était heureuse", True)
    assert not other["given"] and example["predicted"][:2] == ["la", "fille"]
    assert f"heads, over 2 examples of {pairs}" in output
    assert "chosen on the first half" in output and "| diagonal |  | 0.0 |" in output
    assert len((folder / "alignment.pharaoh").read_text().splitlines()) == 2
    pairs, folder = made / "test", made / "explain" / "file_test"  # not the folder of a split
    pairs.write_text("the girl , was happy\n")
    status, output, error = explain(f"--file={pairs}")
    assert (status, error) == (0, "") and "words are aligned by layer" in output
    (line,) = (folder / "alignment.pharaoh").read_text().splitlines()
    assert not any(link.startswith("2-") for link in line.split())  # a comma is no token
    (line,) = (folder / "alignment.tsv").read_text().splitlines()
    assert line.startswith("the girl , was happy\t")


@pytest.mark.parametrize(
    ("text", "links", "message"),
    [
        ("", "", "mine.tsv is empty"),
        ("a\tb\tc\n", "", "line 1: a line has at most one tab"),
        (PAIRS + "\n", "", "line 2: the line is empty"),
        (PAIRS, "1-1\n", "--gold needs two pairs"),
        (PAIRS + "the girl\n", "1-1\n1-1\n", "and line 2 has none"),
        (2 * PAIRS, "1-1\n", "has 1 lines, and there are 2 sentences"),
        (2 * PAIRS, "1-1\n0-1\n", "line 2: the link 0-1 of a sentence with 4 and 4 words is out"),
    ],
)
def test_mistakes_in_files(explain, made, text, links, message):
    pairs, gold = made / "mine.tsv", made / "mine.gold"
    pairs.write_text(text)
    gold.write_text(links)
    status, _, error = explain(f"--file={pairs}", f"--gold={gold}", "--gold_first=1")
    assert status == 2 and message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sentence=" + "the " * 32], "--sentence: the line has 32 tokens, and the model reads"),
        (["--sentence= "], "--sentence: the line is empty"),
        (["--sentence=the girl", "--layer=2"], "attention is in layers 1, got --layer=2"),
        (["--sentence=the girl", "--head=3"], "a layer has heads 1 to 2, got --head=3"),
        (["--sentence=the girl", "--head=x"], "--head is a whole number from 1, got 'x'"),
        (["--sentence=the girl", "--split=test"], "takes one of --sentence and --split"),
        (["--file=missing.txt"], "--file=missing.txt cannot be read: "),
        (["--file=a", "--split=test"], "takes one of --file and --split"),
        (["--gold=a"], "--gold is for the pairs of a --file"),
        (["--file=a", "--gold_first=2"], "--gold_first must be one of 0, 1, got '2'"),
        (["--split=tset"], "did you mean 'test'?"),
    ],
)
def test_mistakes(explain, flags, message):
    status, _, error = explain(*flags)
    assert status == 2 and message in error and error.count("\n") == 1


def test_target_that_is_a_file(explain, made, tmp_path):
    (made / "explain").mkdir(exist_ok=True)
    (made / "explain" / "blocked.txt").touch()
    path = tmp_path / "blocked.txt"
    path.write_text("the girl\n")
    status, _, error = explain(f"--file={path}")
    assert (status, error.count("\n")) == (2, 1) and "blocked.txt cannot be written: " in error


def test_model_without_attention(made, explain, run_command):
    folder = make_untrained(made.parent, "word_vectors")
    status, _, error = run_command(
        "--mode=explain", f"--cache={made.parent / 'cache'}", workdir=folder
    )
    assert (status, error) == (2, "run.py: word_vectors has no attention to explain\n")
