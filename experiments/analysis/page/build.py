"""The page of `--mode=explain`: one HTML file that makes no request."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attention.show import FILES, embedded
from experiments.analysis.page.model_data import NotInPageError, model_data
from experiments.data.tokenizers import SPECIALS
from experiments.files import write_whole
from experiments.learner import TrainState

if TYPE_CHECKING:
    from experiments.tasks.task import Task

FOLDER = Path(__file__).parent
# In the order in which they are loaded; each uses functions of those before it.
SCRIPTS = (
    "arrays.js",
    "model.js",
    "calculation.js",
    "decode.js",
    "tokens.js",
    "maps.js",
    "dom.js",
    "lines.js",
    "grid.js",
    "tables.js",
    "steps.js",
    "panels.js",
    "worked.js",
    "typing.js",
    "controls.js",
)
MOST_WEIGHTS = 1_000_000  # characters of all maps of a page without a model, in base64


def write_explanation(
    path: Path,
    task: "Task",
    state: TrainState,
    examples: list[dict[str, Any]],
    heads: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the page of a trained model, of examples of `examples_data` and a table of heads."""
    try:
        model, notes = model_data(task, state), []
    except NotInPageError as error:
        model, notes = None, [f"The model is not in this page: {error}."]
    shown = limited(examples, MOST_WEIGHTS, can_compute=model is not None)
    if len(shown) < len(examples):
        notes.append(f"{len(examples) - len(shown)} examples are too large for this page.")
    write_page(
        path,
        {
            "title": f"Attention of {path.parents[1].resolve().name}",
            "task": task.config.task,
            "special": special_labels(examples),
            "examples": shown,
            "heads": [_rounded(row) for row in heads],
            "notes": notes,
            "model": model,
        },
    )


def special_labels(examples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the labels of special tokens; [] if the stacks of no example read one."""
    found = set()
    for each in (stack for example in examples for stack in example["stacks"].values()):
        before, after = each["special"]
        found |= {*each["labels"][:before], *each["labels"][len(each["labels"]) - after :]}
    return sorted({*SPECIALS} | found) if found else []


def limited(
    examples: list[dict[str, Any]], most: int, *, can_compute: bool
) -> list[dict[str, Any]]:
    """Return examples without weights if the page computes them, else those that are small enough.

    Args:
        examples: of `examples_data`.
        most: bytes of all weights, in base64; the first example is kept in any case.
        can_compute: whether the page has the model.
    """
    kept, total = [], 0
    for example in examples:
        size = sum(len(maps["weights"]) for maps in example["maps"].values())
        if can_compute:
            maps = {kind: each | {"weights": None} for kind, each in example["maps"].items()}
            kept.append(example | {"maps": maps})
        elif total + size <= most or not kept:
            total += size
            kept.append(example)
    return kept


def write_page(path: Path, data: Mapping[str, Any]) -> None:
    """Write one HTML file with its style, its scripts and its data; equal data are equal bytes.

    Args:
        path: of the file.
        data: as in `docs/explain.md`, in JSON types.
    """
    grid_style, grid_script = ((files("attention") / name).read_text("utf-8") for name in FILES)
    scripts = [grid_script, *((FOLDER / name).read_text("utf-8") for name in SCRIPTS)]
    style = grid_style + (FOLDER / "style.css").read_text("utf-8")
    template = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined
    ).get_template("page.html")
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(map(digest, scripts))}",
        f"style-src {digest(style)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    page = template.render(
        title=data["title"],
        policy="; ".join(policy),
        style=Markup(style),
        scripts=[*map(Markup, scripts)],
        data=Markup(embedded(data)),
    )
    write_whole(path, page)


def digest(text: str) -> str:
    """Return the hash of an inline script or style, as a Content-Security-Policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(each, 4) if isinstance(each, float) else each for name, each in row.items()}
