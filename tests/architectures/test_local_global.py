"""Alternating local and global attention, two rotary bases, softcaps, four norms (Gemma 2, 3)."""

import jax
from flax import nnx

from attention import modules
from tests.architectures.helpers import VOCAB, check_decoding, counting, next_token_loss, train

WIDTH, WINDOW = 16, 3


def make_layer(index, rngs):
    is_global = index % 2 == 1
    attention = modules.SelfAttention(
        WIDTH,
        num_heads=4,
        num_kv_heads=2,
        use_bias=False,
        qk_norm="rms",
        softcap=50.0,
        rotary=modules.Rotary(base=1e6 if is_global else 1e4),
        window=None if is_global else WINDOW - 1,
        rngs=rngs,
    )
    gelu = {"activation": "gelu", "gated": True}
    feed_forward = modules.FeedForward(WIDTH, 2 * WIDTH, **gelu, use_bias=False, rngs=rngs)

    def residual(sublayer):
        norm, output_norm = (modules.rms_norm(WIDTH, rngs=rngs) for _ in range(2))
        return modules.Residual(norm, sublayer, output_norm=output_norm)

    return modules.Block(self_attention=residual(attention), feed_forward=residual(feed_forward))


def make_model(rngs, num_layers=2):
    layers = modules.Layers(make_layer, num_layers, rngs=rngs)
    decoder = modules.Decoder(layers, norm=modules.rms_norm(WIDTH, rngs=rngs))
    return modules.LanguageModel(
        modules.Embedding(VOCAB, WIDTH, logit_softcap=30.0, rngs=rngs), decoder
    )


def test_learns_and_decodes():
    tokens = counting()
    model = train(make_model, next_token_loss, tokens)
    check_decoding(model, tokens)


def test_local_layers_cache_one_window():
    cache = jax.eval_shape(lambda: make_model(nnx.Rngs(0), 4).new_cache((1,), 12))
    assert [layer["self_attention"].size for layer in cache.layers] == [WINDOW, 12, WINDOW, 12]


def test_layers_are_scanned_in_pairs():
    model = jax.eval_shape(lambda: make_model(nnx.Rngs(0), 4))
    assert model.decoder.layers.period == 2
