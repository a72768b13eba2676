"""Run the pages of the tutorial as notebooks: each page is a program, with results and pictures.

python -m docs.tutorial.notebooks       pages that changed, into build/notebooks
python -m docs.tutorial.notebooks 02    pages with this prefix

`build/notebooks/exercises` contains the same pages for students: without results, and with a hidden
test of each exercise in place of its answer. The pictures are in the notebooks.
"""

import ast
import os
import re
import shutil
import sys
import tomllib
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from dis import get_instructions
from html import escape
from mimetypes import guess_type
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
ASSERTS = re.compile(r"^assert .*?(?=\n```)", re.DOTALL | re.MULTILINE)  # the test of a program
LINK = re.compile(r"(!?\[[^]]*\])\(([^)#: ]+)(#[^)]*)?\)")  # relative: text, file, anchor
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


def run_page(page: Path) -> NotebookNode:
    """Run the program of a page, draw its pictures, and write its two notebooks.

    Raises:
        nbclient.exceptions.CellExecutionError: an error in a cell, with its traceback.
    """
    text = page.read_text(encoding="utf-8")
    notebook = read_page(text)
    # The pictures are drawn from what the program has computed.
    draw = f"""from pathlib import Path
from tempfile import TemporaryDirectory
from docs.tutorial.pictures import draw
draw({page.stem!r}, globals(), Path({str(BUILD / "images")!r}))"""
    notebook.cells.append(v4.new_code_cell(draw))
    resources = {"metadata": {"path": str(REPOSITORY)}}
    with TemporaryDirectory() as folder:  # of sockets, which are files and no open ports
        sockets = Config(ConnectionFileMixin={"transport": "ipc", "ip": f"{folder}/kernel"})
        client = NotebookClient(
            notebook, config=sockets, timeout=300, coalesce_streams=True, resources=resources
        )
        # Most of the time is compilation, and programs that run once need not run fast.
        client.execute(env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"})
    notebook.cells.pop()
    write(read_page(text, answers=False), f"exercises/{page.stem}")
    write(notebook, page.stem)
    return notebook


def write(notebook: NotebookNode, name: str) -> None:
    """Write a notebook to `BUILD`, with its pictures in it and with links that work there."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(_standalone, cell.source)
    notebook.cells = [*opening(name), *notebook.cells]
    (BUILD / name).parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, BUILD / f"{name}.ipynb")


def _standalone(match: re.Match[str]) -> str:
    text, file, anchor = match.groups("")
    path = (FOLDER / file).resolve()
    if text.startswith("!"):  # as HTML: in Markdown some editors refuse SVG
        drawn = BUILD / file if file.startswith("images/") else path
        data = f"{guess_type(file)[0]};base64,{b64encode(drawn.read_bytes()).decode()}"
        return f'<img alt="{escape(text[2:-1])}" src="data:{data}">'
    if path in PAGES:
        return f"{text}({path.stem}.ipynb{anchor})"
    return repository_link(text, path, anchor)


def repository_link(text: str, path: Path, anchor: str) -> str:
    """Return a link "[text]" to a file of the repository, or the text if its address is not set."""
    place = f"{address()}/blob/main/{path.relative_to(REPOSITORY)}{anchor}"
    return f"{text}({place})" if address() else text[1:-1]


def address() -> str:
    """Return the address of the repository in pyproject.toml, "" if it is not set."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"].get("urls", {}).get("Repository", "")


def opening(page: str) -> list[NotebookNode]:
    """Return cells that open a notebook in Colab and install the library there."""
    if not (repository := address()):
        return []
    colab = repository.replace("https://github.com", "https://colab.research.google.com/github")
    link = f"[Open in Colab]({colab}/blob/gh-pages/notebooks/{page}.ipynb)"
    install = f'%pip install -q "attention-jax @ git+{repository}"  # in Colab'
    return [v4.new_markdown_cell(link), v4.new_code_cell(install)]


def read_page(text: str, *, answers: bool = True) -> NotebookNode:
    """Return the cells of a page: its Python blocks, and the text between.

    A folded answer, or its test if not `answers`, is hidden after an empty cell to write in. That
    cell contains the names that the test uses.
    """
    cells, end = [], 0
    for fold in ANSWER.finditer(text):
        cells += _cells(text[end : fold.start()])
        tests = {} if answers else _tests(fold[1], text[: fold.start()])
        names = sorted(set().union(*tests.values()))
        cells.append(v4.new_code_cell(f"# Your answer: {', '.join(names)}".removesuffix(": ")))
        for cell in _cells(fold[1]) if answers else map(v4.new_code_cell, tests):
            cell.metadata.update(HIDDEN)
            cells.append(cell)
        end = fold.end()
    return v4.new_notebook(cells=cells + _cells(text[end:]))


def _tests(answer: str, page: str) -> dict[str, set[str]]:
    """Return the asserts of an answer that test names of its program, with these names."""

    def defined(text: str) -> set[str]:
        """Return the names that the programs of a text define in the module, not in functions."""
        steps = get_instructions("\n".join(PROGRAM.findall(text)))
        return {step.argval for step in steps if step.opname == "STORE_NAME"}

    def names(test: str, kind: type[ast.expr_context]) -> set[str]:
        nodes = ast.walk(ast.parse(test))
        return {node.id for node in nodes if isinstance(node, ast.Name) and type(node.ctx) is kind}

    own = defined(answer) - defined(ANSWER.sub("", page))
    tests = {
        test: own & names(test, ast.Load) - names(test, ast.Store)
        for test in ASSERTS.findall(answer)
    }
    return {test: used for test, used in tests.items() if used}


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
