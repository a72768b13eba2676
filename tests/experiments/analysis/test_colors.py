"""Colours of figures, as people with each kind of colour blindness see them, by simulation."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb

from experiments.analysis.figures import COLORS, MARK, MARKS

colorspacious = pytest.importorskip("colorspacious", reason="it simulates colour blindness")

KINDS = ("protanomaly", "deuteranomaly", "tritanomaly")
GREY = "grey"  # a print without colours


def seen(colors, kind):
    """Return sRGB colours in a space of even steps: lightness J' from 0 to 100, and two hues."""
    space = {"name": "sRGB1+CVD", "cvd_type": kind, "severity": 100}  # no receptor of this kind
    if kind != GREY:
        colors = np.clip(colorspacious.cspace_convert(colors, space, "sRGB1"), 0, 1)
    found = colorspacious.cspace_convert(colors, "sRGB1", "CAM02-UCS")
    return found * [1, 0, 0] if kind == GREY else found


@pytest.mark.parametrize("kind", [*KINDS, GREY])
def test_lightness_carries_the_weight(kind):
    lightness = seen(colormaps[COLORS](np.linspace(0, 1, 101))[:, :3], kind)[:, 0]
    steps = -np.diff(lightness)
    assert lightness[0] - lightness[-1] > 60
    assert steps.min() > 0
    assert steps.max() < 3 * steps.mean()  # no step that looks like an edge


@pytest.mark.parametrize("kind", KINDS)
def test_senses_have_different_colors(kind):
    colors = seen(np.array([to_rgb(color) for color, _ in MARKS]), kind)
    assert min(np.linalg.norm(a - b) for a, b in combinations(colors, 2)) > 10


@pytest.mark.parametrize("kind", KINDS)
def test_rings_are_seen_on_every_weight(kind):
    ring = seen(np.array([to_rgb(MARK)]), kind)
    weights = seen(colormaps[COLORS](np.linspace(0, 1, 101))[:, :3], kind)
    assert np.linalg.norm(weights - ring, axis=-1).min() > 10
