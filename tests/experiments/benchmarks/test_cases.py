"""Cases: attention accepts all of them, and all contenders compute the same arrays."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks import ours
from experiments.benchmarks.attention import contenders
from experiments.benchmarks.cases import (
    CASES,
    LENGTHS,
    PATTERNS,
    Case,
    exact,
    inputs,
    relative_errors,
    select,
)
from experiments.benchmarks.contender import RefusalError
from experiments.errors import UsageError

CONTENDERS, _ = contenders()


def test_attention_accepts_every_case():
    for case in CASES.values():
        if case.dtype == "float32" or case.length == LENGTHS[0]:
            assert ours.chosen(case) in CONTENDERS


def test_names_and_batches():
    case = CASES["causal_4096_float32_gradient"]
    assert case == Case("causal", 4096, "float32", True, 1) and len(CASES) == 160
    batches = [CASES[f"full_{length}_float32_forward"].batch for length in LENGTHS]
    assert batches == [128, 64, 32, 16, 8, 4, 1, 1, 1, 1]


def test_names_and_patterns_select_cases():
    assert select("cases", "full_64_float32_forward", [*CASES]) == ["full_64_float32_forward"]
    assert len(select("cases", "causal_*, window_64_*", [*CASES])) == 44
    assert select("cases", "all", [*CASES]) == [*CASES]
    with pytest.raises(UsageError, match="cases has no 'casual_64_"):
        select("cases", "casual_64_float32_forward", [*CASES])


def test_patterns_by_hand():
    packed = Case("packed", 16, "float32", False, 1).allowed()
    np.testing.assert_array_equal(packed[:4, :4], np.kron(np.eye(2), np.ones((2, 2))))
    np.testing.assert_array_equal(Case("causal", 3, "float32", False, 1).allowed(), np.tri(3))
    seen = Case("window", 300, "float32", False, 1).allowed().sum(axis=1)
    np.testing.assert_array_equal(seen, [*range(1, 256), *[256] * 45])
    assert Case("full", 6, "float32", False, 1).allowed().all()


# `attend` passes the mask to all of its implementations in one way.
COMPUTED = [
    (name, pattern)
    for name in CONTENDERS
    for pattern in PATTERNS
    if not name.startswith("attend:") or pattern in ("packed", "window")
]


@pytest.mark.parametrize("name, pattern", COMPUTED)
def test_contenders_compute_the_same(name, pattern):
    gradient = pattern == "window" and name != "torch:flex_attention"  # no gradient on CPUs
    case = Case(pattern, 264, "float32", gradient, 1)  # longer than the window
    numbers = inputs(case)
    try:
        program = CONTENDERS[name].prepare(case, numbers)
    except RefusalError as error:
        pytest.skip(str(error))
    found = program.arrays(program.run())
    true = exact(case, numbers)
    assert len(found) == (4 if case.gradient else 1)
    assert max(relative_errors(found, true[: len(found)])) < 1e-6


def test_bfloat16_inputs_are_exact_for_every_contender():
    case = Case("causal", 16, "bfloat16", False, 1)
    numbers = inputs(case)
    np.testing.assert_array_equal(numbers, numbers.astype(jnp.bfloat16).astype(np.float32))
    for name in ("attend:tiled", "attend:reference", "jax.nn", "flax.nnx"):
        program = CONTENDERS[name].prepare(case, numbers)
        (error,) = relative_errors(program.arrays(program.run()), exact(case, numbers)[:1])
        assert 1e-4 < error < 1e-2
