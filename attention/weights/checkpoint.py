"""Load a model from a folder, and save it in the same layout."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from attention.modules import TransformerConfig
from attention.modules.transformer import Layers, unstack_layers
from attention.primitives.choice import one_of
from attention.weights.bart import BART, MARIAN
from attention.weights.bert import BERT
from attention.weights.files import Tensor, list_tensors, read_json, write_checkpoint
from attention.weights.gpt2 import GPT2
from attention.weights.llama import LLAMA
from attention.weights.own import DTYPES, MODEL_TYPE, OWN, describe
from attention.weights.rules import Family, Parameter, Rule, Settings, fill, parameters_of
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


@dataclass(frozen=True)
class Source:
    """Where a loaded model is from: the attribute `source` of the model.

    Attributes:
        text: content of config.json.
    """

    text: str

    @property
    def settings(self) -> Settings:
        """Fields of config.json, such as `eos_token_id` and `decoder_start_token_id`."""
        return Settings(json.loads(self.text))


@dataclass(frozen=True)
class _Place:
    """A parameter, its rule, and the name of the tensor of each of its layers."""

    parameter: Parameter
    rule: Rule
    names: tuple[str, ...]


def load(
    folder: str | os.PathLike[str],
    *,
    model: nnx.Module | None = None,
    param_dtype: DTypeLike | None = None,
    **options: Any,  # noqa: ANN401 - values of fields
) -> nnx.Module:
    """Return the model of a checkpoint.

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

    Returns:
        A model with attribute `source`, for `save`.

    Raises:
        FileNotFoundError: no folder, no config.json or no tensors. Nothing is downloaded.
        ValueError: another architecture; a tensor that is missing, unexpected or has another shape;
            an option that is not a field.
    """
    if model is not None and options:
        raise ValueError(f"model= is used as it is: it takes no {', '.join(options)}")
    for name in options:
        one_of("options of load", name, tuple(each.name for each in fields(TransformerConfig)))
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not a folder: load needs one with config.json and model.safetensors, as "
            f"downloaded from Hugging Face, of one of the families {', '.join(FAMILIES)}"
        )
    settings = Settings(read_json(folder / "config.json"))
    family = _family(settings)
    if param_dtype is not None:
        options |= {"param_dtype": param_dtype}
    abstract = _abstract(family, settings, options) if model is None else model
    parameters = parameters_of(abstract)
    tensors = list_tensors(folder, family.rename)
    places = _places(parameters, family, settings)
    _check(places, tensors, family, settings["model_type"], "config" if model is None else "model")
    values = {}
    for place in sorted(places, key=lambda place: -place.parameter.value.size):
        values[place.parameter.key] = _read(place, tensors, param_dtype)
    loaded = fill(abstract, values)
    loaded.source = Source(json.dumps(settings))
    return loaded


def save(
    model: nnx.Module,
    folder: str | os.PathLike[str],
    *,
    config: Mapping[str, Any] | TransformerConfig | None = None,
    max_bytes: int = 5 * 10**9,
) -> None:
    """Save a model: config.json and safetensors.

    A model that was loaded is saved in the layout it had. Any other model is saved with the names
    of its parameters as those of the tensors, or in the layout of `config`.

    Args:
        model: to save.
        folder: is made if it does not exist.
        config: the config of `from_config`, so that `load` can make the model again; or the content
            of a config.json with a `model_type` in `FAMILIES`, for its layout.
        max_bytes: of one file.

    Raises:
        ValueError: a model that differs from the one that the config makes, and `load` with it: in
            its parameters, or in other attributes, such as an activation. Attributes that options
            of `load` may change, such as `dropout`, are compared with a `TransformerConfig` only.
    """
    if isinstance(config, Mapping):
        settings = Settings(config)
    elif config is None and hasattr(model, "source"):
        settings = model.source.settings
    else:
        settings = Settings(describe(model, config))
    family = _family(settings)
    parameters = parameters_of(model)
    if family is not OWN or "config" in settings:
        ignored = () if isinstance(config, TransformerConfig) else OPTIONS_OF_LOAD
        kind = settings["model_type"]
        check_model(model, _abstract(family, settings, {}), kind, ignored=ignored)
    parts: dict[str, list[tuple[Rule, Parameter, int]]] = {}
    for place in _places(parameters, family, settings):
        for index, name in enumerate(place.names):
            parts.setdefault(name, []).append((place.rule, place.parameter, index))

    def tensor(name: str) -> np.ndarray:
        ordered = sorted(parts[name], key=lambda part: part[0].start)
        written = [
            rule.layout.write(parameter.of_layer(index)) for rule, parameter, index in ordered
        ]
        axis = ordered[0][0].axis
        return written[0] if axis is None else np.concatenate(written, axis=axis)

    sizes = {
        name: sum(
            parameter.value.nbytes // len(parameter.layers) for _, parameter, _ in parts[name]
        )
        for name in sorted(parts)
    }
    dtype = max((parameter.value for parameter in parameters), key=lambda value: value.size).dtype
    settings |= {name: dtype.name for name in DTYPE_FIELDS if name in settings}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    write_checkpoint(folder, text, sizes, tensor, max_bytes)


def _family(settings: Settings) -> Family:
    one_of("model_type in config.json", settings["model_type"], tuple(FAMILIES))
    return FAMILIES[settings["model_type"]]


def _abstract(family: Family, settings: Settings, options: Mapping[str, Any]) -> nnx.Module:
    config = replace(family.config(settings), **options)
    return nnx.eval_shape(lambda: family.build(settings, config, nnx.Rngs(0)))


def _places(parameters: Sequence[Parameter], family: Family, settings: Settings) -> list[_Place]:
    """Return the tensors of each parameter.

    Raises:
        ValueError: a parameter without a rule.
    """
    rules = {}
    if family.rules is not None:
        rules = {rule.parameter: rule for rule in family.rules(settings)}
    places = []
    for parameter in parameters:
        rule = rules.get(parameter.path)
        if family.rules is None:
            rule = Rule(parameter.path, parameter.path)
        if rule is None:
            kind = settings["model_type"]
            path = parameter.path.replace("{i}", str(parameter.layers[0]))
            raise ValueError(
                f"the model has the parameter {path!r}, for which a {kind} checkpoint has no tensor"
            )
        names = tuple(rule.tensor.replace("{i}", str(layer)) for layer in parameter.layers)
        places.append(_Place(parameter, rule, names))
    return places


def _check(
    places: Sequence[_Place], tensors: Mapping[str, Tensor], family: Family, kind: str, origin: str
) -> None:
    """Raise a ValueError for a tensor that is missing, unexpected or has another shape.

    Args:
        places: tensors of the parameters.
        tensors: of the checkpoint.
        family: of the checkpoint.
        kind: its name.
        origin: of the parameters, the word "config" or "model".
    """
    expected = {name: place for place in places for name in place.names}
    required = [name for name, place in expected.items() if place.rule.default is None]
    missing = sorted(name for name in required if name not in tensors)
    if missing:
        given = "" if origin == "config" else ", which the model= needs"
        raise ValueError(f"the {kind} checkpoint lacks the tensor {_first(missing)}{given}")
    unexpected = [name for name in tensors if name not in expected and not family.is_ignored(name)]
    if unexpected:
        owner = "a model with this config" if origin == "config" else "the model="
        raise ValueError(
            f"the {kind} checkpoint contains the tensor {_first(unexpected)}, "
            f"which {owner} does not have"
        )
    for name, place in expected.items():
        needed = place.rule.tensor_shape(place.parameter.shape)
        if name in tensors and tensors[name].shape != needed:
            raise ValueError(
                f"the tensor {name!r} of the {kind} checkpoint has shape {tensors[name].shape}, "
                f"and the {origin} needs {needed}"
            )


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"


def _read(place: _Place, tensors: Mapping[str, Tensor], param_dtype: DTypeLike | None) -> jax.Array:
    """Return an array of the model; wait for the copy, so that the tensors can be freed."""
    rule, parameter = place.rule, place.parameter
    slices = rule.slices(parameter.shape)
    stacked = None
    for index, name in enumerate(place.names):
        if name in tensors:
            value = rule.layout.read(tensors[name].read(slices)).reshape(parameter.shape)
        else:
            value = np.full(parameter.shape, rule.default, parameter.value.dtype)
        is_float = jnp.issubdtype(value.dtype, jnp.floating)
        kind = value.dtype if param_dtype is None or not is_float else param_dtype
        if not parameter.is_stacked:
            return jax.device_put(value.astype(kind, copy=False)).block_until_ready()
        if stacked is None:
            stacked = np.empty((len(place.names), *parameter.shape), kind)
        stacked[index] = value
    return jax.device_put(stacked).block_until_ready()


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
            if is_static and not name.startswith("_") and name != "source":
                found[".".join([*path, name])] = value
    return found


def _name(value: object) -> str:
    return getattr(value, "__name__", repr(value))
