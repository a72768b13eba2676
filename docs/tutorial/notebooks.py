"""Run the pages of the tutorial as notebooks: each page is a program, with results and pictures.

python -m docs.tutorial.notebooks       pages that changed, into build/notebooks
python -m docs.tutorial.notebooks 02    pages with this prefix
"""

import os
import re
import shutil
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode, v4
from traitlets.config import Config

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parents[1]
BUILD = REPOSITORY / "build" / "notebooks"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
PROGRAM = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
ANSWER = re.compile(r"^<details>.*?</summary>\n(.*?)^</details>\n", re.DOTALL | re.MULTILINE)
PRINTED = re.compile(r"(?<=\)\n)(?:# .*\n)+")  # comments after a `print` contain its output
HIDDEN = {"tags": ["hide-cell"], "jupyter": {"source_hidden": True}}


def main(prefix: str = "") -> None:
    """Run the pages that are newer than their notebooks, or whose library is."""
    sources = [*FOLDER.rglob("*.py"), *(REPOSITORY / "attention").rglob("*.py")]
    newest = max(path.stat().st_mtime for path in sources)

    def is_old(page: Path) -> bool:
        notebook = BUILD / f"{page.stem}.ipynb"
        changed = max(newest, page.stat().st_mtime)
        return not notebook.exists() or notebook.stat().st_mtime < changed

    # The last pages train models and take longest, so they run first.
    pages = [page for page in PAGES[::-1] if page.name.startswith(prefix) and is_old(page)]
    with ThreadPoolExecutor(2) as pool:  # each page runs in its own process
        for page, _ in zip(pages, pool.map(run_page, pages), strict=True):
            print(f"build/notebooks/{page.stem}.ipynb")
    (BUILD / "images").mkdir(parents=True, exist_ok=True)  # even if no page was run
    shutil.copytree(BUILD / "images", FOLDER / "images", dirs_exist_ok=True)
    shutil.copytree(FOLDER.parent / "images", BUILD.parent / "images", dirs_exist_ok=True)


def run_page(page: Path) -> NotebookNode:
    """Run the program of a page, draw its pictures, and write both to `build/notebooks`.

    Raises:
        nbclient.exceptions.CellExecutionError: an error in a cell, with its traceback.
    """
    notebook = read_page(page.read_text(encoding="utf-8"))
    shown = notebook.cells
    # The pictures are drawn from what the program has computed.
    draw = f"""from pathlib import Path
from tempfile import TemporaryDirectory
from docs.tutorial.pictures import draw
draw({page.stem!r}, globals(), Path({str(BUILD / "images")!r}))"""
    notebook.cells = [*shown, v4.new_code_cell(draw)]
    resources = {"metadata": {"path": str(REPOSITORY)}}
    with TemporaryDirectory() as folder:  # of sockets, which are files and no open ports
        sockets = Config(ConnectionFileMixin={"transport": "ipc", "ip": f"{folder}/kernel"})
        client = NotebookClient(notebook, config=sockets, timeout=300, resources=resources)
        # Most of the time is compilation, and programs that run once need not run fast.
        client.execute(env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"})
    notebook.cells = [*opening(page.stem), *shown]
    nbformat.write(notebook, BUILD / f"{page.stem}.ipynb")
    return notebook


def address() -> str:
    """Return the address of the repository in pyproject.toml, "" if it is not set."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository", "")


def opening(page: str) -> list[NotebookNode]:
    """Return cells that open a notebook in Colab and install the library there."""
    if not (repository := address()):
        return []
    colab = repository.replace("https://github.com", "https://colab.research.google.com/github")
    link = f"[Open in Colab]({colab}/blob/gh-pages/notebooks/{page}.ipynb)"
    install = f'%pip install -q "attention-jax @ git+{repository}" optax  # in Colab'
    return [v4.new_markdown_cell(link), v4.new_code_cell(install)]


def read_page(text: str) -> NotebookNode:
    """Return the cells of a page: its Python blocks, and the text between.

    An answer that is folded in the page becomes a hidden cell, after an empty one to write in.
    """
    cells, end = [], 0
    for fold in ANSWER.finditer(text):
        cells += _cells(text[end : fold.start()])
        cells.append(v4.new_code_cell("# Your answer"))
        for cell in _cells(fold[1]):
            cell.metadata.update(HIDDEN)
            cells.append(cell)
        end = fold.end()
    return v4.new_notebook(cells=cells + _cells(text[end:]))


def _cells(text: str) -> list[NotebookNode]:
    # Text and programs take turns.
    cells = []
    for number, piece in enumerate(PROGRAM.split(text)):
        if number % 2:
            cell = v4.new_code_cell(PRINTED.sub("", piece).strip())
            printed = "".join(PRINTED.findall(piece))
            cell.metadata["expected"] = re.sub(r"^# ", "", printed, flags=re.MULTILINE)
            cells.append(cell)
        elif piece.strip():
            cells.append(v4.new_markdown_cell(piece.strip()))
    return cells


if __name__ == "__main__":
    main(*sys.argv[1:])
