"""The parameters and the attention of a model, and how often each is computed."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from flax import nnx
from jax.sharding import AbstractMesh

from attention.modules import Attention, Block, EncoderDecoder, Layers, Residual
from attention.modules.context import AxisNames, axis_names
from experiments.training.sharding import padded_shape, spec

Path = tuple[str | int, ...]


class Weight(NamedTuple):
    """A parameter of one layer.

    Attributes:
        path: in the model.
        names: of its axes.
        shape: their sizes.
        layers: how many layers have one.
        num_inputs: axes of the inputs of a kernel; 0 for other parameters.
        in_layers: whether it belongs to a stack of layers.
        recomputed: whether the backward pass computes its outputs again.
        lookups: how often it is used as a table of vectors.
        is_output: whether it scores the vocabulary.
    """

    path: Path
    names: AxisNames
    shape: tuple[int, ...]
    layers: int
    num_inputs: int
    in_layers: bool
    recomputed: bool
    lookups: int
    is_output: bool

    @property
    def is_matrix(self) -> bool:
        """Whether vectors of tokens are multiplied with it."""
        return self.num_inputs > 0 or self.is_output


class Shard(NamedTuple):
    """The part of a parameter that a device computes with.

    Attributes:
        weight: the parameter.
        mesh: of the devices.
        axes: of the mesh for each axis of the parameter, without "fsdp".
        size: entries in one layer, once those of "fsdp" are gathered.
        fsdp: shards of what is stored.
    """

    weight: Weight
    mesh: AbstractMesh
    axes: tuple[tuple[str, ...], ...]
    size: int
    fsdp: int

    @classmethod
    def of(cls, weight: Weight, mesh: AbstractMesh) -> Self:
        """Return the part of a parameter.

        Raises:
            UsageError: a size that the mesh does not divide.
        """
        names, what = weight.names, ".".join(map(str, weight.path))
        shape = padded_shape(names, weight.shape, mesh)
        found = spec(names, shape, mesh, what)
        used = [{axis} if isinstance(axis, str) else {*(axis or ())} for axis in found]
        axes = tuple(tuple(sorted(axis - {"fsdp"})) for axis in used)
        size = math.prod(shape) // math.prod(mesh.shape[name] for axis in axes for name in axis)
        fsdp = mesh.shape["fsdp"] if any("fsdp" in axis for axis in used) else 1
        return cls(weight, mesh, axes, size, fsdp)

    @property
    def tensor_axes(self) -> tuple[str, ...]:
        """Axes of the mesh that shard it in computations."""
        return tuple(name for axis in self.axes for name in axis)


def weights(model: nnx.Module) -> Iterator[Weight]:
    """Yield the parameters of a Transformer; layers that repeat have one."""
    stacks = _stacks(model)
    for path, parameter in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        stack = _stack_of(path, stacks)
        repeats = axis_names(parameter).count("layers")
        names = axis_names(parameter)[repeats:]
        num_inputs = parameter.get_metadata().get("num_inputs", 0)
        lookups = _lookups(model, path) if path[-1] in ("tokens", "token_types", "table") else 0
        is_output = (
            "vocab" in names and len(names) > 1 and (num_inputs > 0 or _is_tied(model, path))
        )
        yield Weight(
            path=path,
            names=names,
            shape=parameter.shape[repeats:],
            layers=math.prod(parameter.shape[:repeats]),
            num_inputs=num_inputs,
            in_layers=stack is not None,
            recomputed=stack is not None and stack.remat and not _is_last(stack, path),
            lookups=lookups,
            is_output=is_output,
        )


def attentions(model: nnx.Module) -> Iterator[tuple[Path, Attention, int, bool]]:
    """Yield path and module of attention, in how many layers it is, whether it is recomputed."""
    stacks = _stacks(model)
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Attention):
            stack = _stack_of(path, stacks)
            repeats = axis_names(module.query.kernel).count("layers")
            layers = math.prod(module.query.kernel.shape[:repeats])
            yield path, module, layers, stack is not None and stack.remat


def _stacks(model: nnx.Module) -> dict[Path, Layers]:
    return {path: part for path, part in nnx.iter_modules(model) if isinstance(part, Layers)}


def _stack_of(path: Path, stacks: Mapping[Path, Layers]) -> Layers | None:
    """Return the stack of layers that contains a path."""
    return next((stacks[at] for at in stacks if path[: len(at)] == at), None)


def _is_last(stack: Layers, path: Path) -> bool:
    """Return whether nothing in a block but a residual sum follows a parameter."""
    at = path.index("blocks")
    block = stack.blocks[path[at + 1]]
    if not isinstance(block, Block) or path[at + 2] != block.names[-1]:
        return False
    residual = getattr(block, block.names[-1])
    is_plain = isinstance(residual, Residual) and residual.placement == "pre"
    return is_plain and residual.output_norm is None and path[-2] in ("down", "output")


def _is_tied(model: nnx.Module, path: Path) -> bool:
    return model.output is None and path[0] in ("embedding", "target_embedding")


def _lookups(model: nnx.Module, path: Path) -> int:
    if not isinstance(model, EncoderDecoder) or path[0] == "source_embedding":
        return 1
    is_shared = model.source_embedding is None or model.source_embedding.tokens is None
    return 1 + (is_shared and path[-1] == "tokens")
