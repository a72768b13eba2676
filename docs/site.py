"""Build the site: the documents, the tutorial with its results, and the API reference.

python -m docs.site          build/site/html/index.html

The tutorial is what `python -m docs.tutorial.notebooks` wrote. A trained model's page of
`--mode=explain` becomes a part of the site, with a file of the model, if it is given:
python -m docs.site PAGE.html
"""

import re
import shutil
import sys
from itertools import groupby
from pathlib import Path

import nbformat
from nbformat import NotebookNode, v4
from sphinx.cmd.build import main as sphinx

from docs.tutorial.notebooks import BUILD as NOTEBOOKS
from docs.tutorial.notebooks import LINK, PAGES, read_page, repository_link

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
SITE = REPOSITORY / "build" / "site"
SOURCE = SITE / "source"
# Pages of the site that are files of other folders, by their paths in the repository.
OTHERS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "experiments/RESULTS.md": "results.md",
}
GROUPS = {
    "Tutorial": [
        "tutorial/README",
        *(f"tutorial/{page.stem}" for page in PAGES),
        "tutorial/QUESTIONS",
    ],
    "Library": ["attention", "modules", "architectures", "argument_names", "ecosystem", "api"],
    "Tasks": [
        "translation",
        "language_model",
        "masked_language_model",
        "classification",
        "word_vectors",
    ],
    "Experiments": ["training", "scaling", "explain", "extending", "results"],
    "Measurements": ["BENCHMARKS", "MODELS", "CONFORMANCE"],
    "Code": ["architecture", "contributing"],
}
PACKAGES = [f"attention.{name}" for name in ("modules", "decoding", "weights", "testing")]
MODULES = ["attention.primitives.masks", "attention.primitives.scores"]
EMBEDDED = """# A trained model to explore

<iframe src="page.html" title="attention of a trained model" width="100%" height="900"></iframe>

<a href="RUN.zip">RUN.zip</a> contains the trained model. Unzipped in `workdirs/` of the repository,
it is used without training:

```sh
echo "Jane visits Africa in September" | python run.py --mode=predict --workdir=workdirs/RUN
python run.py --mode=explain --workdir=workdirs/RUN --sentence="Jane visits Africa"
```
"""

# The notebooks of `build/notebooks` contain their pictures; Sphinx does not know these files.
STANDALONE = """Notebooks of this page to download:
<a href="../notebooks/PAGE.ipynb" download>with results and answers</a>,
<a href="../notebooks/exercises/PAGE.ipynb" download>for students, with hidden tests</a>.
"""


def main(page: str | None = None) -> int:
    """Write the sources of the site, and build it; return the status of Sphinx.

    Args:
        page: an HTML file of `--mode=explain`, which is embedded; its run becomes a zip file.
    """
    run = Path(page).resolve().parents[1] if page else None
    if run and not (run / "config.json").exists():
        raise SystemExit(f"{page} is not in the folder explain of a run")
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(DOCS, SOURCE, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name, target in OTHERS.items():
        shutil.copy(REPOSITORY / name, SOURCE / target)
    for path in SOURCE.rglob("*.md"):
        path.write_text(with_links(path.read_text(encoding="utf-8"), path), encoding="utf-8")
    for path in PAGES:
        copy = SOURCE / "tutorial" / path.name
        cells = read_page(copy.read_text(encoding="utf-8")).cells
        notebook = nbformat.read(NOTEBOOKS / f"{path.stem}.ipynb", as_version=4)
        for ran, cell in zip(notebook.cells[-len(cells) :], cells, strict=True):
            ran.source = cell.source  # with the links of the site
        link = v4.new_markdown_cell(STANDALONE.replace("PAGE", path.stem))
        notebook.cells = [*folded(notebook.cells), link]
        nbformat.write(notebook, copy.with_suffix(".ipynb"))
        copy.unlink()
    groups = dict(GROUPS)
    if page and run:
        # In the site, the steps of a calculation link to the pages of the tutorial.
        linked = (
            Path(page)
            .read_text(encoding="utf-8")
            .replace('<html lang="en">', '<html lang="en" data-tutorial="tutorial/">', 1)
        )
        (SITE / "html").mkdir()
        (SITE / "html" / "page.html").write_text(linked, encoding="utf-8")
        shutil.make_archive(str(SITE / "html" / run.name), "zip", run.parent, run.name)
        text = EMBEDDED.replace("RUN", run.name)
        (SOURCE / "trained_model.md").write_text(text, encoding="utf-8")
        groups["Tutorial"] = [*groups["Tutorial"], "trained_model"]
    (SOURCE / "api.md").write_text(reference(), encoding="utf-8")
    with (SOURCE / "index.md").open("a", encoding="utf-8") as index:
        index.write("".join(map(contents, groups, groups.values())))
    shutil.copytree(NOTEBOOKS, SITE / "html" / "notebooks")  # for Colab and download
    return sphinx(["-W", "--keep-going", "-q", "-c", str(DOCS), str(SOURCE), str(SITE / "html")])


def folded(cells: list[NotebookNode]) -> list[NotebookNode]:
    """Return cells with each answer in a fold, its text too, which Sphinx does not hide."""
    shown = []
    for is_answer, group in groupby(cells, lambda cell: "tags" in cell.metadata):
        begin, end = "<details><summary>Answer</summary>", "</details>"
        cells = [v4.new_markdown_cell(begin), *group, v4.new_markdown_cell(end)]
        for cell in cells:
            cell.metadata.pop("tags", None)
        shown += cells if is_answer else cells[1:-1]
    return shown


def with_links(text: str, path: Path) -> str:
    """Return a page with links to pages of the site, and to the repository if its address is set.

    Args:
        text: of the page in the repository.
        path: of its copy in the sources of the site.
    """
    moved = {target: name for name, target in OTHERS.items()}
    name = str(path.relative_to(SOURCE))
    folder = (REPOSITORY / moved[name] if name in moved else DOCS / name).parent

    def replace(match: re.Match[str]) -> str:
        text, file, anchor = match.groups("")
        target = (folder / file).resolve()
        place = str(target.relative_to(REPOSITORY))
        if place in OTHERS or (target.is_relative_to(DOCS) and target.suffix != ".py"):
            inside = OTHERS.get(place, place.removeprefix("docs/"))
            inside = inside.replace(".md", ".ipynb") if target in PAGES else inside
            return f"{text}({'../' * name.count('/')}{inside}{anchor})"
        return repository_link(text, target, anchor)

    prose = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    prose[::2] = [LINK.sub(replace, piece) for piece in prose[::2]]
    return "".join(prose)


def contents(title: str, pages: list[str]) -> str:
    """Return a table of contents that is shown at the side alone."""
    names = "\n".join(pages)
    return f"\n```{{toctree}}\n:caption: {title}\n:hidden:\n\n{names}\n```\n"


def reference() -> str:
    """Return the page of the API reference."""
    names = [f"{name}\n   :imported-members:" for name in ("attention", *PACKAGES)] + MODULES
    blocks = (f"```{{eval-rst}}\n.. automodule:: {name}\n```\n" for name in names)
    return "# API reference\n\n" + "\n".join(blocks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
