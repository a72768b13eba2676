import pytest

from experiments.benchmarks.picture import quadratic


def test_curve_through_our_last_point():
    lines = {"torch": [(128, 1.0), (512, 9.0)], "attend, jax": [(128, 1.0), (256, 2.0)]}
    assert quadratic(lines) == [(128, 0.5), (256, 2.0), (512, 8.0)]


def test_curve_without_a_line_of_ours():
    assert quadratic({"torch": [(64, 3.0), (128, 8.0)]}) == [(64, 2.0), (128, pytest.approx(8.0))]
