"""Load a model from a folder, and save it in the same layout."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from attention.modules import TransformerConfig
from attention.modules.context import check_names
from attention.modules.numbers import check_count, check_dtype
from attention.modules.transformer import Layers, unstack_layers
from attention.primitives.choice import one_of
from attention.weights.bart import BART, MARIAN
from attention.weights.bert import BERT
from attention.weights.files import Tensor, list_tensors, read_json, write_checkpoint
from attention.weights.gpt2 import GPT2
from attention.weights.llama import LLAMA
from attention.weights.own import DTYPES, MODEL_TYPE, OWN, describe
from attention.weights.rules import Family, Part, Settings, parts_by_tensor
from attention.weights.t5 import T5
from attention.weights.vit import VIT

# `model_type` of config.json -> family. Add your own.
FAMILIES: dict[str, Family] = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "bert": BERT,
    "bart": BART,
    "marian": MARIAN,
    "t5": T5,
    "vit": VIT,
    MODEL_TYPE: OWN,
}

# Fields of config.json with the dtype of the tensors, under the names that jax and PyTorch share.
DTYPE_FIELDS = ("dtype", "torch_dtype")

# Attributes of modules that options of `load` may change.
OPTIONS_OF_LOAD = (*DTYPES, "dropout", "implementation", "max_length")


class Source(str):
    """Content of a config.json of others: the attribute `source` of a loaded model."""

    __slots__ = ()

    @property
    def settings(self) -> Settings:
        """Fields of config.json, such as `eos_token_id` and `decoder_start_token_id`."""
        return Settings(json.loads(self))


def load(
    folder: str | os.PathLike[str],
    *,
    model: nnx.Module | None = None,
    param_dtype: DTypeLike | None = None,
    **options: Any,  # noqa: ANN401 - values of fields
) -> Any:  # noqa: ANN401 - the class is that of the checkpoint
    """Return the model of a checkpoint, with an attribute `source` for `save`.

    Class and config follow from config.json. Tensors are read one by one, those of the largest
    arrays first, so that no more than about 1.2 times the size of the model is in memory. No code
    in the folder is run.

    Args:
        folder: contains config.json, and model.safetensors or several files with an index.
        model: one of the same structure, for a checkpoint that was saved without a config; only its
            shapes are used, so that `nnx.eval_shape(make_model)` is enough, and its random states,
            if it has any: no checkpoint contains them.
        param_dtype: of the parameters; that of the tensors if None.
        options: fields of `TransformerConfig` to change, such as `dtype` (of the computation),
            `scan`, `remat`, `dropout` or `implementation`; none with a model.

    Raises:
        FileNotFoundError: no folder, no config.json or no tensors. Nothing is downloaded.
        ValueError: another architecture; a config.json that is damaged or not supported; a tensor
            that is missing, unexpected or has another shape; an option that is not a field.
    """
    if model is not None and options:
        raise ValueError(f"model= is used as it is: it takes no {', '.join(options)}")
    known = [each.name for each in fields(TransformerConfig)]
    check_names("load has no option", options, known, ValueError)
    check_dtype("param_dtype", param_dtype)
    if param_dtype is not None:
        options |= {"param_dtype": param_dtype}
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not a folder: load needs one with config.json and model.safetensors, as "
            f"downloaded from Hugging Face, of one of the families {', '.join(FAMILIES)}"
        )
    settings = Settings(read_json(folder / "config.json"))
    family = _family(settings)
    abstract = _abstract(family, settings, options) if model is None else model
    parts = parts_by_tensor(abstract, family, settings)
    tensors = list_tensors(folder, family.rename)
    made = f"a {type(abstract).__name__} of its config.json"
    user = made if model is None else "model="
    if problems := list(_problems(parts, tensors, family, user)):
        more = f"; {len(problems) - 1} more tensors do not fit" if len(problems) > 1 else ""
        raise ValueError(f"the {settings['model_type']} checkpoint {problems[0]}{more}")
    loaded = _filled(abstract, parts, tensors, param_dtype)
    loaded.source = None if family is OWN else Source(json.dumps(settings))
    return loaded


def save(
    model: nnx.Module,
    folder: str | os.PathLike[str],
    *,
    config: Mapping[str, Any] | TransformerConfig | None = None,
    max_bytes: int = 5 * 10**9,
) -> None:
    """Save a model: config.json and safetensors.

    A model that was loaded is saved in the layout it had; any other with the names of its
    parameters, and with its config if a class in `MODELS` made it from that alone, for `load`.

    Args:
        model: to save.
        folder: is made if it does not exist.
        config: the config that makes the same model as was composed by hand; or the content of a
            config.json with a `model_type` in `FAMILIES`, for its layout.
        max_bytes: of one file.

    Raises:
        ValueError: a model that differs from the one that the config makes, and `load` with it: in
            its parameters, or in other attributes, such as an activation. Attributes that options
            of `load` may change, such as `dropout`, are compared with a `TransformerConfig` only.
            A model that has changed is saved without its config after `model.config = None`.
    """
    check_count("max_bytes", max_bytes, required=True, at_least=1)
    if config is None and getattr(model, "source", None):
        config = model.source.settings
    ignored = OPTIONS_OF_LOAD if isinstance(config, Mapping) else ()
    settings = Settings(config if isinstance(config, Mapping) else describe(model, config))
    family = _family(settings)
    if family is not OWN or "config" in settings:
        _check_model(model, _abstract(family, settings, {}), settings["model_type"], ignored)
    parts = parts_by_tensor(model, family, settings)

    def tensor(name: str) -> np.ndarray:
        written = [part.write() for part in parts[name]]
        return np.concatenate(written, parts[name][0].rule.axis) if written[1:] else written[0]

    dtypes = {name: parts[name][0].array.dtype for name in sorted(parts)}
    sizes = {name: math.prod(parts[name][-1].end) * dtypes[name].itemsize for name in dtypes}
    dtype = dtypes[max(sizes, key=lambda name: sizes[name])]
    settings |= {name: dtype.name for name in DTYPE_FIELDS if name in settings}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    write_checkpoint(folder, text, sizes, tensor, max_bytes)


def _family(settings: Settings) -> Family:
    if "model_type" not in settings:
        raise ValueError(
            "config.json lacks 'model_type', so it is of no checkpoint of Hugging Face or of save: "
            "a trained run is loaded by experiments.load_run(folder)"
        )
    one_of("model_type in config.json", settings["model_type"], tuple(FAMILIES))
    return FAMILIES[settings["model_type"]]


def _abstract(family: Family, settings: Settings, options: Mapping[str, Any]) -> nnx.Module:
    """Return the model of a config.json with shapes for arrays."""
    try:
        config = replace(family.config(settings), **options)
        return nnx.eval_shape(lambda: family.build(settings, config, nnx.Rngs(0)))
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"config.json describes no {settings['model_type']} model: {error}"
        ) from error


def _problems(
    parts: Mapping[str, Sequence[Part]], tensors: dict[str, Tensor], family: Family, user: str
) -> Iterator[str]:
    """Yield what is wrong with tensors: missing, of another shape or dtype, or unexpected.

    Those of which there is only a copy are added. The `user` is "model=" or the model that is made.
    """
    for copy, original in family.copies.items():
        if copy not in tensors or copy in parts or original not in parts:
            continue
        if original not in tensors:
            tensors[original] = tensors[copy]
        elif not family.is_ignored(copy) and not _are_equal(tensors[copy], tensors[original]):
            yield f"contains different tensors {original!r} and {copy!r}, which {user} ties"
    for name, (*_, last) in parts.items():
        is_float = jnp.issubdtype(last.array.dtype, jnp.floating)
        if name not in tensors:
            if last.rule.default is None:
                yield f"lacks the tensor {name!r}, which {user} needs"
        elif (shape := tensors[name].shape) != last.end:
            yield f"contains {name!r} with shape {shape}, and {user} needs {last.end}"
        elif is_float and (dtype := tensors[name].dtype) not in ("F64", "F32", "F16", "BF16"):
            yield f"contains {name!r} with dtype {dtype}: quantized checkpoints are not supported"
    for name in tensors:
        if not (name in parts or family.copies.get(name) in parts or family.is_ignored(name)):
            yield f"contains the tensor {name!r}, which {user} does not use"


def _are_equal(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and np.array_equal(left.read(), right.read())


def _filled(
    model: nnx.Module,
    parts: Mapping[str, Sequence[Part]],
    tensors: Mapping[str, Tensor],
    param_dtype: DTypeLike | None,
) -> nnx.Module:
    """Return a model with the arrays of a checkpoint, the largest of which are read first."""
    definition, state = nnx.split(model)
    flat = dict(nnx.to_flat_state(state))
    layers: dict[tuple[Any, ...], list[Part]] = {}
    for part in (part for each in parts.values() for part in each):
        layers.setdefault(part.key, []).append(part)
    for key in flat.keys() - layers.keys():
        if isinstance(flat[key].get_value(), jax.ShapeDtypeStruct):
            raise ValueError(
                f"the random state {'.'.join(map(str, key))} is in no checkpoint: pass a model= "
                "with arrays, not one of nnx.eval_shape"
            )
    for key in sorted(layers, key=lambda key: -layers[key][0].array.size):
        value = _read(layers[key], tensors, param_dtype)
        flat[key] = flat[key].replace(value) if isinstance(flat[key], nnx.Variable) else value
    return nnx.merge(definition, nnx.from_flat_state(flat))


def _read(
    layers: Sequence[Part], tensors: Mapping[str, Tensor], param_dtype: DTypeLike | None
) -> jax.Array:
    """Return an array with the parameters of layers; waits until their tensors can be freed."""
    stacked = None
    for part in layers:
        if part.tensor in tensors:
            value = part.rule.layout.read(tensors[part.tensor].read(part.slices))
        else:
            value = np.full(part.shape, part.rule.default, part.array.dtype)
        if param_dtype is not None and jnp.issubdtype(value.dtype, jnp.floating):
            value = value.astype(param_dtype, copy=False)
        if part.index is None:
            stacked = value.reshape(part.shape)
        else:
            stacked = np.empty(part.array.shape, value.dtype) if stacked is None else stacked
            stacked = stacked.astype(np.promote_types(stacked.dtype, value.dtype), copy=False)
            stacked[part.index] = value.reshape(part.shape)
    return jax.device_put(stacked).block_until_ready()


def _check_model(model: nnx.Module, made: nnx.Module, kind: str, ignored: Sequence[str]) -> None:
    """Raise a ValueError if a model differs from the abstract one that a config made.

    Static attributes whose name is `ignored` and the stacking of layers may differ.
    """
    own, others = map(_attributes, (model, made))
    for path in sorted(own | others, key=lambda path: (not path.endswith(".class"), path)):
        left, right = own.get(path), others.get(path)
        if left != right and path.rpartition(".")[2] not in ignored:
            raise ValueError(
                f"{path} of the model is {_name(left)}, and the {kind} config makes {_name(right)}"
            )


def _attributes(model: nnx.Module) -> dict[str, Any]:
    """Return classes, shapes of arrays and static attributes of all modules, by path."""
    attributes = {}
    for key, part in nnx.iter_modules(nnx.eval_shape(unstack_layers, model)):
        path = ".".join(str(name) for name in key if name != "blocks")
        attributes[f"{path}.class"] = type(part)
        for name, value in {} if isinstance(part, Layers | nnx.List) else vars(part).items():
            leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, nnx.Module))
            if name.startswith("_") or name in ("config", "source", "deterministic"):
                continue
            if name in DTYPES:
                attributes[f"{path}.{name}"] = None if value is None else np.dtype(value).name
            elif shapes := [leaf.shape for leaf in leaves if hasattr(leaf, "shape")]:
                attributes[f"{path}.{name}.shape"] = shapes[0] if len(shapes) == 1 else shapes
            elif not any(isinstance(leaf, nnx.Module) for leaf in leaves):
                attributes[f"{path}.{name}"] = value
    return attributes


def _name(value: object) -> str:
    return getattr(value, "__name__", repr(value))
