"""The adapter to tokamax: the contract on a CPU, translated masks, refusals."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend, masks, scores
from attention.testing import check_attention
from tests.attention.primitives.inputs import changed, draw, jitted

tokamax = pytest.importorskip("tokamax", reason="needs the extra attention[kernels]")

SUPPORTS = {
    *("jit", "vmap", "gradients", "mask", "predicates", "scale", "cross", "grouped"),
    *("value_width", "leading_axes", "bfloat16"),
}
INPUTS = draw((2, 7, 6, 4), (2, 7, 3, 4), (2, 7, 3, 5))
attend_by_tokamax = functools.partial(attend, implementation="tokamax")


@pytest.mark.parametrize("name", ["tokamax", "tokamax:xla"])
def test_contract(name):
    report = check_attention(functools.partial(attend, implementation=name), SUPPORTS)
    report.raise_if_failed()


@jitted
def gradients_of_arrays(inputs, bias, scale):
    """Compute gradients by the reference and by tokamax, of a mask with an empty row."""

    def loss(given, implementation):
        inputs, (bias, of_example), scale = given
        score = (scores.bias_array(bias), scores.bias_array(of_example), scores.softcap(2.0))
        mask = masks.window(1) & masks.lengths([3, 7])
        output = attend(*inputs, mask=mask, scale=scale, score=score, implementation=implementation)
        return jnp.sin(output).sum()

    return [jax.grad(loss)((inputs, bias, scale), name) for name in ("reference", "tokamax")]


@pytest.mark.parametrize("key", [INPUTS[1], changed(INPUTS[1], (0, 2, 1), np.nan)], ids=str)
def test_gradients_of_scale_and_biases(key):
    """A NaN reaches the entries of its pairs only."""
    bias = draw((6, 7, 7), (2, 1, 1, 7))
    expected, actual = gradients_of_arrays((INPUTS[0], key, INPUTS[2]), bias, jnp.float32(0.4))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), actual, expected)


LENGTHS = masks.lengths([0, 5], query_lengths=[7, 2])
CAUSAL = np.tri(7, dtype=bool)
POSITIONS = np.arange(7), np.arange(7)
LAST = np.arange(7)[:, None] == 6


@pytest.mark.parametrize(
    "mask, words",
    [
        (None, {}),
        (masks.causal(), {"is_causal": True}),
        (masks.window(2, 1), {"is_causal": False, "local_window_size": (2, 1)}),
        (
            masks.causal() & masks.window(4, 5) & masks.window(3, None),
            {"is_causal": True, "local_window_size": (3, 0)},
        ),
        (LENGTHS, {"is_causal": False, "key_value_seq_lengths": [1, 5]}),
        (masks.causal() & LENGTHS, {"is_causal": True, "key_value_seq_lengths": [1, 5]}),
        (masks.window(0, 0) & masks.lengths(6), {"mask": [[np.eye(7, dtype=bool) | LAST]]}),
        (CAUSAL, {"mask": [[CAUSAL]]}),
        (np.stack([CAUSAL, ~CAUSAL])[:, None], {"mask": [[CAUSAL], [~CAUSAL | LAST]]}),
    ],
)
def test_mask_in_arguments_of_tokamax(monkeypatch, mask, words):
    """In its words, or dense with every key visible to a query that is fully masked."""
    found = []

    def spy(query, key, value, *, bias, scale, precision, implementation, **masks):
        found.append(masks)
        return jnp.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)

    monkeypatch.setattr(tokamax, "dot_product_attention", spy)
    attend_by_tokamax(*INPUTS, mask=mask)
    attend_by_tokamax(*INPUTS, mask=mask, positions=POSITIONS)
    assert set(found[1]) == (set() if mask is None else {"mask"})
    actual, expected = (
        {name: np.asarray(value).tolist() for name, value in given.items()}
        for given in (found[0], words)
    )
    assert actual == expected


BIAS = scores.bias_array(jnp.zeros((7, 7)))


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({"dropout": Dropout(jax.random.key(0), 0.1)}, "it has no dropout"),
        ({"score": scores.attention_sinks(jnp.zeros(6))}, "it has no attention sinks"),
        ({"returning": ("weights", "logsumexp")}, "it has no weights, logsumexp"),
        ({"tile_sizes": (2, 2)}, "it has no tile sizes"),
        ({"score": scores.alibi(jnp.ones(6))}, "bias arrays, and one softcap after them"),
        ({"score": (scores.softcap(2.0), BIAS)}, "bias arrays, and one softcap after them"),
        ({"score": BIAS, "positions": POSITIONS}, "a bias at explicit positions"),
    ],
)
def test_refusal_of_arguments(arguments, reason):
    with pytest.raises(ValueError, match=f"'tokamax' cannot compute this: .*{reason}"):
        attend_by_tokamax(*INPUTS, **arguments)


@pytest.mark.parametrize("dtypes", [["float16"] * 3, ["float64"] * 3, ["float32", "bfloat16"]])
def test_refusal_of_dtypes(float64, dtypes):
    inputs = [jnp.asarray(x, dtype) for x, dtype in zip(INPUTS, (dtypes * 2)[:3], strict=True)]
    with pytest.raises(ValueError, match="all float32 or all bfloat16, and these are"):
        attend_by_tokamax(*inputs)


def test_refusal_of_empty_inputs():
    with pytest.raises(ValueError, match="an input is empty"):
        attend_by_tokamax(*(array[:0] for array in INPUTS))


@pytest.mark.parametrize("name", ["cudnn", "triton", "mosaic"])
def test_kernel_of_another_platform_is_refused(name):
    with pytest.raises(ValueError, match=r"it runs on cuda.*, and the platform is cpu; .*tiled"):
        attend(*INPUTS, implementation=f"tokamax:{name}")


def test_refusal_without_tokamax(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokamax", None)
    with pytest.raises(ValueError, match=r'pip install "attention-jax\[kernels\]"'):
        attend_by_tokamax(*INPUTS)


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev])
def test_second_derivative_raises(derivative):
    gradient = jax.grad(lambda query: attend_by_tokamax(query, *INPUTS[1:]).sum())
    with pytest.raises(NotImplementedError, match="use implementation='tiled'"):
        derivative(gradient)(INPUTS[0])


def test_import_of_attention_does_not_import_tokamax():
    program = "import attention, sys; print('tokamax' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "False", result.stderr
