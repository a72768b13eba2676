import csv
import json

import numpy as np
import pytest

from experiments.analysis import figures
from experiments.analysis.collect import AttentionMaps

TOKENS = ["the", "$x$", "</text>", "עברית", "é", "😀"]
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(6), (2, 3, 2)).astype(np.float32)
MAPS = AttentionMaps("cross", (1, 2), WEIGHTS, ["le", "chat"], TOKENS)


def test_equal_figures_are_equal_files_with_text(tmp_path):
    for name in "ab":
        figures.draw_example({"cross": MAPS}, tmp_path / name, head=3)
        signed = dict.fromkeys("vwxyz", WEIGHTS[0, 0] - 0.5)
        figures.draw_attributions(signed, MAPS, tmp_path / name / "attributions")
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    pictures = ("cross-layer-1", "cross-layer-2", "cross-layer-2-head-3", "attributions")
    names = {f"{name}.{suffix}" for name in pictures for suffix in ("png", "svg")}
    assert {*files} == {*names, "cross.csv", "attributions.csv"}
    svg = files["cross-layer-2.svg"].decode()
    axes = "source token", "predicted token", "weight"
    for text in ("the", "$x$", "&lt;/text&gt;", "עברית", "😀", "layer 2, head 1", *axes):
        assert f">{text}</text>" in svg
    with (tmp_path / "a" / "cross.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 2 * 6
    assert (rows[9]["query token"], rows[9]["key token"]) == ("chat", TOKENS[3])
    assert float(rows[9]["layer 2, head 3"]) == pytest.approx(WEIGHTS[1, 2, 1, 3], abs=1e-6)


def test_one_point_of_a_learning_curve_is_visible(tmp_path, monkeypatch):
    row = {"step": 50, "split": "train", "nll": 2.0, "accuracy": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    figures.draw_learning_curve(tmp_path, tmp_path / "curve.png")
    ((line,), (other,)) = (axes.lines for axes in drawn[0].axes)
    assert line.get_marker() != "None" != other.get_marker()
