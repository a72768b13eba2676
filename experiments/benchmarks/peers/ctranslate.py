"""Our translation model in CTranslate2, with our parameters."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from attention.primitives.positions import sinusoidal
from experiments.benchmarks.peers.torch_transformer import torch_weights
from experiments.data.vocabulary import BOS, EOS
from experiments.devices import num_cores

if TYPE_CHECKING:  # optional package
    from ctranslate2 import Translator
    from ctranslate2.specs import LayerSpec, TransformerSpec
    from ctranslate2.specs.common_spec import LinearSpec


def make_ctranslator(config: ConfigDict, parameters: nnx.State, directory: Path) -> "Translator":
    """Return a float32 `ctranslate2.Translator` with one worker per core.

    Its documentation recommends one worker per core. Its tokens are ids in decimal digits.

    Args:
        config: of the model, as in `configs/multi30k.py`.
        parameters: of our model.
        directory: for the files of the converted model.

    Raises:
        ModuleNotFoundError: ctranslate2 is not installed.
    """
    import ctranslate2

    spec = _make_spec(config, dict(torch_weights(parameters)))
    spec.validate()
    spec.optimize()
    spec.save(str(directory))
    return ctranslate2.Translator(
        str(directory), compute_type="float32", inter_threads=num_cores(), intra_threads=1
    )


def token_names(ids: Sequence[int]) -> list[str]:
    """Return the tokens of this model for ids."""
    return [str(number) for number in ids]


def _make_spec(config: ConfigDict, weights: dict[str, np.ndarray]) -> "TransformerSpec":
    from ctranslate2.specs import TransformerSpec

    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers), config.num_heads, pre_norm=False
    )
    table = weights["tokens.weight"]
    tokens = token_names(range(len(table)))
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = spec.config.decoder_start_token = str(BOS)
    spec.config.eos_token, spec.config.unk_token = str(EOS), str(EOS + 1)
    spec.config.layer_norm_epsilon = 1e-6
    spec.encoder.embeddings[0].weight = table
    spec.decoder.embeddings.weight = spec.decoder.projection.weight = table
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        stack.position_encodings.encodings = np.asarray(
            sinusoidal(np.arange(config.max_length), config.width)
        )
        for number, layer in enumerate(stack.layer):
            _fill(layer, f"transformer.{side}.layers.{number}", weights)
    return spec


def _fill(layer: "LayerSpec", name: str, weights: dict[str, np.ndarray]) -> None:
    """Set the parameters of a layer from those of a layer of `nn.Transformer`."""

    def set_linear(linear: "LinearSpec", weight: str, bias: str, rows: slice = slice(None)) -> None:
        linear.weight, linear.bias = (weights[f"{name}.{each}"][rows] for each in (weight, bias))

    width = len(weights[f"{name}.norm1.weight"])
    attentions, norms = (
        [(layer.self_attention, "self_attn", (slice(None),))],
        [layer.self_attention],
    )
    if hasattr(layer, "attention"):
        parts = slice(width), slice(width, None)  # queries; keys and values
        attentions.append((layer.attention, "multihead_attn", parts))
        norms.append(layer.attention)
    for attention, theirs, parts in attentions:
        for linear, rows in zip(attention.linear, parts, strict=False):
            set_linear(linear, f"{theirs}.in_proj_weight", f"{theirs}.in_proj_bias", rows)
        set_linear(attention.linear[-1], f"{theirs}.out_proj.weight", f"{theirs}.out_proj.bias")
    for linear, theirs in ((layer.ffn.linear_0, "linear1"), (layer.ffn.linear_1, "linear2")):
        set_linear(linear, f"{theirs}.weight", f"{theirs}.bias")
    for place, part in enumerate((*norms, layer.ffn), start=1):
        part.layer_norm.gamma = weights[f"{name}.norm{place}.weight"]
        part.layer_norm.beta = weights[f"{name}.norm{place}.bias"]
