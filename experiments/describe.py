"""Parameters, cache, FLOPs, masks and memory of a model, from shapes alone."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jax
from flax import nnx
from ml_collections import ConfigDict

from attention.modules import (
    Attention,
    EncoderDecoder,
    LanguageModel,
    MaskedLanguageModel,
    RecurrentEncoderDecoder,
    SelfAttention,
    TransformerConfig,
)
from attention.primitives import masks
from experiments.config import Config
from experiments.errors import UsageError, as_usage_errors
from experiments.processes import cores_as_devices
from experiments.registry import TASKS
from experiments.sharding import MESH_AXES, read_batch
from experiments.tasks.task import Task
from experiments.workdir import Workdir

TRANSFORMERS = EncoderDecoder, LanguageModel, MaskedLanguageModel
ENCODER = "source_embedding", "encoder"  # parts of a model that read the source

NOTE = """\
FLOPs are 2 for each parameter of a matrix that a token is multiplied with, and 2 N (H + Hv) for
each key that it attends to in each layer: here the whole context, or a window. In a long text, a
causal token attends to half of the context on average. Training takes 3 forward passes (Kaplan et
al. 2020, section 2.1), without recomputation."""


def describe(
    config: Config | ConfigDict, workdir: Workdir, cache: Path, *, is_of_run: bool = False
) -> None:
    """Print the tables and the masks of a model, and the memory that its mesh needs.

    The vocabularies are those of a run if `is_of_run`, else they are learned from the data.

    Raises:
        UsageError: it is no Transformer, or the mesh does not divide a size.
    """
    task = None
    if config.task in TASKS:
        kind = TASKS[config.task]
        task = kind.load(config, workdir, cache) if is_of_run else kind.prepare(config, cache)
    model = abstract_model(config) if task is None else task.learner.abstract_model
    if isinstance(model, RecurrentEncoderDecoder) or not isinstance(model, TRANSFORMERS):
        raise UsageError(
            f"task={config.task!r} with architecture={config.architecture!r} cannot be described: "
            "translation, language_model and masked_language_model with "
            "architecture='transformer' can"
        )
    parts = parameters_by_part(model)
    parts["total"] = total = sum(parts.values())
    rows = [[name, f"{number:,}", f"{number / total:.1%}"] for name, number in parts.items()]
    print(aligned([["parameters", "number", "share"], *rows]))
    context = config.model.max_length
    costs = token_costs(model, context)
    names = {
        "cache": f"cache, bytes in {jax.tree.leaves(model)[0].dtype.name}",
        "matrices": "FLOPs in matrices",
        "attention": "FLOPs in attention",
        "forward": "FLOPs of a forward pass",
        "training": "FLOPs in training",
    }
    head = [f"at a context of {context:,} tokens", *(f"per {kind}" for kind in costs)]
    rows = [
        [name, *(f"{cost.get(key, 0):,}" for cost in costs.values())] for key, name in names.items()
    ]
    print(f"\n{aligned([head, *rows])}")
    if published := getattr(config, "published", None):
        print(f"\n{compared(published, total)}")
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
    vocabularies = dict.fromkeys(sizes, config.vocab_size)
    with as_usage_errors("model: "):
        model = TransformerConfig(**config.model)
        return jax.eval_shape(lambda: kind.from_config(model, **vocabularies, rngs=nnx.Rngs(0)))


def parameters_by_part(model: nnx.Module) -> dict[str, int]:
    """Return the number of parameters of each part.

    For instance ("decoder", "layers", "blocks", 0, "self_attention", "norm", "scale") belongs to
    "decoder norms", and the norms of queries and keys to their attention.
    """
    sizes = Counter[str]()
    for path, parameter in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        inner = ("layers", "blocks", "sublayer", "kernel", "bias", "scale", "table")
        names = [name for name in path if isinstance(name, str) and name not in inner][:2]
        if not {"norm", "output_norm"}.isdisjoint(path):
            names = [path[0], "norms"]
        sizes[" ".join(names).replace("_", " ")] += parameter.size
    return dict(sizes)


def token_costs(model: nnx.Module, context: int) -> dict[str, dict[str, int]]:
    """Return costs of a token, or of a source and of a target token, that attends to a context.

    In self- and in cross-attention each token attends to as many tokens. Costs are "cache", bytes
    of its keys and values; "matrices" and "attention", FLOPs of a forward pass in products with
    parameters and in attention; "forward", of both; and "training", FLOPs of three passes.
    """
    kinds = ["token"]
    if hasattr(model, "encoder") and hasattr(model, "decoder"):
        kinds = ["source token", "target token"]
    costs = {kind: Counter[str](cache=0) for kind in kinds}

    def cost_of(path: tuple[str | int, ...]) -> Counter[str]:
        # Keys and values of cross-attention are computed once for each source token.
        of_source = "cross_attention" in path and {*path} & {"key", "value"}
        return costs[kinds[0 if of_source or path[0] in ENCODER else -1]]

    is_tied = getattr(model, "output", model) is None
    for path, parameter in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        is_table = is_tied and path[-1] == "tokens" and path[0] not in ENCODER
        used = parameter.get_metadata().get("active", 1.0 * (path[-1] == "kernel" or is_table))
        cost_of(path)["matrices"] += 2 * round(used * parameter.size)
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Attention):
            query, key, value = (
                linear.kernel.size // linear.kernel.shape[-3]  # [*, D, N, H]
                for linear in (module.query, module.key, module.value)
            )
            output = module.output.kernel.size // module.output.kernel.shape[-1]  # [*, N, Hv, D]
            window, keys = getattr(module, "window", None), context
            if window is not None:
                keys = min(context, (1 if path[0] == "decoder" else 2) * window + 1)
            cost_of(path)["attention"] += 2 * (query + output) * keys
            if hasattr(model, "new_cache") and path[0] not in ENCODER:
                bytes_of_layer = (key + value) * module.key.kernel.dtype.itemsize
                # The cache of a window is a ring.
                cost_of((*path, "key"))["cache"] += bytes_of_layer * keys // context
    for cost in costs.values():
        cost["forward"] = cost["matrices"] + cost["attention"]
        cost["training"] = 3 * cost["forward"]
    return {kind: dict(cost) for kind, cost in costs.items()}


def compared(published: ConfigDict, parameters: int) -> str:
    """Return the published number of parameters, and the difference to those of the model."""
    more = parameters + sum(published.absent.values()) - published.parameters
    share = f"{abs(more) / published.parameters:.2%} {'more' if more > 0 else 'fewer'}"
    text = (
        f"published  {published.parameters:,} ({published.source})\n"
        f"here       {share if more else 'exactly as many'}"
    )
    absent = [f"{name.replace('_', ' ')} {size:,}" for name, size in published.absent.items()]
    return f"{text}, with what is absent here: {', '.join(absent)}" if absent else text


def masks_of(model: nnx.Module, size: int = 16) -> str:
    """Draw the masks of self-attention, each once, with the layers that have it.

    Each query position has a line, and each key position a sign. Masks of the data, such as those
    of padding or of several texts in a row, are not of the model.
    """
    numbers: dict[tuple[str, str], list[int]] = {}
    for stack in ("encoder", "decoder"):
        layers = getattr(getattr(model, stack, None), "layers", None)
        for block, indices in zip(layers.blocks, layers.indices(), strict=True) if layers else ():
            for _, module in nnx.iter_modules(block):
                if isinstance(module, SelfAttention):
                    is_causal = stack == "decoder" and model.decoder.causal
                    mask = masks.causal() if is_causal else masks.full()
                    if module.window is not None:
                        mask &= masks.window(module.window, module.window)
                    picture = masks.picture(mask, size).translate({ord("0"): "·", ord("1"): "■"})
                    numbers.setdefault((stack, picture), []).extend(n + 1 for n in indices)
    return "\n\n".join(
        f"{stack} self-attention, layers {', '.join(map(str, sorted(layers)))}; rows: queries\n"
        f"{picture}"
        for (stack, picture), layers in numbers.items()
    )


def memory_of_training(task: Task) -> str:
    """Return what the compiler reports of the training step of a task on the mesh of its config."""
    learner = task.learner
    multiple = task.config.batch.microbatches
    batch, rows = read_batch(task.training_batches(), learner.mesh, multiple, 0)
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
    line = "  ".join(f"{{:{'>' if number else '<'}{width}}}" for number, width in enumerate(widths))
    return "\n".join(line.format(*row) for row in rows)
