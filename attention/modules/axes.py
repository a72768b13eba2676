"""Logical axis names of parameters, which a table of the user maps to mesh axes."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from flax import nnx
from jax import Array

from attention.modules.context import AxisNames

Module = TypeVar("Module", bound=nnx.Module)


def map_axes(function: Callable[[AxisNames], Any], model: nnx.Module) -> nnx.State:
    """Apply a function to the axis names of every parameter, for instance to get its sharding.

    A parameter has names as metadata "axes"; the leading axis of stacked layers is "layers", and a
    parameter without names has None for every axis.

    Args:
        function: of the names of the axes of one parameter, as ("embed", "heads", "head").
        model: any module.

    Returns:
        The state `nnx.state(model, nnx.Param)` with the results in place of the arrays.
    """

    def names(parameter: nnx.Param) -> Any:  # noqa: ANN401 - whatever the function returns
        return parameter.replace(function(axis_names(parameter)))

    return jax.tree.map(
        names, nnx.state(model, nnx.Param), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )


def axis_names(parameter: nnx.Variable) -> AxisNames:
    """Return the name of each axis of a parameter, or of its shape; see `map_axes`."""
    own = parameter.get_metadata().get("axes", (None,) * parameter.ndim)
    return ("layers",) * (parameter.ndim - len(own)) + tuple(own)


def name_axis(module: Module, name: str) -> Module:
    """Name the leading axis of every parameter of a module that was made by `jax.vmap`.

    `name_axis(jax.vmap(lambda key: FeedForward(8, 32, rngs=nnx.Rngs(key)))(keys), "experts")` gives
    a kernel the names ("experts", "embed", "hidden"). The module itself is changed.
    """
    for _, parameter in nnx.to_flat_state(nnx.state(module, nnx.Param)):
        own = parameter.get_metadata().get("axes", (None,) * (parameter.ndim - 1))
        parameter.set_metadata(axes=(name, *own))
    return module


def widths_of(module: Any) -> set[int]:  # noqa: ANN401 - any pytree
    """Return the sizes of all axes with the logical name "embed"."""
    variables = jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return {
        size
        for variable in variables
        if isinstance(variable, nnx.Variable)
        for name, size in zip(variable.get_metadata().get("axes", ()), variable.shape, strict=False)
        if name == "embed"
    }


def width_error(name: str, module: Any, inputs: Array) -> str:  # noqa: ANN401 - any pytree
    """Return the message for a module that does not fit its inputs `[..., D]`."""
    widths = " and ".join(map(str, sorted(widths_of(module))))
    return f"{name} has width {widths}, and its inputs have width {inputs.shape[-1]}"
