"""A model as JSON, for the JavaScript of the page."""

import base64
from collections.abc import Callable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from attention.modules import (
    EncoderDecoder,
    LanguageModel,
    MaskedLanguageModel,
    RecurrentEncoderDecoder,
)
from attention.modules.attention import CrossAttention, SelfAttention
from attention.modules.embeddings import Embedding
from attention.modules.layers import ACTIVATIONS, FeedForward, Norm
from attention.modules.positions import AlibiScores, LearnedPositions, Rotary
from attention.modules.transformer import Block, Decoder, Encoder, Layers, Residual
from attention.primitives.positions import sinusoidal
from attention.primitives.scores import alibi_slopes
from experiments.config.parts import TextPart
from experiments.data.subwords import SubwordTokenizer
from experiments.data.tokenizers import (
    BOS,
    EOS,
    SPACED,
    SPECIALS,
    WORDS,
    CharacterTokenizer,
    Tokenizer,
    WordTokenizer,
)
from experiments.learner import TrainState

if TYPE_CHECKING:
    from experiments.tasks.task import Task

TASKS = "translation", "language_model", "masked_language_model"  # that the page runs
MOST_PARAMETERS = 4_000_000
GAP = "_"
NUMBER, NUMBER_OR_NONE = (int, float), (int, float, NoneType)
LINEAR, LINEAR_OR_NONE = (nnx.LinearGeneral,), (nnx.LinearGeneral, NoneType)
NORM_OR_NONE = (Norm, NoneType)
TABLE, TABLE_OR_NONE = (nnx.Param,), (nnx.Param, NoneType)
FUNCTIONS = {name: ACTIVATIONS[name] for name in ("relu", "gelu", "gelu_exact", "silu", "tanh")}

_ATTENTION = {
    **dict.fromkeys(("query", "key", "value", "output"), LINEAR),
    **dict.fromkeys(("query_norm", "key_norm"), NORM_OR_NONE),
    **dict.fromkeys(("scale", "softcap"), NUMBER_OR_NONE),
    "score": (NoneType,),
}
_STACK = {"layers": (Layers,), "norm": NORM_OR_NONE, "score": (AlibiScores, NoneType)}

# Attributes that the page reads of each class, with their types; a dict contains what has a name.
READ: dict[type, dict[str, tuple[Any, ...]]] = {
    EncoderDecoder: {
        "source_embedding": (Embedding,),
        "encoder": (Encoder,),
        "target_embedding": (Embedding,),
        "decoder": (Decoder,),
        "output": LINEAR_OR_NONE,
    },
    LanguageModel: {"embedding": (Embedding,), "decoder": (Decoder,), "output": LINEAR_OR_NONE},
    MaskedLanguageModel: {
        "embedding": (Embedding,),
        "encoder": (Encoder,),
        "head": (NoneType,),
        "output": LINEAR_OR_NONE,
    },
    Embedding: {
        "tokens": TABLE_OR_NONE,
        **dict.fromkeys(("token_types", "norm", "bias"), (NoneType,)),
        "positions": ({"sinusoidal": sinusoidal}, LearnedPositions, NoneType),
        **dict.fromkeys(("scale", "logit_scale"), NUMBER),
        **dict.fromkeys(("max_length", "logit_softcap"), NUMBER_OR_NONE),
    },
    LearnedPositions: {"table": TABLE, "scale": NUMBER},
    Encoder: _STACK,
    Decoder: {**_STACK, "causal": (bool,)},
    Residual: {
        "norm": NORM_OR_NONE,
        "sublayer": (SelfAttention, CrossAttention, FeedForward),
        "output_norm": NORM_OR_NONE,
        "placement": (str,),
    },
    SelfAttention: {**_ATTENTION, "rotary": (Rotary, NoneType), "window": NUMBER_OR_NONE},
    CrossAttention: _ATTENTION,
    FeedForward: {"up": LINEAR, "gate": LINEAR_OR_NONE, "down": LINEAR, "activation": (FUNCTIONS,)},
    Norm: {"scale": TABLE, "bias": TABLE_OR_NONE, "epsilon": NUMBER},
    nnx.LinearGeneral: {"kernel": TABLE, "bias": TABLE_OR_NONE},
}
# Attributes that do not change what a model computes in float32, or that follow from others.
NOT_READ = {
    *("dropout", "implementation", "dtype", "param_dtype", "max_length", "width", "cross"),
    *("config", "deterministic"),
    *("in_features", "out_features", "axis", "batch_axis", "use_bias", "kernel_init", "bias_init"),
    *("dot_general", "dot_general_cls", "precision", "preferred_element_type", "promote_dtype"),
}


class NotInPageError(ValueError):
    """The page cannot run a model; the message is a sentence that gives the reason."""


