"""Animated picture of the attention of one sentence, as it forms during training."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.analysis.collect import CROSS, Attended, AttentionMaps
from experiments.analysis.figures import maps_figure, rendered
from experiments.errors import UsageError
from experiments.files import write_whole
from experiments.json_files import read_json_lines

DIGITS = 3  # of stored weights
COLORS_OF_FRAME = 64
DURATION, LAST = 200, 2_000  # milliseconds of a frame, and of the last one


def shown_maps(found: Attended) -> AttentionMaps:
    """Return the last layer of cross-attention, or of the self-attention of a single stack."""
    maps = found.maps.get(CROSS) or next(iter(found.maps.values()))
    return maps._replace(layers=maps.layers[-1:], weights=maps.weights[-1:])


def as_row(step: int, maps: AttentionMaps) -> dict[str, Any]:
    """Return the maps after a step as JSON values."""
    values = {name: [*value] for name, value in maps._asdict().items() if name != "kind"}
    values["weights"] = np.round(maps.weights.astype(np.float64), DIGITS).tolist()
    return {"step": step, "kind": maps.kind, **values}


def read_rows(path: Path) -> dict[int, AttentionMaps]:
    """Read the maps of a training by step; those of a resumed run replace earlier ones.

    A last row that a kill cut short, or that is being written, is left out.

    Raises:
        UsageError: a damaged file.
    """
    frames = {}
    try:
        for row in read_json_lines(path, {"step": int, "weights": list}):
            step, weights = row.pop("step"), np.array(row.pop("weights"), np.float32)
            frames[step] = AttentionMaps(weights=weights, **row)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return dict(sorted(frames.items()))


def draw_animation(frames: Mapping[int, AttentionMaps], path: Path) -> None:
    """Write a GIF with a frame for each step; equal maps are equal bytes."""
    from PIL import Image

    images = [
        Image.open(io.BytesIO(rendered(maps_figure(maps, title=f"step {step:,}"), ".png", dpi=80)))
        for step, maps in frames.items()
    ]
    images = [image.convert("RGB") for image in images]
    palette = images[-1].quantize(COLORS_OF_FRAME)
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    content = io.BytesIO()
    first.save(
        content,
        format="GIF",
        save_all=True,
        append_images=others,
        duration=[DURATION] * len(others) + [LAST],
        loop=0,
    )
    write_whole(path, content.getvalue())
