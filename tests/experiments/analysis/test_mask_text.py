import jax
import pytest
from flax import nnx

from attention import masks
from attention.modules import EncoderDecoder, LanguageModel, TransformerConfig
from experiments.analysis.mask_text import drawn, masks_of

CAUSAL = """\
■ · ·
■ ■ ·
■ ■ ■"""


def abstract(kind, **choices):
    vocabularies = {"vocab_size": 9}
    if kind is EncoderDecoder:
        vocabularies = {"source_vocab_size": 9, "target_vocab_size": 9}
    config = TransformerConfig(width=8, num_heads=2, hidden=8, max_length=8, **choices)
    return jax.eval_shape(lambda: kind.from_config(config, **vocabularies, rngs=nnx.Rngs(0)))


def test_any_expression():
    assert drawn(masks.causal(), 3) == CAUSAL
    assert drawn(masks.causal() & ~masks.window(0, 0), 3) == "· · ·\n■ · ·\n■ ■ ·"


@pytest.mark.parametrize("decoder_layers", [4, 5])
def test_masks_of_local_and_global_layers(decoder_layers):
    model = abstract(LanguageModel, decoder_layers=decoder_layers, per_layer=({"window": 1}, {}))
    local, whole = masks_of(model, 3).split("\n\n")
    numbers = "1, 3, 5" if decoder_layers == 5 else "1, 3"
    assert local == f"decoder self-attention, layers {numbers}; rows: queries\n" + CAUSAL.replace(
        "■ ■ ■", "· ■ ■"
    )
    assert whole == f"decoder self-attention, layers 2, 4; rows: queries\n{CAUSAL}"


def test_masks_of_both_stacks():
    encoder, decoder = masks_of(abstract(EncoderDecoder), 3).split("\n\n")
    assert encoder.split("\n")[1:] == ["■ ■ ■"] * 3
    assert decoder.endswith(CAUSAL)
