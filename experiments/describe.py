"""Parameters, cache, FLOPs, masks and memory of a model, from shapes alone."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from attention.modules import (
    Attention,
    EncoderDecoder,
    LanguageModel,
    Layers,
    MaskedLanguageModel,
    RecurrentEncoderDecoder,
    SelfAttention,
    TransformerConfig,
)
from attention.primitives import masks
from experiments.config import Config
from experiments.devices import cores_as_devices
from experiments.errors import UsageError, as_usage_errors
from experiments.sharding import MESH_AXES
from experiments.tasks.task import Task

ModulePath = tuple[str | int, ...]
TRANSFORMERS = EncoderDecoder, LanguageModel, MaskedLanguageModel
# Parts in the order of a forward pass; parts without a name here come last.
ORDER = ("embedding", "source_embedding", "target_embedding", "encoder", "decoder")
ORDER += ("self_attention", "cross_attention", "feed_forward", "norms", "tokens", "positions")
DRAWN = 16  # positions of a mask

NOTE = """\
FLOPs are 2 for each parameter of a matrix that a token is multiplied with, and 2 N (H + Hv) for
each key that it attends to in each layer: here the whole context, or a window. In a long text, a
causal token attends to half of the context on average. Training takes 3 forward passes (Kaplan et
al. 2020, section 2.1), without recomputation."""


class TokenCost(NamedTuple):
    """Cost of one more token.

    Attributes:
        cache_bytes: keys and values of all layers in the cache of decoding.
        matrix_flops: of a forward pass, in products with parameters.
        attention_flops: of a forward pass, in products of queries with keys, weights with values.
    """

    cache_bytes: int
    matrix_flops: int
    attention_flops: int

    @property
    def forward_flops(self) -> int:
        """FLOPs of a forward pass; training takes three times as many."""
        return self.matrix_flops + self.attention_flops


def describe(config: Config | ConfigDict, task: Task | None) -> None:
    """Print the tables and the masks of a model, and the memory that its mesh needs.

    Args:
        config: of a preset or of a run.
        task: of the run; None for a preset.

    Raises:
        UsageError: it is no Transformer, or the mesh does not divide a size.
    """
    model = abstract_model(config) if task is None else task.learner.abstract_model
    if isinstance(model, RecurrentEncoderDecoder) or not isinstance(model, TRANSFORMERS):
        raise UsageError(
            f"task={config.task!r} with architecture={config.architecture!r} cannot be described: "
            "translation, language_model and masked_language_model with "
            "architecture='transformer' can"
        )
    print(table_of_parameters(model), table_of_costs(model, config.model.max_length), sep="\n\n")
    if published := getattr(config, "published", None):
        print(f"\n{compared(published, num_parameters(model))}")
    print(f"\n{NOTE}\n\nmasks of the first positions\n{masks_of(model)}")
    if task and task.learner.mesh.size > 1:
        print(f"\n{memory_of_training(task)}")


def simulate_devices(config: Config | ConfigDict) -> None:
    """Simulate the devices of the mesh of a config on the CPU; `data=0` counts as 1."""
    mesh = getattr(config, "mesh", None)
    jax.config.update("jax_platforms", "cpu")
    cores_as_devices(math.prod(getattr(mesh, axis, 1) or 1 for axis in MESH_AXES))


def abstract_model(config: ConfigDict) -> nnx.Module:
    """Return the model of a preset, with shapes for arrays.

    Raises:
        UsageError: a model that cannot be made.
    """
    kind, sizes = EncoderDecoder, ("source_vocab_size", "target_vocab_size")
    if "encoder_layers" not in config.model:
        kind, sizes = LanguageModel, ("vocab_size",)
    elif "decoder_layers" not in config.model:
        kind, sizes = MaskedLanguageModel, ("vocab_size",)
    with as_usage_errors("model: "):
        model, vocabularies = (
            TransformerConfig(**config.model),
            dict.fromkeys(sizes, config.vocab_size),
        )
        return jax.eval_shape(lambda: kind.from_config(model, **vocabularies, rngs=nnx.Rngs(0)))


def num_parameters(model: nnx.Module) -> int:
    """Return the number of all parameters."""
    return sum(parameter.size for _, parameter in _parameters(model))


def parameters_by_part(model: nnx.Module) -> dict[str, tuple[int, int | None]]:
    """Return the parameters of each part, and their mean over the layers, if it is in layers.

    For instance ("decoder", "layers", "blocks", 0, "self_attention", "norm", "scale") belongs to
    "decoder norms", and the norms of queries and keys to their attention.
    """
    stacks = {path: part.n for path, part in nnx.iter_modules(model) if isinstance(part, Layers)}
    sizes, per_layer = Counter[ModulePath](), Counter[ModulePath]()
    for path, parameter in _parameters(model):
        inner = ("layers", "blocks", "sublayer", "kernel", "bias", "scale", "table")
        part = tuple(name for name in path if isinstance(name, str) and name not in inner)[:2]
        if not {"norm", "output_norm"}.isdisjoint(path):
            part = path[0], "norms"
        layers = [n for stack, n in stacks.items() if path[: len(stack)] == stack]
        sizes[part] += parameter.size
        per_layer[part] += parameter.size / layers[0] if layers else 0

    def order(part: ModulePath) -> list[int]:
        return [ORDER.index(name) if name in ORDER else len(ORDER) for name in part]

    return {
        " ".join(part).replace("_", " "): (sizes[part], round(per_layer[part]) or None)
        for part in sorted(sizes, key=order)
    }


def token_costs(model: nnx.Module, context: int) -> dict[str, TokenCost]:
    """Return the cost of a token, or of a source and of a target token, that attends to a context.

    In self- and in cross-attention each token attends to as many tokens.
    """
    caches = _cache_bytes(model, context)
    source, *_, target = [*caches] * 2
    matrices, attention = Counter[str](), Counter[str]()
    for path, size in _matrices(model):
        matrices[source if _of_source(path) else target] += 2 * size
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Attention):
            query, output = module.query.kernel, module.output.kernel  # [*, D, N, H], [*, N, Hv, D]
            widths = query.size // query.shape[-3] + output.size // output.shape[-1]
            window, keys = getattr(module, "window", None), context
            if window is not None:
                keys = min(context, (1 if path[0] == "decoder" else 2) * window + 1)
            attention[source if _of_source(path) else target] += 2 * widths * keys
    return {kind: TokenCost(caches[kind], matrices[kind], attention[kind]) for kind in caches}


def table_of_parameters(model: nnx.Module) -> str:
    """Return the parameters of each part as a table."""
    total = num_parameters(model)
    rows = [["parameters", "in all", "per layer", "share"]]
    for name, (number, per_layer) in (parameters_by_part(model) | {"total": (total, None)}).items():
        layer = "" if per_layer is None else f"{per_layer:,}"
        rows.append([name, f"{number:,}", layer, f"{number / total:.1%}"])
    return aligned(rows)


def table_of_costs(model: nnx.Module, context: int) -> str:
    """Return the cache and the FLOPs of each kind of token as a table."""
    costs = token_costs(model, context)
    dtype = jax.tree.leaves(model)[0].dtype.name
    named = {
        f"cache, bytes in {dtype}": [cost.cache_bytes for cost in costs.values()],
        "FLOPs in matrices": [cost.matrix_flops for cost in costs.values()],
        "FLOPs in attention": [cost.attention_flops for cost in costs.values()],
        "FLOPs of a forward pass": [cost.forward_flops for cost in costs.values()],
        "FLOPs in training": [3 * cost.forward_flops for cost in costs.values()],
    }
    head = [f"at a context of {context:,} tokens", *(f"per {kind}" for kind in costs)]
    return aligned([head, *([name, *(f"{n:,}" for n in row)] for name, row in named.items())])


def compared(published: ConfigDict, parameters: int) -> str:
    """Return the published number of parameters, and the difference.

    Args:
        published: their number, its source, and the sizes of the parts that the model lacks.
        parameters: of the model.
    """
    absent = ", ".join(
        f"{name.replace('_', ' ')} {size:,}" for name, size in published.absent.items()
    )
    more = parameters + sum(published.absent.values()) - published.parameters
    share = f"{abs(more) / published.parameters:.2%} {'more' if more > 0 else 'fewer'}"
    return (
        f"published  {published.parameters:,} ({published.source})\n"
        f"here       {share if more else 'exactly as many'}"
        + (f", with what is absent here: {absent}" if absent else "")
    )


def masks_of(model: nnx.Module, size: int = DRAWN) -> str:
    """Draw the masks of self-attention, each once, with the layers that have it.

    Each query position has a line, and each key position a sign. Masks of the data, such as those
    of padding or of several texts in a row, are not of the model.
    """
    layers: dict[tuple[str, str], list[int]] = {}
    for stack, number, attention in _self_attention(model):
        mask = masks.full()
        if stack == "decoder" and model.decoder.causal:
            mask = masks.causal()
        if attention.window is not None:
            mask &= masks.window(attention.window, attention.window)
        picture = masks.picture(mask, size).translate({ord("0"): "·", ord("1"): "■"})
        layers.setdefault((stack, picture), []).append(number)
    return "\n\n".join(
        f"{stack} self-attention, layers {', '.join(map(str, sorted(numbers)))}; rows: queries\n"
        f"{picture}"
        for (stack, picture), numbers in layers.items()
    )


def memory_of_training(task: Task) -> str:
    """Return what the compiler reports of the training step of a task on the mesh of its config."""
    learner = task.learner
    batch, rows = learner.batch_reader(task.training_batches())(0)
    memory = learner.train_step.lower(learner.abstract_state, batch).compile().memory_analysis()
    table = [
        ["a training step", "bytes of each device"],
        ["arguments: state and batch", f"{memory.argument_size_in_bytes:,}"],
        ["output: state and metrics", f"{memory.output_size_in_bytes:,}"],
        ["temporary: activations and gradients", f"{memory.temp_size_in_bytes:,}"],
    ]
    return (
        f"{aligned(table)}\n\nThe {learner.mesh.size} devices are simulated on this CPU, and a "
        f"batch has {rows} rows. The numbers are those of the\ncompiler for CPUs; that for an "
        "accelerator may need other temporary memory."
    )


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a table, whose columns but the first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def _cache_bytes(model: nnx.Module, context: int) -> dict[str, int]:
    """Return the bytes that a token takes in a cache, for each kind of token."""
    if not hasattr(model, "new_cache"):
        return {"token": 0}
    if not hasattr(model, "encoder"):
        return {"token": _growth(lambda model, size: model.new_cache((), size), model, context)}

    def cache(model: nnx.Module, sources: int, size: int) -> Any:  # noqa: ANN401 - of the model
        encoded = model.encode(jnp.zeros(sources, jnp.int32), mask=None)
        return model.new_cache((), size, encoder_output=encoded.features)

    return {
        "source token": _growth(lambda model, size: cache(model, size, 1), model, context),
        "target token": _growth(lambda model, size: cache(model, 1, size), model, context),
    }


def _growth(make: Callable[[nnx.Module, int], object], model: nnx.Module, context: int) -> int:
    """Return the mean number of bytes that each token of a context adds to a cache."""

    def bytes_for(size: int) -> int:
        arrays = jax.tree.leaves(jax.eval_shape(lambda model: make(model, size), model))
        features = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)]
        return sum(array.size * array.dtype.itemsize for array in features)

    more = max(1, context - 1)
    return (bytes_for(1 + more) - bytes_for(1)) // more


def _of_source(path: ModulePath) -> bool:
    """Return whether source tokens are multiplied here, as in keys of cross-attention."""
    precomputed = "cross_attention" in path and path[-2] in ("key", "value")
    return precomputed or path[0] in ("source_embedding", "encoder")


def _matrices(model: nnx.Module) -> Iterator[tuple[ModulePath, int]]:
    """Yield sizes of the matrices that a token is multiplied with, a tied token table included."""
    tied = getattr(model, "output", model) is None
    for path, parameter in _parameters(model):
        if path[-1] == "kernel" or (tied and path[-1] == "tokens" and not _of_source(path)):
            yield path, parameter.size
        elif active := parameter.get_metadata().get("active"):  # of experts
            yield path, round(active * parameter.size)


def _self_attention(model: nnx.Module) -> Iterator[tuple[str, int, SelfAttention]]:
    """Yield the stack, the number of the layer from 1, and the self-attention of each layer."""
    for stack in ("encoder", "decoder"):
        layers = getattr(getattr(model, stack, None), "layers", None)
        if not isinstance(layers, Layers):
            continue
        for block, indices in zip(layers.blocks, layers.indices(), strict=True):
            for _, module in nnx.iter_modules(block):
                if isinstance(module, SelfAttention):
                    yield from ((stack, index + 1, module) for index in indices)


def _parameters(model: nnx.Module) -> Iterator[tuple[ModulePath, nnx.Param]]:
    yield from nnx.to_flat_state(nnx.state(model, nnx.Param))