def model_data(task: "Task", state: TrainState) -> dict[str, Any]:
    """Return a model and its tokens, for `loadModel` in `model.js`.

    The parameters are rounded to float16.

    Args:
        task: of the model.
        state: with its parameters.

    Raises:
        NotInPageError: a model that the page cannot run.
    """
    if task.config.task not in TASKS:
        raise NotInPageError(
            "the page runs models that translate, continue or complete a text, not those of "
            f"task={task.config.task}"
        )
    number = sum(leaf.size for leaf in jax.tree.leaves(state.parameters))
    if number > MOST_PARAMETERS:
        raise NotInPageError(
            f"the page runs models of at most {MOST_PARAMETERS:,} parameters, and this one has "
            f"{number:,}"
        )
    model = nnx.merge(task.learner.definition, state.parameters)
    if isinstance(model, RecurrentEncoderDecoder):
        raise NotInPageError("the page does not run recurrent models")
    tree = described(model, (EncoderDecoder, LanguageModel, MaskedLanguageModel), "the model")
    if count(tree) != number:
        raise NotInPageError(
            f"the page would read {count(tree):,} of the {number:,} parameters of this model"
        )
    decoding, sides = task.config.decoding, task.tokenizers
    is_alone, has_gaps = isinstance(model, LanguageModel), isinstance(model, MaskedLanguageModel)
    source = side_data(sides.source, task.config.text)
    if has_gaps:  # the last token of the model
        source |= {name: [*source[name], GAP] for name in ("labels", "pieces") if source[name]}
    return {
        **tree,
        "source": source,
        "target": side_data(sides.target, task.config.text) if sides.target else None,
        "begin": list(task.begin) if is_alone else [BOS],
        "end": None if is_alone and task.source.is_running else EOS,
        "num_beams": getattr(decoding, "num_beams", 1),
        "length_penalty": getattr(decoding, "length_penalty", 0),
    }


def described(value: Any, allowed: tuple[Any, ...], name: str) -> Any:  # noqa: ANN401 - any part
    """Return a part of a model as JSON values.

    Args:
        value: the part.
        allowed: its possible types; a dict contains values by their names, and the part is either.
        name: of the part, in the reason.

    Raises:
        NotInPageError: a part of another type, or with an attribute that the page does not read.
    """
    for known in (each for each in allowed if isinstance(each, dict)):
        for label, each in known.items():
            if value is each or value == label:
                return label
    if type(value) not in allowed:
        raise NotInPageError(f"the page does not know this value of {name}: {_shown(value)}")
    if isinstance(value, nnx.Variable):
        return as_float16(np.asarray(value[...]), name)
    if type(value) not in READ:
        return DESCRIBED.get(type(value), lambda given: given)(value)
    read = READ[type(value)]
    if others := {each for each in vars(value) if each[0] != "_"} - {*read} - NOT_READ:
        raise NotInPageError(f"the page does not read {', '.join(sorted(others))} of {name}")
    parts = {part: described(getattr(value, part), read[part], part) for part in read}
    return {"type": type(value).__name__, **parts}


def _layers(layers: Layers) -> list[dict[str, Any]]:
    blocks = layers.unstacked()
    if other := next((block for block in blocks if type(block) is not Block), None):
        raise NotInPageError(f"the page does not know this layer: {_shown(other)}")
    return [
        {name: described(getattr(block, name), (Residual,), name) for name in block.names}
        for block in blocks
    ]


def _rotary(rotary: Rotary) -> dict[str, float]:
    if rotary.scaling != "none":
        raise NotInPageError(f"the page does not scale rotary positions by {rotary.scaling!r}")
    return {"base": rotary.base}


def _slopes(scores: AlibiScores) -> dict[str, list[float]]:
    return {"slopes": np.asarray(alibi_slopes(scores.num_heads)).tolist()}


DESCRIBED: dict[type, Callable[[Any], Any]] = {
    Layers: _layers,
    Rotary: _rotary,
    AlibiScores: _slopes,
}


def as_float16(array: np.ndarray, name: str) -> dict[str, Any]:
    """Return an array as its shape and base64 of little-endian float16.

    Raises:
        NotInPageError: a number that float16 does not contain.
    """
    with np.errstate(over="ignore"):
        rounded = array.astype("<f2")
    if not np.isfinite(rounded).all():
        raise NotInPageError(f"a parameter of {name} is not finite in float16")
    return {"shape": [*array.shape], "float16": base64.b64encode(rounded.tobytes()).decode()}


def count(tree: Any) -> int:  # noqa: ANN401 - JSON
    """Return the number of parameters in a tree of JSON values."""
    if isinstance(tree, Mapping):
        if "float16" in tree:
            return int(np.prod(tree["shape"]))
        return sum(map(count, tree.values()))
    return sum(map(count, tree)) if isinstance(tree, list) else 0


def side_data(tokenizer: Tokenizer, text: TextPart | None) -> dict[str, Any]:
    """Return the tokens of a side, and how a text is read; `problem` if it cannot be.

    Args:
        tokenizer: of the side.
        text: how its subwords were learned.
    """
    labels = [tokenizer.token(number) for number in range(len(tokenizer))]
    side = {"labels": labels, "pieces": None, "special": len(SPECIALS), "problem": ""}
    if isinstance(tokenizer, CharacterTokenizer):
        return side | {"kind": "character", "special": 0}
    if isinstance(tokenizer, WordTokenizer) and tokenizer.tokens in (WORDS, SPACED):
        name = tokenizer.placeholder
        is_split = tokenizer.tokens == WORDS
        return side | {"kind": "word", "placeholder": name, "apostrophes": is_split}
    side["problem"] = "The page cannot split a text into the tokens of this model."
    if not isinstance(tokenizer, SubwordTokenizer):
        return side | {"kind": "word"}
    is_bpe = {"problem": ""} if text.kind == "bpe" else {}  # the order of ids is that of merges
    return side | {"kind": "subword", "pieces": tokenizer.pieces(), **is_bpe}


def _shown(value: Any) -> str:  # noqa: ANN401 - any part
    return value if isinstance(value, str) else type(value).__name__
