"""Our translation model in CTranslate2, with our parameters."""

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from attention.modules import EncoderDecoder, TransformerConfig, unstack_layers
from attention.primitives.positions import sinusoidal
from experiments.data.tokenizers import BOS, EOS
from experiments.errors import UsageError
from experiments.processes import num_cores

if TYPE_CHECKING:  # optional package
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import LayerNormSpec

TOKENS = 512  # of a batch: the fastest for a trained run on two cores, of 256 to 1,024
Arrays = dict[str, Any]  # nested dictionaries of the parameters of a layer


class CTranslator:
    """A `ctranslate2.Translator` in float32, with one worker per core, as its guide recommends."""

    def __init__(self, model: EncoderDecoder, config: TransformerConfig) -> None:
        """Convert a model with its config; its tokens are ids in decimal digits.

        Raises:
            ModuleNotFoundError: ctranslate2 is not installed.
            UsageError: a model that it has not.
        """
        import ctranslate2

        kinds = config.norm_placement, config.positions, config.norm
        if kinds != ("post", "sinusoidal", "layer"):
            raise UsageError("CTranslate2 needs norm_placement=post and positions=sinusoidal")
        arrays = nnx.to_pure_dict(nnx.state(unstack_layers(model)))
        spec = _make_spec(config, jax.tree.map(np.asarray, arrays))
        spec.validate()
        spec.optimize()
        with TemporaryDirectory() as folder:
            spec.save(folder)
            self._translator = ctranslate2.Translator(
                folder, compute_type="float32", inter_threads=num_cores(), intra_threads=1
            )
        self._longest = config.max_length

    def translate(self, sources: Sequence[Sequence[int]], decoding: Any) -> list[list[int]]:  # noqa: ANN401 - a part of the config
        """Return the ids of the best translation of each source, with its end token."""
        outputs = self._translator.translate_batch(
            [[str(number) for number in ids] for ids in sources],
            beam_size=decoding.num_beams,
            length_penalty=decoding.length_penalty,
            max_batch_size=TOKENS,
            batch_type="tokens",
            max_decoding_length=self._longest,
            return_end_token=True,
        )
        return [[int(token) for token in output.hypotheses[0]] for output in outputs]


def _make_spec(config: TransformerConfig, arrays: Arrays) -> "TransformerSpec":
    from ctranslate2.specs import TransformerSpec

    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers), config.num_heads, pre_norm=False
    )
    target = arrays["target_embedding"]["tokens"]
    source = arrays.get("source_embedding", {}).get("tokens", target)
    spec.register_source_vocabulary([str(number) for number in range(len(source))])
    spec.register_target_vocabulary([str(number) for number in range(len(target))])
    spec.config.bos_token = spec.config.decoder_start_token = str(BOS)
    spec.config.eos_token, spec.config.unk_token = str(EOS), str(EOS + 1)
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.encoder.embeddings[0].weight = source
    spec.decoder.embeddings.weight = spec.decoder.projection.weight = target
    positions = np.asarray(sinusoidal(np.arange(config.max_length), config.width))
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        stack.position_encodings.encodings = positions
        blocks = arrays[side]["layers"]["blocks"]
        for layer, index in zip(stack.layer, sorted(blocks), strict=True):
            own = blocks[index]
            _fill_attention(layer.self_attention, own["self_attention"], is_self=True)
            if "cross_attention" in own:
                _fill_attention(layer.attention, own["cross_attention"], is_self=False)
            for linear, name in ((layer.ffn.linear_0, "up"), (layer.ffn.linear_1, "down")):
                linear.weight, linear.bias = _matrix(own["feed_forward"]["sublayer"][name])
            _fill_norm(layer.ffn.layer_norm, own["feed_forward"]["norm"])
    return spec


def _fill_attention(spec: Any, layer: Arrays, *, is_self: bool) -> None:  # noqa: ANN401 - its class is made anew by ctranslate2
    """Set projections of attention: one of all three, or that of queries and of keys and values."""
    own = [_matrix(layer["sublayer"][name]) for name in ("query", "key", "value")]
    groups = [own] if is_self else [own[:1], own[1:]]
    groups.append([_matrix(layer["sublayer"]["output"])])
    for linear, matrices in zip(spec.linear, groups, strict=True):
        linear.weight, linear.bias = (np.concatenate(each) for each in zip(*matrices, strict=True))
    _fill_norm(spec.layer_norm, layer["norm"])


def _fill_norm(spec: "LayerNormSpec", layer: Arrays) -> None:
    spec.gamma, spec.beta = layer["scale"], layer["bias"]


def _matrix(layer: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel `[out, in]` and the bias `[out]` of a layer, heads side by side."""
    kernel, bias = layer["kernel"], layer["bias"]
    return kernel.reshape(-1, bias.size).T, bias.ravel()
