"""A record of what was measured, as JSON, and the page that is made from it alone."""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from experiments.config.files import REPOSITORY
from experiments.environment import environment
from experiments.errors import UsageError
from experiments.files import write_whole
from experiments.origin import command, commit

PACKAGES = "flax", "torch", "tokamax", "ctranslate2"
Record = Mapping[str, Any]  # field → JSON


def origin() -> dict[str, str]:
    """Return the command of this process, the commit of this code, the machine and the versions."""
    found = {"command": command(), "commit": commit(REPOSITORY), **environment()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def beginning(introduction: str, where: Mapping[str, str]) -> str:
    """Return the begin of a page: its introduction, and the origin of the record."""
    machine = "; ".join(
        f"{name} {value}" for name, value in where.items() if name not in ("command", "commit")
    )
    return (
        f"{introduction}\n```sh\n{where['command']}\n```\n\n"
        f"Measured at commit {where['commit']} on {machine}.\n"
    )


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first line is the head."""
    head, *body = lines
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *body])


def as_json(record: Record) -> str:
    """Return a record as JSON: numbers of six digits, each element of a list on its own line."""
    text = json.dumps(record)
    record = json.loads(text, parse_float=lambda number: float(f"{float(number):.6g}"))

    def written(value: object) -> str:
        if not isinstance(value, list) or not value:
            return json.dumps(value, ensure_ascii=False)
        lines = [json.dumps(each, ensure_ascii=False) for each in value]
        return "[\n{}\n]".format(",\n".join(lines))

    fields = [f"{json.dumps(name)}: {written(value)}" for name, value in record.items()]
    return "{{\n{}\n}}\n".format(",\n".join(fields))


def save(record: Record, make_page: Callable[[Record], str], path: Path, copy: str) -> str:
    """Write a record as JSON, and its page beside it; return the page.

    Args:
        record: what was measured.
        make_page: makes the page.
        path: of the record, a `.json` file.
        copy: path of another copy of the page, which has a copy of the record beside it; "" for
            none.
    """
    text = as_json(record)
    page = make_page(json.loads(text))
    for place in [path, *([Path(copy)] if copy else [])]:
        write_whole(place.with_suffix(".json"), text)
        write_whole(place.with_suffix(".md"), page)
    return page


def check_page(page: str) -> None:
    """Check the place of another copy of the page and the record.

    Raises:
        UsageError: no Markdown file, or its folder does not exist.
    """
    if page and not Path(page).parent.is_dir():
        raise UsageError(f"page={page} has no folder to be written to")
    if page and Path(page).suffix != ".md":
        raise UsageError(f"page={page} must end in .md")
