"""What all models have in common: arguments, training mode, and the printing of nnx."""

import copy
import functools
import pickle

import jax
import numpy as np
import pytest
from flax import nnx

from attention import attend, masks
from attention.modules import LanguageModel, TransformerConfig, layer_norm
from attention.modules.models import source_padding
from tests.attention.modules.inputs import (
    assert_close,
    call,
    classifier,
    language_model,
    masked_language_model,
    small_translator,
    tokens,
)
from tests.attention.primitives.inputs import jitted

B, T, V = 2, 4, 17
TOKENS, LENGTHS = tokens(B, T), (4, 2)
VALID = np.arange(T) < np.array(LENGTHS)[:, None]
MAKE = {
    "language": language_model,
    "masked language": masked_language_model,
    "translation": small_translator,
    "classification": classifier,
}
every_model = pytest.mark.parametrize("kind", MAKE)


def made(kind, **changes):
    """Return a model with one layer per stack, and its inputs."""
    model = MAKE[kind](encoder_layers=1, decoder_layers=1, **changes)
    return model, (TOKENS, TOKENS) if kind == "translation" else (TOKENS,)


@every_model
def test_nnx_prints_a_model_and_makes_another(kind, capsys):
    model, inputs = made(kind, per_layer=[{"hidden": 5}])
    tables = []
    jax.eval_shape(lambda model: tables.append(nnx.tabulate(model, *inputs)), model)
    assert "SelfAttention" in tables[0]
    nnx.display(model)
    assert "query=LinearGeneral" in capsys.readouterr().out
    config = TransformerConfig(width=8, num_heads=2)
    jax.eval_shape(lambda: LanguageModel(config, vocab_size=V, rngs=nnx.Rngs(0)))


def test_a_layer_replaces_that_of_the_config():
    make = functools.partial(LanguageModel, TransformerConfig(decoder_layers=1), vocab_size=V)
    other = jax.jit(lambda: make(rngs=nnx.Rngs(0)))()
    mixed = make(rngs=nnx.Rngs(1), decoder=other.decoder)
    assert (mixed.decoder, mixed.config) == (other.decoder, None)
    model = LanguageModel(embedding=other.embedding, decoder=other.decoder)
    assert_close(call(model, TOKENS).logits, call(other, TOKENS).logits)
    with pytest.raises(ValueError, match="vocab_size must be an integer, got None"):
        make(vocab_size=None, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"rngs must be an nnx\.Rngs, got int"):
        make(rngs=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'ouput'"):
        LanguageModel(embedding=other.embedding, decoder=other.decoder, ouput=None)
    with pytest.raises(TypeError, match="LanguageModel needs a config, or embedding and decoder"):
        LanguageModel(vocab_size=V)


def test_a_model_keeps_its_config():
    """Overrides are dicts; copies of most functions of jax are others, and cannot be pickled."""

    def make(**options):
        config = TransformerConfig(decoder_layers=1, per_layer=[{"hidden": 5}])
        return LanguageModel.from_config(config, vocab_size=V, rngs=nnx.Rngs(0), **options)

    model = jax.jit(make)()
    definition, state = nnx.split(model)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), nnx.eval_shape(make)]
    for each in (*copies, nnx.merge(definition, state), jax.jit(lambda model: model)(model)):
        assert each.config.per_layer == ({"hidden": 5},)
        assert nnx.graphdef(each) == definition
    mine = functools.partial(make, make_layer=lambda index, rngs: layer_norm(128, rngs=rngs))
    assert jax.eval_shape(mine).config is None  # which alone does not describe the model


@every_model
def test_training_mode_with_dropout_needs_a_key(kind):
    model, inputs = made(kind, attention_dropout=0.5)
    run = lambda **options: jax.eval_shape(lambda: model(*inputs, **options))  # noqa: E731 - short
    run()  # a new model is in neither mode
    model.train()
    with pytest.raises(ValueError, match=r"Attention has dropout=0.5: pass rng=.*model.eval\(\)"):
        run()
    run(rng=jax.random.key(0))
    model.eval()
    run()


