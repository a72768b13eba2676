"""The tutorial: each page runs as a notebook, prints what it says, and shows its pictures."""

import builtins
import re
from dis import get_instructions

import jax
import pytest

from docs.tutorial.notebooks import BUILD, FOLDER, PAGES, read_page, run_page
from docs.tutorial.pictures import draw, pictures_of


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_prints_what_it_says_and_draws_its_pictures(page, capsys, tmp_path):
    """In this process: to start that of a notebook takes as long as most pages."""
    names, cells = {}, read_page(page.read_text(encoding="utf-8")).cells
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for cell in (cell for cell in cells if cell.cell_type == "code"):
            exec(compile(cell.source, page.name, "exec"), names)
            assert capsys.readouterr().out == cell.metadata.get("expected", "")
        draw(page.stem, names, tmp_path)


def test_page_is_a_notebook():
    for cell in run_page(PAGES[-1]).cells:
        assert not (expected := cell.metadata.get("expected")) or cell.outputs[0].text == expected
    for path in BUILD.rglob(f"{PAGES[-1].stem}.ipynb"):  # with answers and without
        assert not re.search(r"\]\([\w./]+\.(md|py|svg)", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_exercises_with_answers_and_pictures(page):
    _, exercises = (text := page.read_text(encoding="utf-8")).split("\n## Exercises\n")
    asked = re.findall(r"^\d\. ", exercises, re.MULTILINE)
    cells = read_page(exercises, answers=False).cells
    programs = [cell.source.split()[0] for cell in cells if cell.cell_type == "code"]
    assert 3 <= len(asked) == programs.count("#") <= 5 and {*programs} == {"#", "assert"}
    cells = [cell for cell in read_page(text, answers=False).cells if cell.cell_type == "code"]
    program = re.sub("# Your answer: (.+)", r"[\1] = 0", "\n".join(cell.source for cell in cells))
    steps = {(step.opname, step.argval) for step in get_instructions(program)}
    loaded = {name for kind, name in steps if kind == "LOAD_NAME"} - {*dir(builtins)}
    assert loaded <= {name for kind, name in steps if kind == "STORE_NAME"}
    shown = re.findall(r"\]\(images/(\w+)\.svg\)", text)
    assert sorted(shown) == sorted(picture.__name__ for picture in pictures_of(page.stem))


def test_each_image_is_drawn_by_a_page():
    drawn = {picture.__name__ for page in PAGES for picture in pictures_of(page.stem)}
    assert {path.stem for path in (FOLDER / "images").iterdir()} == drawn


def test_each_question_names_its_page():
    questions = (FOLDER / "QUESTIONS.md").read_text(encoding="utf-8")
    pages = re.findall(r"^\d+\. .+?\]\((\d\d_\w+\.md)", questions, re.MULTILINE)
    assert len(pages) >= 40 and {*pages} == {page.name for page in PAGES}
    for page, anchor in re.findall(r"\]\((\d\d_\w+\.md)#(.+?)\)$", questions, re.MULTILINE):
        headings = re.findall(r"^#+ (.+)$", (FOLDER / page).read_text(encoding="utf-8"), re.M)
        # GitHub keeps letters, digits, "_" and "-" of a heading, and writes "-" for a space.
        anchors = [re.sub(r"[^\w\- ]", "", text).lower().replace(" ", "-") for text in headings]
        assert anchor in anchors, (page, anchor)
