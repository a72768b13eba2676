import csv

import matplotlib
import numpy as np
import pytest

from experiments.analysis.collect import AttentionMaps
from experiments.analysis.figures import COLORS, FORMATS, MARK, draw_maps, draw_mask, write_csv

TOKENS = ["the", "$x$", "</text>", "עברית", "é", "😀"]
# Linear RGB as a person without one kind of cones sees it (Machado et al. 2009, severity 1).
BLINDNESS = {
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


@pytest.fixture
def maps():
    weights = np.random.default_rng(0).dirichlet(np.ones(6), (2, 3, 2)).astype(np.float32)
    return AttentionMaps("cross", (1, 2), weights, ["le", "chat"], TOKENS)


def draw(maps, folder):
    folder.mkdir()
    draw_maps(maps, folder / "all", links=[(0, 1)], formats=FORMATS)
    draw_maps(maps, folder / "head", places=[(1, 2)], formats=FORMATS)
    draw_mask(maps.weights[0, 0] > 0.1, maps, folder / "mask")
    write_csv(maps, folder / "maps.csv")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_figures_are_equal_files(maps, tmp_path):
    first = draw(maps, tmp_path / "first")
    assert first == draw(maps, tmp_path / "second")
    assert {*first} == {
        *(f"{name}{suffix}" for name in ("all", "head", "mask") for suffix in FORMATS),
        "maps.csv",
    }


def test_labels_are_text(maps, tmp_path):
    draw_maps(maps, tmp_path / "head", places=[(0, 0)], formats=(".svg",))
    svg = (tmp_path / "head.svg").read_text()
    for text in ("the", "$x$", "&lt;/text&gt;", "עברית", "😀", "layer 1, head 1"):
        assert f">{text}</text>" in svg


def test_weights_as_csv(maps, tmp_path):
    write_csv(maps, tmp_path / "maps.csv")
    with (tmp_path / "maps.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == maps.weights.size
    row = rows[np.ravel_multi_index((1, 2, 0, 3), maps.weights.shape)]
    assert (row["layer"], row["head"], row["query token"], row["key token"]) == (
        *("2", "3", "le"),
        TOKENS[3],
    )
    assert float(row["weight"]) == pytest.approx(maps.weights[1, 2, 0, 3], abs=1e-6)


def luminance(colors, kind=None):
    linear = np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
    seen = linear if kind is None else np.clip(linear @ np.array(BLINDNESS[kind]).T, 0, 1)
    return seen @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize("kind", [None, *BLINDNESS])
def test_colors_of_colour_blind_people(kind):
    colors = matplotlib.colormaps[COLORS](np.linspace(0, 1, 32))[:, :3]
    seen = luminance(colors, kind)
    assert (np.diff(seen) < 0).all()  # so that each weight has its own lightness
    ring = luminance(np.array(matplotlib.colors.to_rgb(MARK)), kind)
    assert (seen[0] + 0.05) / (ring + 0.05) > 2.5  # a gold link on a weight of 0
