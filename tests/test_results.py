"""Figures of trained models in README, docs and cards are those of `results/*.json`."""

import re
from pathlib import Path

import pytest

from configs.ledger import get_config
from experiments.ledger import documents
from experiments.result_tables import BLOCK, CARD, Results

REPOSITORY = Path(__file__).resolve().parent.parent
MEASURED = {"BENCHMARKS.md", "CONFORMANCE.md", "MODELS.md", "STEPS.md"}  # not of trained models
SCORES = "BLEU|chrF|[Pp]erplexity|[Ee]xact match|[Aa]ccuracy|[Ll]oss"
CELL = r"(?<=\| )[+-]? ?\d+\.\d+(?: to \d+\.\d+)? (?=\|)"
FIGURE = re.compile(rf"\d\.\d+ ?%|\d ± \d|\b(?:{SCORES})(?: of| is)? \d|{CELL}")


def figures(text):
    """Return figures of models in prose: outside of blocks of results, cards, and programs."""
    for pattern in (BLOCK, CARD, re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)):
        text = pattern.sub("", text)
    return FIGURE.findall(text)


@pytest.fixture(autouse=True)
def repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


@pytest.fixture(scope="module")
def results():
    return Results.load(REPOSITORY / "results", REPOSITORY / "configs")


def test_documents_and_cards_contain_the_figures_of_the_records(results):
    texts = {path: path.read_text() for path in documents(get_config())}
    old = [str(path) for path, text in texts.items() if results.updated(path) != text]
    assert old == [], "update them: python run.py --mode=ledger --config.folder="


def test_documents_have_no_figure_of_a_model_outside_of_tables_of_results(results):
    files = [path for path in documents(get_config()) if path.name not in MEASURED]
    files = [path for path in files if path.suffix == ".md" or path.stem in results.configs]
    prose = {path: figures(path.read_text()) for path in files}
    assert {str(path): found for path, found in prose.items() if found} == {}


@pytest.mark.parametrize(
    "text",
    ["an error of 4.8 %", "98.86%", "a BLEU of 41.6", "perplexity 5.5", "99.3 ± 0.1", "| 4.8 |"],
)
def test_a_figure_in_prose_is_found(text):
    assert figures(f"It has {text}.")
    assert not figures(f"<!-- results:\ncopy\n-->\n{text}\n<!-- end of results -->")
