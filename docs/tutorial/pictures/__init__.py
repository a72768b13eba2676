"""Pictures of the tutorial: a module for each page, which draws what its program has computed.

`PICTURES` of a module contains functions of these names. Each returns a figure of matplotlib, or
the text of an SVG image, and has the name of its file.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

# Equal pictures are equal files: text stays text, ids have a fixed salt, and there is no date.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "attention", "font.size": 9}
METADATA = {"Date": None, "Creator": None}


def pictures_of(page: str) -> tuple[Callable[[dict[str, Any]], Figure | str], ...]:
    """Return the functions that draw the pictures of a page; () if it has no module."""
    name = page.partition("_")[2]
    if not (Path(__file__).parent / f"{name}.py").exists():
        return ()
    return import_module(f"{__name__}.{name}").PICTURES


def draw(page: str, names: dict[str, Any], folder: Path) -> None:
    """Draw the pictures of a page, as "02_one_query", into a folder.

    Args:
        page: name of the page without its suffix.
        names: what the program of the page has defined.
        folder: gets a file `FUNCTION.svg` for each picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures_of(page):
        path = folder / f"{picture.__name__}.svg"
        drawn = picture(names)
        if isinstance(drawn, Figure):
            with matplotlib.rc_context(STYLE):
                drawn.savefig(path, metadata=METADATA, bbox_inches="tight")
        else:
            path.write_text(drawn, encoding="utf-8")
