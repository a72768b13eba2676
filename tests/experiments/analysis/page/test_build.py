"""The file of the page: its data, its policy, and what it keeps of maps and logits."""

import base64
import json
import re

import numpy as np
import pytest

from experiments.analysis.collect import AttentionMaps
from experiments.analysis.page.build import SCRIPTS, digest, limited, special_labels, write_page
from experiments.analysis.page.example_data import choices_data, distances, map_data, steps_data
from experiments.data.tokenizers import SPECIALS, CharacterTokenizer
from experiments.tasks.prediction import Prediction

HOSTILE = "</script><!--<img src=x onerror=alert(1)>&\u2028\u2029\"'\ud800"
DATA = {"title": "a <b>&", "examples": [HOSTILE, "e\u0301"]}


def test_page_contains_its_scripts_and_data(tmp_path):
    for name in "ab":
        write_page(tmp_path / name, DATA)
    text = (tmp_path / "a").read_text()
    assert text == (tmp_path / "b").read_text()
    data, *scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert json.loads(data) == DATA and data.isascii()
    assert len(scripts) == 1 + len(SCRIPTS)  # the grid of `attention.show` comes first
    assert "<title>a &lt;b&gt;&amp;</title>" in text and "<b>" not in text
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert all(digest(script) in policy for script in scripts)
    assert f"style-src {digest(style)};" in policy


def test_maps_in_bytes_and_distances_of_layers():
    weights = np.random.default_rng(0).uniform(size=(2, 3, 5, 7)).astype(np.float32)
    data = map_data(AttentionMaps("cross", [1, 4], weights, [*"abcde"], [*"fghijkl"]))
    stored = np.frombuffer(base64.b64decode(data["weights"]), np.uint8)
    assert (data["shape"], data["layers"]) == ([2, 3, 5, 7], [1, 4])
    assert abs(stored.reshape(weights.shape) / 255 - weights).max() <= 1 / 510 + 1e-7
    vectors = np.array([[[1.0, 0], [0, 0]], [[3, 0], [1, 1]], [[0, 2], [2, 2]]])
    assert np.allclose(distances(vectors), [[0, 1], [1, 0]])


def test_steps_of_a_decoder_and_choices_of_an_encoder():
    logits = np.log([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1.0, 1.0, 1.0]])
    data = steps_data(CharacterTokenizer("ab\ufffd"), [1, 2], logits)
    assert data["tokens"] == ["b", "\ufffd"] and data["ids"] == [1, 2]
    assert np.allclose(np.exp(data["log_probs"]), [0.25, 0.7], atol=1e-4)
    assert data["alternatives"][1] == [["\ufffd", 0.7], ["b", 0.2], ["a", 0.1]]
    choices = [(2, [("cat", 0.5), ("dog", 0.25)]), (None, [("one", 1.0)])]
    (data,) = choices_data(Prediction(["a cat"], choices=choices))
    assert (data["text"], data["places"], data["tokens"]) == ("a cat", [2, None], ["cat", "one"])
    assert np.allclose(np.exp(data["log_probs"]), [0.5, 1])


def test_special_labels():
    stack = {"labels": ["<class>", "a", "<end>"], "special": [1, 1]}
    text = {"stacks": {"decoder": {"labels": ["a", "b"], "special": [0, 0]}}}
    assert special_labels([text]) == []
    both = [text, {"stacks": {"encoder": stack}}]
    assert special_labels(both) == sorted([*SPECIALS, "<class>", "<end>"])


@pytest.mark.parametrize(
    ("most", "can_compute", "kept"),
    [(4, True, [None, None, None]), (4, False, ["aaa", "c"]), (2, False, ["aaa"])],
)
def test_maps_are_computed_or_limited(most, can_compute, kept):
    examples = [{"maps": {"cross": {"weights": each}}} for each in ("aaa", "bbb", "c")]
    shown = limited(examples, most, can_compute=can_compute)
    assert [each["maps"]["cross"]["weights"] for each in shown] == kept
