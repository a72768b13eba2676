"""Which implementation computes a request, what is said about it, and that a name is honoured."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from attention import Dropout, attend, explain
from attention.primitives import attend as module
from attention.primitives import dispatch
from attention.primitives.dispatch import Implementation
from attention.primitives.request import checked
from tests.attention.primitives.inputs import draw

NAMES = [one.name for one in module.IMPLEMENTATIONS]
SMALL = draw(*[(1, 5, 2, 8)] * 3)
LONG = [jax.ShapeDtypeStruct((1, 4096, 2, 8), "float32")] * 3
DROPOUT = Dropout(jax.random.key(0), 0.1)


@pytest.fixture
def called(monkeypatch):
    """The names of the implementations that ran; none refuses, none computes."""
    names = []

    def spy(one):
        def run(request):
            names.append(one.name)
            return {"output": request.query}

        return replace(one, run=run, refusal=lambda request: None)

    monkeypatch.setattr(module, "IMPLEMENTATIONS", tuple(map(spy, module.IMPLEMENTATIONS)))
    return names


@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_that_one(called, name):
    attend(*SMALL, implementation=name)
    assert called == [name]


def test_the_docstring_knows_every_name():
    assert set(NAMES) == {"reference", "tiled", "jax", "cudnn", "pallas", "splash"}
    assert all(f'"{name}"' in attend.__doc__ for name in NAMES)


def test_a_refusal_says_why_and_who_could():
    with pytest.raises(ValueError) as caught:
        attend(*SMALL, implementation="jax", dropout=DROPOUT)
    assert str(caught.value) == (
        "implementation 'jax' cannot compute this: it has no dropout; tiled, reference could"
    )


@pytest.mark.parametrize(
    "name, hint",
    [("tield", "; did you mean 'tiled'?"), ("cuDNN", "; did you mean 'cudnn'?"), ("flex", "")],
)
def test_an_unknown_name_gets_the_nearest_and_all(name, hint):
    with pytest.raises(ValueError) as caught:
        attend(*SMALL, implementation=name)
    known = ", ".join(NAMES)
    assert str(caught.value) == f"implementation must be one of {known}, got {name!r}{hint}"


def explained(*shapes, **arguments):
    """What `explain` says of inputs that are shapes alone."""
    found = []
    jax.eval_shape(lambda *inputs: found.append(explain(*inputs, **arguments)), *shapes)
    return found[0]


def test_explain_says_the_choice_and_every_refusal():
    assert str(explained(*LONG)).splitlines() == [
        "tiled: linear in memory, and never visits a ruled-out tile on cpu",
        "not cudnn: it is for a GPU, and this is cpu",
        "not splash: its kernels are for a TPU, and this is cpu",
        "not pallas: its kernels are for a GPU, and this is cpu",
    ]


def test_few_pairs_are_computed_by_the_definition():
    assert str(explain(*SMALL)).startswith("reference: so few pairs fit a cache as they are on cpu")


def test_values_of_no_width_are_no_tiles():
    inputs = draw((1, 100, 2, 8), (1, 100, 2, 8), (1, 100, 2, 0))
    assert explain(*inputs).implementation.name == "reference"
    assert attend(*inputs).shape == (1, 100, 2, 0)


def test_explain_collects_the_reasons_of_this_request_too():
    choice = explain(*SMALL, dropout=DROPOUT)
    assert choice.implementation.name == "reference"
    assert choice.refusals["jax"] == "it has no dropout"
    assert "not jax: it has no dropout" in str(choice)


def test_explain_has_no_reasons_against_what_was_named():
    assert str(explain(*SMALL, implementation="jax")) == "jax: asked for by name"


def fake(name, preference, refusal=None):
    return Implementation(name, lambda request: refusal, lambda request: {}, lambda _: preference)


def test_the_first_that_prefers_and_can_is_chosen():
    request = checked(*SMALL)
    some = (
        fake("refuses", "it is the fastest", "it cannot"),
        fake("can", None),
        fake("prefers", "it is fast"),
        fake("later", "it is faster"),
    )
    choice = dispatch.choose(request, None, some)
    assert (choice.implementation.name, choice.reason) == ("prefers", "it is fast on cpu")
    assert choice.refusals == {"refuses": "it cannot"}


PLATFORMS = {
    "cpu": ("float32", "tiled"),
    "tpu": ("bfloat16", "splash"),
    "gpu": ("float32", "pallas"),
}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("length", [1, 5, 4096])
def test_what_holds_every_score_is_never_chosen_for_many(monkeypatch, platform, length):
    """Shapes only. cuDNN is asked about the GPU that is there, and here there is none."""
    dtype, name = PLATFORMS[platform]
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr("attention.primitives.vendor.cudnn.refusal", lambda request: "no GPU")
    query, key = (jax.ShapeDtypeStruct((1, size, 2, 64), dtype) for size in (length, 4096))
    chosen = explained(query, key, key).implementation.name
    if length == 4096:
        assert chosen == name
    assert chosen not in ("jax", "cudnn")
    assert chosen != "reference" or length * 4096 <= module.FEW_PAIRS


def test_an_argument_that_is_asked_for_is_not_dropped_by_a_name():
    """Every implementation returns it or refuses."""
    for name in NAMES:
        try:
            _, found = attend(*SMALL, returning=("logsumexp",), implementation=name)
        except ValueError as error:
            assert f"implementation {name!r} cannot compute this" in str(error)
        else:
            assert jnp.isfinite(found["logsumexp"]).all()
