"""Choice of an implementation, its explanation, and errors for those that cannot compute a call."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from attention import attend, explain_attend, masks
from attention.primitives import attend as module
from tests.attention.primitives.inputs import draw

NAMES = [one.name for one in module.IMPLEMENTATIONS]
SMALL = draw(*[(1, 5, 2, 8)] * 3)
LONG = [jax.ShapeDtypeStruct((1, 4096, 2, 8), "float32")] * 3


@pytest.fixture
def called(monkeypatch):
    """The names of the implementations that ran; none refuses, none computes."""
    names = []

    def spy(one):
        def run(arguments, platform):
            names.append(one.name)
            return {"output": arguments.query}

        return replace(one, run=run, refusal=lambda *_: None)

    monkeypatch.setattr(module, "IMPLEMENTATIONS", tuple(map(spy, module.IMPLEMENTATIONS)))
    return names


@pytest.mark.parametrize("name", NAMES)
def test_named_implementation_is_used(called, name):
    attend(*SMALL, implementation=name)
    assert set(called) == {name}


def test_docstring_names_every_implementation():
    kernels = {"mosaic", "triton", "cudnn", "xla_chunked", "xla"}
    tokamax = {"tokamax", *(f"tokamax:{name}" for name in kernels)}
    assert set(NAMES) == {"reference", "tiled", *tokamax}
    assert all(f'"{name}"' in attend.__doc__ for name in NAMES)


def test_named_implementation_that_cannot_compute_a_call_raises():
    """The message contains the reason and the alternatives."""
    with pytest.raises(ValueError) as caught:
        attend(*SMALL, implementation="reference", tile_sizes=(2, 2))
    assert str(caught.value) == (
        "implementation 'reference' cannot compute this: it has no tiles, and tile_sizes was "
        "given; tiled could"
    )


@pytest.mark.parametrize(
    "name, hint",
    [
        ("tield", "; did you mean 'tiled'?"),
        ("Reference", "; did you mean 'reference'?"),
        ("flex", ""),
    ],
)
def test_unknown_implementation_raises_with_all_names(name, hint):
    with pytest.raises(ValueError) as caught:
        attend(*SMALL, implementation=name)
    known = ", ".join(NAMES)
    assert str(caught.value) == f"implementation must be one of {known}, got {name!r}{hint}"


def explained(*shapes, **arguments):
    """Explain a call on inputs that are shapes."""
    found = []
    jax.eval_shape(lambda *inputs: found.append(explain_attend(*inputs, **arguments)), *shapes)
    return found[0]


def test_explain_lists_the_choice_and_all_refusals():
    """One line each."""
    lines = str(explained(*LONG, tile_sizes=(2, 2), platform="cpu")).splitlines()
    assert lines[0].startswith("tiled: ")
    assert "cpu" in lines[0]
    assert lines[1] == "not reference: it has no tiles, and tile_sizes was given"
    assert all(line.startswith("not tokamax") for line in lines[2:])


@pytest.mark.parametrize(
    "batch, num_queries, num_keys, expected",
    [(1, 512, 256, "reference"), (1, 512, 257, "tiled"), (2, 512, 256, "tiled")],
)
def test_few_scores_are_computed_by_the_reference(batch, num_queries, num_keys, expected):
    """Up to 2**18 of all heads and examples."""
    query, key = (
        jax.ShapeDtypeStruct((batch, length, 2, 8), "float32") for length in (num_queries, num_keys)
    )
    assert explained(query, key, key).implementation.name == expected


def test_values_of_width_zero_are_computed_by_the_reference():
    inputs = draw((1, 100, 2, 8), (1, 100, 2, 8), (1, 100, 2, 0))
    assert explain_attend(*inputs).implementation.name == "reference"
    assert attend(*inputs).shape == (1, 100, 2, 0)


def test_explain_of_a_named_implementation_has_no_refusals():
    choice = explain_attend(*SMALL, tile_sizes=(2, 2), implementation="tiled")
    assert choice.implementation.name == "tiled"
    assert not choice.refusals


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("length", [1, 5, 4096])
@pytest.mark.parametrize("mask", [None, masks.lengths([4000])], ids=["none", "per example"])
def test_choice_for_a_platform(mask, platform, length, dtype):
    """Long inputs never take quadratic memory; one query needs no tiles."""
    query, key = (jax.ShapeDtypeStruct((1, size, 2, 64), dtype) for size in (length, 4096))
    choice = explained(query, key, key, mask=mask, platform=platform)
    assert choice.implementation.name == ("tiled" if length == 4096 else "reference")
    assert platform in str(choice)


def test_explain_of_unknown_names_raises():
    with pytest.raises(ValueError, match=r"platform must be one of .* did you mean 'cuda'"):
        explain_attend(*SMALL, platform="cdua")
    with pytest.raises(ValueError, match=r"of explain_attend must be .* did you mean 'mask'"):
        explain_attend(*SMALL, maks=masks.causal())


def test_explain_for_gpu_is_for_cuda():
    assert str(explain_attend(*SMALL, platform="gpu")) == str(
        explain_attend(*SMALL, platform="cuda")
    )


def test_inputs_on_another_platform_do_not_change_the_choice(monkeypatch):
    """The platform is that of the lowering, not of the default backend."""
    inputs = draw(*[(1, 128, 2, 8)] * 3)
    expected = attend(*inputs, mask=masks.causal())
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    run = jax.jit(lambda *inputs: attend(*inputs, mask=masks.causal()))
    assert jnp.allclose(run(*inputs), expected, atol=1e-5)
