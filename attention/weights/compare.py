"""Check that a model is the one that its config makes, before it is saved."""

from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from attention.modules.transformer import Layers, unstack_layers
from attention.weights.parameters import Parameter, parameters_of

# Attributes of modules that options of `load` may change.
DTYPES = ("dtype", "param_dtype")
OPTIONS_OF_LOAD = (*DTYPES, "dropout", "implementation", "max_length")


def check_model(
    model: nnx.Module, made: nnx.Module, kind: str, *, ignored: Collection[str] = ()
) -> None:
    """Raise a ValueError if a model differs from the one that a config makes.

    Args:
        model: to save.
        made: by the config; may be abstract.
        kind: of the config, in errors.
        ignored: names of static attributes that may differ. How layers are stacked always may.
    """
    _check_parameters(parameters_of(model), parameters_of(made), kind)
    own, others = map(_static_attributes, (model, made))
    for path in sorted(own.keys() | others.keys()):
        left, right = own.get(path), others.get(path)
        if left != right and path.rpartition(".")[2] not in ignored:
            raise ValueError(
                f"{path} of the model is {_name(left)}, and the {kind} config makes {_name(right)}"
            )


def _check_parameters(
    parameters: Sequence[Parameter], needed: Sequence[Parameter], kind: str
) -> None:
    own, others = (
        {(each.path, layer): each.shape for each in listed for layer in each.layers}
        for listed in (parameters, needed)
    )
    for path, layer in sorted(own.keys() ^ others.keys()):
        name = path.replace("{i}", str(layer))
        which = "lacks" if (path, layer) in others else "has"
        raise ValueError(f"the model {which} the parameter {name!r}, unlike the {kind} config")
    for (path, layer), shape in own.items():
        if shape != others[path, layer]:
            name = path.replace("{i}", str(layer))
            raise ValueError(
                f"the parameter {name!r} has shape {shape}, and the {kind} config needs "
                f"{others[path, layer]}"
            )


def _static_attributes(model: nnx.Module) -> dict[str, Any]:
    """Return the attributes of all modules that are not arrays, and their classes, by path."""
    found = {}
    for key, part in nnx.iter_modules(nnx.eval_shape(unstack_layers, model)):
        path = [str(name) for name in key if name != "blocks"]
        found[".".join([*path, "class"])] = type(part)
        attributes = {} if isinstance(part, Layers | nnx.List) else vars(part)
        for name, value in attributes.items():
            leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, nnx.Module))
            is_static = not any(
                isinstance(leaf, nnx.Module) or hasattr(leaf, "shape") for leaf in leaves
            )
            if name in DTYPES and value is not None:
                value = np.dtype(value).name
            if is_static and not name.startswith("_") and name not in ("source", "deterministic"):
                found[".".join([*path, name])] = value
    return found


def _name(value: object) -> str:
    return getattr(value, "__name__", repr(value))
