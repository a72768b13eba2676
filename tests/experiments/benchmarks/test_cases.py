"""Cases: attention accepts all of them, and all contenders compute the same arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend
from experiments.benchmarks.attention import contenders
from experiments.benchmarks.cases import (
    CASES,
    LENGTHS,
    PATTERNS,
    Case,
    exact,
    inputs,
    named,
    relative_errors,
)
from experiments.benchmarks.contender import RefusalError

CONTENDERS, _ = contenders()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_attention_accepts_every_case(pattern):
    for case in CASES.values():
        is_typical = case.dtype == "float32" or case.length == LENGTHS[0]
        if case.pattern == pattern and is_typical and not case.gradient:
            query = jax.ShapeDtypeStruct(case.shape, jnp.dtype(case.dtype))
            mask = case.mask(*case.segments())
            output = jax.eval_shape(lambda query, mask=mask: attend(*[query] * 3, mask=mask), query)
            assert (output.shape, output.dtype) == (query.shape, query.dtype)


def test_name_describes_the_case():
    assert len(CASES) == 160
    case = CASES["causal_4096_float32_gradient"]
    assert case == named("causal", 4096, gradient=True) == Case("causal", 4096, "float32", True, 1)


def test_short_cases_have_large_batches():
    batches = [named("full", length).batch for length in LENGTHS]
    assert batches == [128, 64, 32, 16, 8, 4, 1, 1, 1, 1]


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
    np.testing.assert_array_equal(
        numbers.query, np.asarray(jnp.asarray(numbers.query, jnp.bfloat16), np.float32)
    )
    errors = []
    for name in ("attend:tiled", "attend:reference", "jax.nn", "flax.nnx"):
        program = CONTENDERS[name].prepare(case, numbers)
        errors += relative_errors(program.arrays(program.run()), exact(case, numbers)[:1])
    assert all(1e-4 < error < 1e-2 for error in errors)
