import csv

import numpy as np
import pytest

from experiments.analysis.collect import AttentionMaps
from experiments.analysis.figures import FORMATS, draw_mask, maps_figure, save, write_csv

TOKENS = ["the", "$x$", "</text>", "עברית", "é", "😀"]


@pytest.fixture
def maps():
    weights = np.random.default_rng(0).dirichlet(np.ones(6), (2, 3, 2)).astype(np.float32)
    return AttentionMaps("cross", (1, 2), weights, ["le", "chat"], TOKENS)


def draw(maps, folder):
    folder.mkdir()
    save(maps_figure(maps, links=[(0, 1)]), folder / "all", FORMATS)
    save(maps_figure(maps, places=[(1, 2)]), folder / "head", FORMATS)
    draw_mask(maps.weights[0, 0] > 0.1, maps, 1, folder)
    write_csv(maps, folder / "maps.csv")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_figures_are_equal_files(maps, tmp_path):
    first = draw(maps, tmp_path / "first")
    assert first == draw(maps, tmp_path / "second")
    assert {*first} == {
        *(
            f"{name}{suffix}"
            for name in ("all", "head", "cross-layer-1-mask")
            for suffix in FORMATS
        ),
        "maps.csv",
    }


def test_labels_are_text(maps, tmp_path):
    save(maps_figure(maps, places=[(0, 0)]), tmp_path / "head", (".svg",))
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
