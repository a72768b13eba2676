"""cuDNN behind the contract: what it refuses, and that the rest lowers for a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention.primitives.request import checked
from jax import export

from attention import Dropout, explain, masks, scores
from attention.primitives.vendor.cudnn import attend_by_cudnn, refusal, request_refusal
from tests.attention.primitives.inputs import draw

HOPPER, AMPERE, TURING = (9, 0), (8, 0), (7, 5)
T = 4


def request(width=8, value_width=None, dtype="bfloat16", **arguments):
    shapes = (T, 2, width), (T, 1, width), (T, 1, value_width or width)
    return checked(*draw(*shapes, dtype=dtype), **arguments)


TAKEN = {
    "full": {},
    "causal": {"mask": masks.causal()},
    "window": {"mask": masks.window(2)},
    "causal window": {"mask": masks.window(2, 1) & masks.causal()},
    "float16": {"dtype": "float16"},
    "wide": {"width": 256},
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("arguments", TAKEN.values(), ids=TAKEN)
def test_takes_what_it_can_do_exactly(arguments):
    assert request_refusal(request(**arguments), HOPPER) is None


REFUSED = {
    "float32": ({"dtype": "float32"}, "bfloat16 and float16 alone, and there is float32"),
    "width": ({"value_width": 16}, "its value width must be the key's: 16 and 8"),
    "odd width": ({"width": 12}, "multiples of 8 up to 256, not 12"),
    "too wide": ({"width": 264}, "multiples of 8 up to 256, not 264"),
    "score": ({"score": scores.softcap(2.0)}, "knows no scores"),
    "bias": ({"score": scores.bias_array(np.zeros((1, T, T), "float32"))}, "knows no scores"),
    "dropout": ({"dropout": Dropout(jax.random.key(0), 0.1)}, "no dropout"),
    "logsumexp": ({"returning": ("logsumexp",)}, "returns no logsumexp"),
    "array": ({"mask": np.tri(T, dtype=bool)}, "hides keys by a number"),
    "lengths": ({"mask": masks.causal() & masks.lengths(3)}, "hides keys by a number"),
    "positions": (
        {"mask": masks.causal(), "positions": (np.arange(T), np.arange(T))},
        "hides keys by a number",
    ),
    "ahead": ({"mask": masks.window(2, 1)}, "windows look behind alone"),
    "scale": ({"scale": jnp.float32(0.3)}, "its scale is a number in the program"),
}


@pytest.mark.parametrize("arguments, why", REFUSED.values(), ids=REFUSED)
def test_refuses_with_a_reason(arguments, why):
    assert why in request_refusal(request(**arguments), HOPPER)


def test_refuses_what_an_older_gpu_lacks():
    assert "multiples of 8 up to 128, not 256" in request_refusal(request(256), AMPERE)
    assert "compute capability 8.0, and this is 7.5" in request_refusal(request(), TURING)


def test_refuses_another_platform_than_a_gpu():
    assert refusal(request()) == "it is for a GPU, and this is cpu"
    why = explain(*draw((T, 1, 8), (T, 1, 8), (T, 1, 8), dtype="bfloat16")).refusals["cudnn"]
    assert why == "it is for a GPU, and this is cpu"


FORWARD, BACKWARD = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"


@pytest.mark.parametrize(
    "mask, mask_type, window",
    [(None, "NO_MASK", 0), (masks.causal(), "CAUSAL", 0), (masks.window(20), "CAUSAL", 21)],
    ids=["full", "causal", "window"],
)
def test_gradients_lower_to_one_call_forward_and_one_backward(monkeypatch, mask, mask_type, window):
    """A window must be called causal too: without it cuDNN would look ahead."""
    monkeypatch.setattr(
        "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000
    )

    def loss(query, key, value):
        asked = checked(query, key, value, mask=mask)
        assert request_refusal(asked, HOPPER) is None
        return attend_by_cudnn(asked)["output"].astype(jnp.float32).sum()

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
