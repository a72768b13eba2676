"""Files that are whole or not there."""

from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file so that it is there whole or not at all, whenever the process is killed."""
    part = part_of(path)
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    part.replace(path)


def part_of(path: Path) -> Path:
    """Where a file is written before it is whole."""
    return path.with_name(path.name + ".part")
