"""cuDNN: refusals, and lowering of everything else for a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from attention import Dropout, attend, block_mask, masks, scores
from attention.primitives.arguments import check_arguments
from attention.primitives.vendor.cudnn import arguments_refusal, attend_by_cudnn, refusal
from tests.attention.primitives.inputs import draw

HOPPER, AMPERE, TURING = (9, 0), (8, 0), (7, 5)
T = 4


def make_arguments(width=8, value_width=None, dtype="bfloat16", **arguments):
    shapes = (T, 2, width), (T, 1, width), (T, 1, value_width or width)
    return check_arguments(*draw(*shapes, dtype=dtype), **arguments)


ACCEPTED = {
    "full": {},
    "causal": {"mask": masks.causal()},
    "window": {"mask": masks.window(2)},
    "causal window": {"mask": masks.window(2, 1) & masks.causal()},
    "lengths": {"mask": masks.lengths(3)},
    "query lengths": {"mask": masks.lengths(3, 2) & masks.window(2)},
    "block mask": {"mask": block_mask(masks.causal(), T)},
    "heads": {"heads": np.arange(2) + 2},
    "float16": {"dtype": "float16"},
    "wide": {"width": 256},
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("arguments", ACCEPTED.values(), ids=ACCEPTED)
def test_accepts(arguments):
    assert arguments_refusal(make_arguments(**arguments), HOPPER) is None


EXACT = "its exact masks are causal, window, lengths, and these composed by &"
REFUSED = {
    "float32": ({"dtype": "float32"}, "bfloat16 and float16 only, and the inputs are float32"),
    "width": ({"value_width": 16}, "its value width must equal the key width: 16 and 8"),
    "odd width": ({"width": 12}, "multiples of 8 up to 256, not 12"),
    "too wide": ({"width": 264}, "multiples of 8 up to 256, not 264"),
    "score": ({"score": scores.softcap(2.0)}, "does not evaluate score functions"),
    "bias": (
        {"score": scores.bias_array(np.zeros((1, T, T), "float32"))},
        "does not evaluate score functions",
    ),
    "dropout": ({"dropout": Dropout(jax.random.key(0), 0.1)}, "does not implement this dropout"),
    "logsumexp": ({"returning": ("logsumexp",)}, "does not return logsumexp"),
    "array": ({"mask": np.tri(T, dtype=bool)}, EXACT),
    "segments": ({"mask": masks.causal() & masks.segments([0] * T)}, EXACT),
    "prefix": ({"mask": masks.prefix(3)}, EXACT),
    "tile sizes": ({"tile_sizes": (2, 2)}, "does not take tile sizes"),
    "positions": (
        {"mask": masks.causal(), "positions": (np.arange(T), np.arange(T))},
        EXACT,
    ),
    "keys after the query": ({"mask": masks.window(2, 1)}, "its windows must be causal"),
    "scale": ({"scale": jnp.float32(0.3)}, "its scale is a Python number"),
}


@pytest.mark.parametrize("arguments, why", REFUSED.values(), ids=REFUSED)
def test_refuses_with_a_reason(arguments, why):
    assert why in arguments_refusal(make_arguments(**arguments), HOPPER)


def test_refuses_by_compute_capability():
    assert "multiples of 8 up to 128, not 256" in arguments_refusal(make_arguments(256), AMPERE)
    assert "compute capability 8.0, and this GPU has 7.5" in arguments_refusal(
        make_arguments(), TURING
    )


def test_refuses_other_platforms():
    for platform in ("cpu", "rocm", "tpu"):
        why = f"it is for an NVIDIA GPU, and the platform is {platform}"
        assert refusal(make_arguments(), platform) == why


def test_accepts_cuda_without_a_device():
    """On a machine without a GPU, the computation is only lowered for one."""
    assert refusal(make_arguments(), "cuda") is None


FORWARD, BACKWARD = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"


@pytest.mark.parametrize(
    "mask, mask_type, window",
    [
        (None, "NO_MASK", 0),
        (masks.causal(), "CAUSAL", 0),
        (masks.window(20), "CAUSAL", 21),
        (masks.lengths([300, 7]), "PADDING", 0),
        (masks.window(20) & masks.lengths([300, 7], 200), "PADDING_CAUSAL", 21),
    ],
    ids=["full", "causal", "window", "lengths", "lengths and window"],
)
def test_gradients_lower_to_one_call_forward_and_one_backward(monkeypatch, mask, mask_type, window):
    """A window has the type causal too: without it cuDNN attends to keys after the query."""
    monkeypatch.setattr(
        "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000
    )

    def loss(query, key, value):
        arguments = check_arguments(query, key, value, mask=mask)
        assert arguments_refusal(arguments, HOPPER) is None
        return attend_by_cudnn(arguments)["output"].astype(jnp.float32).sum()

    shapes = (2, 300, 6, 64), (2, 300, 2, 64), (2, 300, 2, 64)
    inputs = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes]
    gradients = export.export(
        jax.jit(jax.grad(loss, argnums=(0, 1, 2))),
        platforms=["cuda"],
        disabled_checks=[export.DisabledSafetyCheck.custom_call(x) for x in (FORWARD, BACKWARD)],
    )
    program = gradients(*inputs).mlir_module().replace("\\22", '"')
    assert program.count(f"@{FORWARD}(") == program.count(f"@{BACKWARD}(") == 1
    assert program.count(f'"mask_type": "{mask_type}"') == 2
    assert program.count(f'"sliding_window_length": {window}') == 2


LENGTH_MASKS = {
    "lengths": masks.lengths([5, 0, 7]),
    "causal": masks.causal() & masks.lengths([3, 7, 9]),
    "query lengths": masks.lengths([5, 3, 0], [2, 7, 4]) & masks.lengths(6),
    "window": masks.window(2) & masks.lengths([3, 7, 1]),
}


@pytest.mark.parametrize("mask", LENGTH_MASKS.values(), ids=LENGTH_MASKS)
def test_sequence_lengths_equal_reference(monkeypatch, mask):
    """The lengths that cuDNN receives, computed by XLA, which has the same arguments."""
    theirs = jax.nn.dot_product_attention
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", lambda *a, **k: theirs(*a, **k | {"implementation": "xla"})
    )
    given = draw((3, 7, 2, 8), (3, 7, 1, 8), (3, 7, 1, 8))

    def value_and_gradients(function):
        def loss(given):
            output = function(*given)
            return jnp.sin(output).sum(), output

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(given)

    def by_cudnn(*given):
        return attend_by_cudnn(check_arguments(*given, mask=mask))["output"]

    def by_reference(*given):
        return attend(*given, mask=mask, implementation="reference")

    actual, expected = map(value_and_gradients, (by_cudnn, by_reference))
    for ours, theirs_ in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs_, rtol=1e-5, atol=2e-6)