@every_model
def test_tuples_and_numpy_arrays(kind):
    """A padding array of a source reaches cross-attention too."""
    model, inputs = made(kind)
    prefix = "source_" if kind == "translation" else ""
    padded = [np.where(VALID, inputs[0], V), *inputs[1:]]  # out of range: the vector is NaN
    score = jitted(lambda model, inputs, **given: model(*inputs, **given).logits)
    expected = score(model, padded, **{f"{prefix}lengths": np.array(LENGTHS)})
    by_tuple = jitted(lambda model: model(*padded, **{f"{prefix}lengths": LENGTHS}).logits)(model)
    np.testing.assert_array_equal(by_tuple, expected)
    if kind != "classification":  # a mean over all tokens
        by_mask = score(model, padded, **{f"{prefix}mask": VALID[:, None, None, :]})
        rows = np.s_[:] if kind == "translation" else VALID
        assert np.isfinite(expected[rows]).all()
        assert_close(by_mask[rows], expected[rows])


@every_model
def test_attend_of_a_user(kind):
    calls = []

    def recorded(*arrays, **options):
        calls.append(options["implementation"])
        return attend(*arrays, **options)

    model, inputs = made(kind)
    jax.eval_shape(lambda: model(*inputs, attend=recorded))
    assert len(calls) == (3 if kind == "translation" else 1)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("language", "attention_mask", "; did you mean 'mask'[?]"),
        ("translation", "attenb", "; did you mean 'attend'[?]"),
        *((kind, "labels", "") for kind in MAKE),
    ],
)
def test_unknown_arguments(kind, name, words):
    model, inputs = made(kind)
    with pytest.raises(TypeError, match=rf"no (argument )?'{name}'{words}$"):
        model(*inputs, **{name: None})


def test_lengths_above_the_number_of_tokens():
    with pytest.raises(ValueError, match=r"lengths must lie in 0 to 4 tokens, got .*5 2"):
        masked_language_model()(TOKENS, lengths=np.array([5, 2]))


def test_padding_of_a_source():
    """The mask of a source excludes its padding from cross-attention."""
    lengths = masks.lengths(LENGTHS)
    rows = VALID[:, None, None, :]
    own = masks.window(2, 2) & masks.lengths(LENGTHS, query_lengths=LENGTHS) & masks.block(2)
    for mask in (lengths, own, rows, masks.causal() & rows):
        found = np.squeeze(masks.to_array(source_padding(mask, None), 3, T))
        np.testing.assert_array_equal(found, np.broadcast_to(VALID[:, None], (B, 3, T)))
    for mask in (None, masks.causal(), masks.window(1, 1) & masks.full()):
        assert source_padding(mask, None) is None
    model, inputs = made("translation")
    run = lambda **given: jax.eval_shape(lambda: model(*inputs, **given))  # noqa: E731 - short
    for mask in (masks.segments([1, 1, 2, 2]), ~lengths, lengths | masks.causal(), np.tri(T) > 0):
        with pytest.raises(ValueError, match="source_mask does not determine the padding"):
            run(source_mask=mask)
        run(source_mask=mask, encoder_mask=masks.full())
        run(source_mask=mask, source_lengths=LENGTHS)


def test_mask_and_lengths_of_a_source_both_hide_padding():
    model, inputs = made("translation")
    hidden = np.arange(T)[None, None, None] != 1
    both = {"source_mask": hidden, "source_lengths": LENGTHS}
    expected = call(model, *inputs, **both, encoder_mask=hidden)
    assert_close(call(model, *inputs, **both).logits, expected.logits)


def score(model, given, **fields):
    return call(model, given, **fields).logits


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_packed_texts_are_scored_like_separate_ones(positions):
    model, _ = made("language", positions=positions)
    given = {"mask": masks.segments([1, 1, 2, 2]), "embedding_positions": np.array([0, 1, 0, 1])}
    packed = score(model, TOKENS, **given)
    for part in (np.s_[:, :2], np.s_[:, 2:]):
        assert_close(packed[part], score(model, TOKENS[part]))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi"])
def test_positions_are_those_of_every_encoding(positions):
    model, _ = made("language", positions=positions)
    stretched = score(model, TOKENS, positions=3 * np.arange(T))
    assert np.abs(stretched - score(model, TOKENS)).max() > 1e-3
