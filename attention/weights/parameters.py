"""Parameters of a model by paths that do not depend on how its layers are stacked."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array

from attention.modules.transformer import Layers


@dataclass(frozen=True)
class Parameter:
    """An array of a model, which may contain one parameter of several layers.

    Attributes:
        key: of the array in the flat state of the model.
        path: dotted path; `{i}` is the index of a layer.
        layers: indices of the layers on the leading axis, or of the one layer without such an axis.
        is_stacked: whether there is a leading axis of layers.
        value: the array, or its shape and dtype.
    """

    key: tuple[Any, ...]
    path: str
    layers: tuple[int, ...]
    is_stacked: bool
    value: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter of one layer."""
        return self.value.shape[1:] if self.is_stacked else self.value.shape

    def of_layer(self, index: int) -> np.ndarray:
        """Return the parameter of one of the layers, by its place in `layers`.

        Only this layer is copied to the host.
        """
        value = _layer(self.value, np.int32(index)) if self.is_stacked else self.value
        return np.asarray(value)


@jax.jit
def _layer(value: Array, index: Array) -> Array:
    """Return one layer of a stacked parameter; compiled once for each shape, not for each index."""
    return jax.lax.dynamic_index_in_dim(value, index, keepdims=False)


def parameters_of(model: nnx.Module) -> list[Parameter]:
    """List the arrays of a model, without the state of random number generators."""
    stacks = {path: part for path, part in nnx.iter_modules(model) if isinstance(part, Layers)}
    _, state = nnx.split(model)
    found = []
    for key, leaf in nnx.to_flat_state(state):
        if isinstance(leaf, nnx.RngState):
            continue
        path, layers, is_stacked = list(map(str, key)), (0,), False
        for end in range(len(key)):
            if key[:end] in stacks and key[end] == "blocks":
                layers = tuple(stacks[key[:end]].indices()[int(key[end + 1])])
                is_stacked = len(layers) > 1
                path[end : end + 2] = ["{i}"]
                break
        value = leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
        found.append(Parameter(key, ".".join(path), layers, is_stacked, value))
    return found


def fill(model: nnx.Module, values: dict[tuple[Any, ...], jax.Array]) -> nnx.Module:
    """Return a model with other arrays, by the `key` of a `Parameter`; empties `values`."""
    definition, state = nnx.split(model)
    flat = []
    for key, leaf in nnx.to_flat_state(state):
        if not isinstance(leaf, nnx.RngState):
            value = values.pop(key)
            leaf = leaf.replace(value) if isinstance(leaf, nnx.Variable) else value
        elif isinstance(leaf.get_value(), jax.ShapeDtypeStruct):
            raise ValueError(
                f"the random state {'.'.join(map(str, key))} is in no checkpoint: pass a model= "
                "with arrays, not one of nnx.eval_shape"
            )
        flat.append((key, leaf))
    return nnx.merge(definition, nnx.from_flat_state(flat))
