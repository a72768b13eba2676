"""The file of the page: its data, its policy, and what it keeps of maps and logits."""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from experiments.analysis.collect import AttentionMaps
from experiments.analysis.page.build import (
    SCRIPTS,
    digest,
    embedded,
    limited,
    special_labels,
    write_page,
)
from experiments.analysis.page.example_data import choices_data, distances, map_data, steps_data
from experiments.data.tokenizers import SPECIALS, CharacterTokenizer
from experiments.tasks.prediction import Prediction

HOSTILE = "</script><!--<img src=x onerror=alert(1)>&\u2028\u2029\"'"
DATA = {"title": "a <b>&", "examples": [HOSTILE]}


def content(path):
    return re.findall(r"<script[^>]*>(.*?)</script>", path.read_text(), re.DOTALL)


def test_json_in_html():
    text = embedded({"a": [HOSTILE, "e\u0301", "\ud800"]})
    assert not re.search("[<>&\u2028\u2029]", text) and text.isascii()
    assert json.loads(text)["a"][0] == HOSTILE


def test_nan_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        embedded([float("nan")])


def test_page_contains_its_scripts_and_data(tmp_path):
    write_page(tmp_path / "page.html", DATA)
    text = (tmp_path / "page.html").read_text()
    data, *scripts = content(tmp_path / "page.html")
    assert json.loads(data) == DATA
    assert len(scripts) == len(SCRIPTS)
    assert "<title>a &lt;b&gt;&amp;</title>" in text and "<b>" not in text
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert all(digest(script) in policy for script in scripts)
    assert f"style-src {digest(style)};" in policy


def test_equal_data_are_equal_bytes(tmp_path):
    for name in "ab":
        write_page(tmp_path / name, DATA)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_bytes_of_weights():
    weights = np.random.default_rng(0).uniform(size=(2, 3, 5, 7)).astype(np.float32)
    maps = AttentionMaps("cross", [1, 4], weights, [*"abcde"], [*"fghijkl"])
    data = map_data(maps)
    stored = np.frombuffer(base64.b64decode(data["weights"]), np.uint8)
    assert (data["shape"], data["layers"]) == ([2, 3, 5, 7], [1, 4])
    assert abs(stored.reshape(weights.shape) / 255 - weights).max() <= 1 / 510 + 1e-7


def test_distances_of_layers():
    vectors = np.array(
        [[[1.0, 0.0], [0.0, 0.0]], [[3.0, 0.0], [1.0, 1.0]], [[0.0, 2.0], [2.0, 2.0]]]
    )
    assert np.allclose(distances(vectors), [[0, 1], [1, 0]])


def test_steps():
    logits = np.log([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1.0, 1.0, 1.0]])
    data = steps_data(CharacterTokenizer("ab\ufffd"), [1, 2], logits)
    assert data["tokens"] == ["b", "\ufffd"] and data["ids"] == [1, 2]
    assert np.allclose(np.exp(data["log_probs"]), [0.25, 0.7], atol=1e-4)
    assert data["alternatives"][0] == [["a", 0.5], ["b", 0.25], ["\ufffd", 0.25]]
    assert data["alternatives"][1] == [["\ufffd", 0.7], ["b", 0.2], ["a", 0.1]]


def test_choices_of_an_encoder():
    choices = [(2, [("cat", 0.5), ("dog", 0.25)]), (None, [("one", 1.0)])]
    (data,) = choices_data(Prediction(["a cat"], choices=choices))
    assert (data["text"], data["places"], data["tokens"]) == ("a cat", [2, None], ["cat", "one"])
    assert data["alternatives"] == [[["cat", 0.5], ["dog", 0.25]], [["one", 1.0]]]
    assert np.allclose(np.exp(data["log_probs"]), [0.5, 1])
    assert choices_data(Prediction()) == []


def test_special_labels():
    stack = {"labels": ["<class>", "a", "<end>"], "special": [1, 1]}
    text = {"stacks": {"decoder": {"labels": ["a", "b"], "special": [0, 0]}}}
    assert special_labels([text]) == []
    found = special_labels([text, {"stacks": {"encoder": stack}}])
    assert found == sorted([*SPECIALS, "<class>", "<end>"])


@pytest.mark.parametrize(
    ("can_compute", "kept"), [(True, ["aaa", None, "c"]), (False, ["aaa", "c"])]
)
def test_large_maps_are_computed_or_left_out(can_compute, kept):
    examples = [{"maps": {"cross": {"weights": each}}} for each in ("aaa", "bbb", "c")]
    found = limited(examples, 4, can_compute=can_compute)
    assert [each["maps"]["cross"]["weights"] for each in found] == kept


def test_first_example_is_kept():
    (kept,) = limited([{"maps": {"cross": {"weights": "aaa"}}}], 2, can_compute=False)
    assert kept["maps"]["cross"]["weights"] == "aaa"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_scripts_of_the_views():
    command = ["node", "--test", str(Path(__file__).parent / "views.test.js")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
