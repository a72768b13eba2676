import json

import numpy as np
import pytest
from PIL import Image

from experiments.analysis.animation import as_row, draw_animation, read_rows, shown_maps
from experiments.analysis.collect import Attended, AttentionMaps
from experiments.errors import UsageError
from experiments.workdir import Workdir


def maps(kind="cross", layers=(1, 2)):
    shape = (len(layers), 2, 3)  # layers, heads, queries
    weights = np.random.default_rng(0).dirichlet(np.ones(4), shape).astype(np.float32)
    return AttentionMaps(kind, layers, weights, ["le", "chat", "<eos>"], ["the", "cat", "é", "."])


def test_last_layer_of_cross_attention_is_shown():
    found = shown_maps(Attended({"encoder": maps("encoder"), "cross": maps()}))
    assert (found.kind, found.layers) == ("cross", (2,))
    np.testing.assert_array_equal(found.weights, maps().weights[1:])
    assert shown_maps(Attended({"decoder": maps("decoder")})).kind == "decoder"


def test_rows_are_read_as_written(tmp_path):
    workdir = Workdir(tmp_path)
    for step in (0, 4, 2, 4):  # a run that was resumed with more samples
        workdir.keep_maps(as_row(step, maps()))
    frames = read_rows(workdir.maps)
    assert [*frames] == [0, 2, 4]
    np.testing.assert_allclose(frames[4].weights, maps().weights, atol=6e-4)
    assert [*frames[4].queries] == maps().queries and frames[4].title == "cross-attention"


def test_animation_is_small_and_the_same_again(tmp_path):
    frames = dict.fromkeys((0, 50, 1300), maps(layers=(2,)))
    frames[50] = frames[50]._replace(weights=frames[50].weights[:, ::-1])
    for name in ("a.gif", "b.gif"):
        draw_animation(frames, tmp_path / name)
    content = (tmp_path / "a.gif").read_bytes()
    assert content == (tmp_path / "b.gif").read_bytes() and len(content) < 100_000
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == 3 and image.info["loop"] == 0


@pytest.mark.parametrize("line", ["{", "{}", json.dumps({"step": 0, "weights": [], "x": 1})])
def test_damaged_rows(tmp_path, line):
    path = tmp_path / "maps.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(UsageError, match=r"maps\.jsonl.* cannot be read"):
        read_rows(path)


def test_row_that_a_kill_cut_short_is_left_out(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.keep_maps(as_row(0, maps()))
    row = workdir.maps.read_text()
    workdir.maps.write_text(row + row[:-9])
    assert [*read_rows(workdir.maps)] == [0]
    workdir.maps.write_text(row[:-9])
    assert not read_rows(workdir.maps)
