"""--mode=explain: pictures, weights and tables of an untrained run."""

import csv
import json
import re
from pathlib import Path

import pytest

from experiments import explain as command
from experiments.analysis import alignment, attribution, collect, figures
from experiments.explain import name_of
from tests.command_line.command import make_untrained

pytestmark = pytest.mark.usefixtures("initial_states")

SMALL = {"model.max_length": 32, "batch.bucket_lengths": (32,), "model.width": 16}
SMALL |= {"model.num_heads": 2, "model.encoder_layers": 1, "model.decoder_layers": 1}
SENTENCE = "the girl was happy"


@pytest.fixture(scope="module")
def made(place, load_once, compile_once):
    changes = SMALL | {"mesh.data": 2}  # trained on two devices
    return make_untrained(place, "toy_translation", "explained", **changes)


@pytest.fixture
def run_explain(made, run_command, monkeypatch):
    """Return a function that runs the command in few shapes, and draws no figures."""
    monkeypatch.setattr(figures, "save", lambda *_: None)
    monkeypatch.setattr(attribution, "NODES", 2)
    monkeypatch.setattr(collect, "SHORTEST", SMALL["model.max_length"])
    monkeypatch.setattr(alignment, "BATCH_SIZE", 20)
    return lambda *flags: run_command("--mode=explain", *flags, workdir=made)


def rows_of(path):
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def data_of(page):
    return json.loads(re.search(rb'id="data">(.*?)</script>', page.read_bytes())[1])


def test_sentences(run_explain, made):
    sentences = [SENTENCE, "the girl , l'Afrique"]
    status, output, error = run_explain(*(f"--sentence={each}" for each in sentences), "--head=2")
    assert (status, error) == (0, "")
    folder = made / "explain" / name_of(sentences)
    assert output.splitlines()[-1] == f"the page is {folder}.html"
    assert all((folder / "2" / f"{kind}.csv").exists() for kind in ("encoder", "decoder", "cross"))
    examples = data_of(folder.with_suffix(".html"))["examples"]
    assert [example["name"] for example in examples] == sentences
    best, *others = examples[0]["translations"]
    assert f"drawing {folder / '1'}: {SENTENCE} → {best['text']}\n" in output
    assert best["tokens"] == examples[0]["predicted"] and len(others) == 4
    assert best["score"] == pytest.approx(sum(best["log_probs"]), abs=1e-3)
    assert {len(step) for step in best["alternatives"]} == {5}
    assert len(examples[0]["movement"]["encoder"][0]) == 5


def test_names_of_sentences():
    names = [name_of([text]) for text in ("the song", "the song!", "The song", "?" * 300)]
    assert len({*map(str.lower, names)}) == 4 and max(map(len, names)) < 50
    assert names[0].startswith("the_song_")


def test_split(run_explain, made, monkeypatch):
    for name, number in (("DRAWN", 1), ("IN_PAGE", 2), ("MEASURED", 3), ("EXPLAINED", 2)):
        monkeypatch.setattr(command, name, number)
    monkeypatch.setattr(command, "FAMILIAR", (SENTENCE, "the blorp was happy"))
    status, _, error = run_explain("--split=validation")
    assert (status, error) == (0, "")
    folder = made / "explain" / "validation"
    heads = rows_of(folder / "heads.csv")
    assert heads == rows_of(folder / "heads_untrained.csv")  # the run has the initial parameters
    assert [row["kind"] for row in heads].count("cross") == 2
    names = [row["alignment"] for row in rows_of(folder / "alignment.csv")]
    assert names == ["best head", "best heads together", "diagonal"]
    assert len((folder / "alignment.pharaoh").read_text().splitlines()) > 10
    assert json.loads((folder / "origin.json").read_text())["step"] == 0
    replaced = rows_of(folder / "replaced_weights.csv")
    for row in replaced:  # initial parameters have nothing to lose
        assert 3 < float(row["loss"]) < 9 and abs(float(row["rise with uniform weights"])) < 0.5
    assert (len(replaced), len(rows_of(folder / "agreement.csv"))) == (3, 7)
    data = data_of(made / "explain" / "validation.html")
    assert [row["kind"] for row in data["heads"]] == [row["kind"] for row in heads]
    assert len(data["examples"]) == 1 + 2  # a sentence with an unknown word is left out
    assert data["examples"][0]["name"] == SENTENCE


PAIRS = f"{SENTENCE}\tla fille était heureuse\n"
FILES = "--file=mine.tsv", "--gold=mine.gold", "--gold_first=1"


def test_file_of_pairs(run_explain, made, monkeypatch):
    monkeypatch.setattr(command, "DRAWN", 1)
    monkeypatch.chdir(made)
    Path("mine.tsv").write_text(2 * PAIRS, encoding="utf-8-sig")
    Path("mine.gold").write_text(2 * "1-1 2-2 3-3 4-4\n")
    status, output, error = run_explain(*FILES)
    assert (status, error) == (0, "")
    folder = made / "explain" / "mine.tsv"
    assert f"{folder / '1'}: {SENTENCE} → la fille était heureuse\n" in output
    given, other, *_ = data_of(made / "explain" / "mine.tsv.html")["examples"][0]["translations"]
    assert (given["text"], given["given"]) == ("la fille était heureuse", True)
    assert not other["given"]
    assert rows_of(folder / "alignment.csv")[-1]["AER"] == "0.0"  # of the diagonal
    Path("test").write_text("the girl , was happy\n")
    folder = made / "explain" / "file_test"  # not the folder of a split
    status, output, error = run_explain("--file=test")
    assert (status, error) == (0, "") and "words are aligned by " in output
    (line,) = (folder / "alignment.pharaoh").read_text().splitlines()
    assert not any(link.startswith("2-") for link in line.split())  # a comma is no token
    assert (folder / "alignment.tsv").read_text().startswith("the girl , was happy\t")


@pytest.mark.parametrize(
    ("text", "links", "flags", "message"),
    [
        ("", "", FILES, "mine.tsv is empty"),
        ("a\tb\tc\n", "", FILES, "line 1: a line has at most one tab"),
        (PAIRS + "the girl\n", "1-1\n1-1\n", FILES, "line 2: --gold needs a tab"),
        (2 * PAIRS, "1-1\n", FILES, "has 1 lines, and there are 2 sentences"),
        (2 * PAIRS, "1-1\n0-1\n", FILES, "line 2: the link 0-1 is not between words"),
        ("", "", ["--sentence=" + "the " * 32], "--sentence: the line has 32 tokens, and"),
        ("", "", ["--sentence=a", "--split=test"], "takes one of --sentence and --split"),
        ("", "", ["--sentence=the girl", "--layer=2"], "up to layer 1, head 2, got layer 2, head"),
        ("", "", ["--file=missing.txt"], "--file=missing.txt cannot be read: "),
    ],
)
def test_mistakes(run_explain, tmp_path, monkeypatch, text, links, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.tsv").write_text(text)
    (tmp_path / "mine.gold").write_text(links)
    status, _, error = run_explain(*flags)
    assert status == 2 and message in error and error.count("\n") == 1


def test_model_without_attention(made, run_command):
    folder = make_untrained(made.parent, "word_vectors")
    status, _, error = run_command("--mode=explain", workdir=folder)
    assert (status, error) == (2, "run.py: word_vectors has no attention to explain\n")
