"""The tutorial: each page runs as a notebook, prints what it says, and shows its pictures."""

import re

import pytest

from docs.tutorial.notebooks import FOLDER, PAGES, run_page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_prints_what_it_says(page):
    cells = [cell for cell in run_page(page).cells if cell.cell_type == "code"]
    printed = ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]
    assert printed == [cell.metadata.get("expected", "") for cell in cells]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_exercises_with_answers_and_pictures(page):
    text = page.read_text(encoding="utf-8")
    _, exercises = text.split("\n## Exercises\n")
    asked = re.findall(r"^\d\. ", exercises, re.MULTILINE)
    assert 3 <= len(asked) == exercises.count("<details><summary>Answer</summary>\n") <= 5
    for name in re.findall(r"\]\((images/.+?)\)", text):
        assert (FOLDER / name).exists(), name


def test_each_question_names_its_page():
    questions = (FOLDER / "QUESTIONS.md").read_text(encoding="utf-8")
    pages = re.findall(r"^\d+\. .+?\]\((\d\d_\w+\.md)", questions, re.MULTILINE)
    assert len(pages) >= 40
    assert {*pages} == {page.name for page in PAGES}
