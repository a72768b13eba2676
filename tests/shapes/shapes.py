"""Shapes in words: arguments and results of a function, compared by tracing it.

A signature is written `"query: [..., T, D], allowed: bool [T, S] -> [..., T, D]"`. The dtype is
float32 if none is in front: `int32 [B, T]`, or `key []` for a random key. An axis may be an
expression, as `[1 + S, 2*F]`. Results are one array, several, or attributes of the result:
`"tokens: int32 [B, T] -> logits: [B, T, V]"`. A tree of such texts describes deeper results.
"""

import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from attention.modules import select_parameters

# The sizes are distinct, and prime where nothing must divide them: two axes that are swapped, or
# merged by mistake, change a shape. H and D are even for rotary and sinusoidal positions; K
# divides N.
SIZES = {
    **{"B": 59, "T": 5, "S": 7, "K": 3, "N": 33, "H": 26, "Hv": 17, "D": 38, "F": 23},
    **{"V": 29, "U": 31, "C": 37, "E": 41},  # vocabulary, that of sources, classes, source width
    **{"L": 2, "M": 43, "R": 11},  # layers, largest number of tokens, rank of a change
}
SIZE = SimpleNamespace(**SIZES)
BATCHES = ((), (47, 53))  # sizes of the axes `...`, one check for each

ARRAY = re.compile(r"(?:(\S+): )?((?:\w+ )?\[.*?\])")  # name, and dtype with axes


class Shapes(NamedTuple):
    """A line of a table: the shapes of the arguments of a function, and of its result."""

    function: Callable[..., Any]
    arguments: dict[str, str]
    returns: Any
    parameters: dict[str, str] | None = None
    build: Callable[[nnx.Rngs], nnx.Module] | None = None


def shapes(function: Callable[..., Any], signature: str, *, returns: Any = None) -> Shapes:
    """Describe a function by its signature, or by its arguments and a tree of its results.

    A dict of an object contains some of its attributes.
    """
    arguments, _, results = map(ARRAY.findall, signature.partition("->"))
    if results:
        texts = [text for _, text in results]
        has_names = results[0][0]
        returns = dict(results) if has_names else texts if len(texts) > 1 else texts[0]
    return Shapes(function, dict(arguments), returns)


def module(
    build: Callable[[nnx.Rngs], nnx.Module],
    signature: str,
    call: Callable[..., Any] | None = None,
    *,
    parameters: str | None = None,
    returns: Any = None,
    **options: Any,
) -> Shapes:
    """Describe a module: all its parameters by path, if given, and a call.

    Args:
        build: makes the module from a source of parameters.
        signature: as in `shapes`.
        call: `(module, **arguments, **options)`. By default the module itself is called, and its
            first argument is positional.
        parameters: as `"up.kernel: [D, F], up.bias: [F]"`.
        returns: as in `shapes`.
        options: further arguments of the call, without shapes.
    """

    def call_module(module: nnx.Module, **arguments: Any) -> Any:
        first = [arguments.pop(name) for name in [*line.arguments][:1]]
        return module(*first, **arguments)

    line = shapes(partial(call or call_module, **options), signature, returns=returns)
    paths = None if parameters is None else dict(ARRAY.findall(parameters))
    return line._replace(parameters=paths, build=build)


def check(line: Shapes) -> None:
    """Trace a line of a table for each of `BATCHES` and compare all shapes and dtypes."""
    models = ()
    if line.build is not None:
        models = (jax.eval_shape(lambda: line.build(nnx.Rngs(0))),)
        if line.parameters is not None:
            found = select_parameters(*models, "*") if line.parameters else {}
            check_tree(found, line.parameters)

    def function(*models: nnx.Module, **arguments: Any) -> Any:
        return select(line.function(*models, **arguments), line.returns)

    texts = jax.tree.leaves((line.arguments, line.returns))
    for batch in BATCHES if any("..." in text for text in texts) else [()]:
        arguments = jax.tree.map(partial(array, batch=batch), line.arguments)
        check_tree(jax.eval_shape(function, *models, **arguments), line.returns, batch)


def select(found: Any, expected: Any) -> Any:
    """Return the attributes of objects that a dict names, in a tree like `expected`."""
    if isinstance(expected, dict):
        attributes = (
            found if isinstance(found, dict) else {name: getattr(found, name) for name in expected}
        )
        assert {*attributes} == {*expected}, f"{sorted(attributes)} for {sorted(expected)}"
        return {name: select(attributes[name], expected[name]) for name in expected}
    if isinstance(expected, tuple | list):
        return [select(*pair) for pair in zip(found, expected, strict=True)]
    return found


def array(text: str, batch: tuple[int, ...] = ()) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype that a text describes, with the axes `batch` for `...`."""
    kind, axes = text.split("[")
    sizes = eval(f"[{axes}", dict(SIZES))
    shape = [size for axis in sizes for size in (batch if axis is ... else [axis])]
    kind = kind.strip() or "float32"
    dtype = jax.eval_shape(jax.random.key, 0).dtype if kind == "key" else jnp.dtype(kind)
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def check_tree(found: Any, expected: Any, batch: tuple[int, ...] = (), path: str = "") -> None:
    """Compare a result with a tree of texts, with a message that names the place in words."""
    if expected is None:
        assert found is None, f"{path} should be None, got {found}"
    elif isinstance(expected, str):
        like = array(expected, batch)
        where = f"{path or 'the result'} should be {expected}"
        chex.assert_shape(found, like.shape, custom_message=where)
        assert found.dtype == like.dtype, f"{where}, got {found.dtype}"
    elif isinstance(expected, dict):
        assert {*found} == {*expected}, f"{path} has {sorted(found)}, not {sorted(expected)}"
        for name, text in expected.items():
            check_tree(found[name], text, batch, f"{path}[{name}]")
    else:
        for index, (each, text) in enumerate(zip(found, expected, strict=True)):
            check_tree(each, text, batch, f"{path}[{index}]")
