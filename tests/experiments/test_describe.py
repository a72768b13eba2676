"""Parameters are those published, and FLOPs of small models are those that XLA counts."""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import run
from attention.modules import EncoderDecoder, LanguageModel, MaskedLanguageModel, TransformerConfig
from configs import presets
from experiments.describe import (
    NOTE,
    abstract_model,
    compared,
    masks_of,
    parameters_by_part,
    token_costs,
)

REPOSITORY = Path(__file__).resolve().parents[2]
TRAINING = (REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8")

# One layer: XLA counts the body of a loop over layers once. N H differs from D.
SIZES = dict(
    width=132,
    num_heads=6,
    num_kv_heads=3,
    head_width=26,
    hidden=521,
    max_length=37,
    encoder_layers=1,
    decoder_layers=1,
    implementation="reference",
    remat=False,
)
TOKENS = jax.ShapeDtypeStruct((37,), jnp.int32)
CAUSAL = "■ · ·\n■ ■ ·\n■ ■ ■"


def abstract(kind, **choices):
    config, vocabularies = TransformerConfig(**SIZES | choices), {"vocab_size": 211}
    if kind is EncoderDecoder:
        vocabularies = dict(source_vocab_size=211, target_vocab_size=223)
    return jax.eval_shape(lambda: kind.from_config(config, **vocabularies, rngs=nnx.Rngs(0)))


def is_counted(flops, function, *arguments):
    """Whether XLA counts as much for each of 37 tokens, and little that is no matrix product."""
    counted = jax.jit(function).lower(*arguments).cost_analysis()["flops"] / 37
    return flops <= counted <= 1.03 * flops


@pytest.mark.parametrize(
    ("name", "difference"),
    [
        ("gpt2_small", 0),
        ("gpt3_175b", 0.004),
        ("llama3_8b", 0),
        ("bert_base", 0),
        ("transformer_base", 0.03),  # sizes of the paper make 63.1 million, not 65
    ],
)
def test_preset_has_the_published_number_of_parameters_and_allocates_none(name, difference):
    config, start = presets.get_config(name), time.process_time()
    model = abstract_model(config)
    number = sum(parameters_by_part(model).values())
    assert time.process_time() - start < 4  # at most 1 on one core
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(model))
    here = number + sum(config.published.absent.values())
    assert abs(here - config.published.parameters) <= difference * config.published.parameters


def test_parts_and_cache_have_the_sizes_of_the_papers():
    parts = parameters_by_part(abstract_model(presets.get_config("gpt3_175b")))
    assert parts == {
        "embedding tokens": 50_257 * 12_288,
        "embedding positions": 2048 * 12_288,
        "decoder self attention": 96 * (4 * 12_288 * 12_288 + 4 * 12_288),  # and biases
        "decoder feed forward": 96 * (2 * 4 * 12_288 * 12_288 + 5 * 12_288),
        "decoder norms": (96 * 2 + 1) * 2 * 12_288,  # and the last one
    }
    costs = token_costs(abstract_model(presets.get_config("llama3_8b")), 8192)
    assert costs["token"]["cache"] == 2 * 32 * 8 * 128 * 4  # keys and values, layers, K, H, float32


def test_cache_of_source_and_target():
    costs = token_costs(abstract(EncoderDecoder, encoder_layers=2, decoder_layers=3), 37)
    assert [cost["cache"] for cost in costs.values()] == [2 * 3 * 3 * 26 * 4] * 2
    assert token_costs(abstract(MaskedLanguageModel), 37)["token"]["cache"] == 0
    window = token_costs(abstract(LanguageModel, per_layer=({"window": 3},)), 37)["token"]
    assert window["cache"] == 2 * 3 * 26 * 4 * 4 // 37
    assert window["attention"] == 2 * 4 * 6 * (26 + 26)


@pytest.mark.parametrize(
    "choices",
    [
        dict(activation="silu", gated=True, positions="rotary", tie="none"),
        dict(positions="learned", qk_norm="rms", use_bias=False),
    ],
    ids=["output", "tied"],
)
def test_flops_of_a_decoder_are_what_xla_counts(choices):
    model = abstract(LanguageModel, **choices)
    cost = token_costs(model, 37)["token"]
    assert is_counted(cost["forward"], lambda m, tokens: m(tokens).logits, model, TOKENS)
    gradient = jax.grad(lambda m, tokens: jnp.sum(m(tokens).logits ** 2))
    assert is_counted(cost["training"], gradient, model, TOKENS)


def test_flops_of_a_translator_are_what_xla_counts_of_each_side():
    model = abstract(EncoderDecoder)
    source, target = token_costs(model, 37).values()

    def read(model, tokens):
        encoded = model.encode(tokens, mask=None).features
        return model.new_cache(tokens.shape[:-1], 37, encoder_output=encoded)

    def write(model, tokens, cache):
        output = model.decode(tokens, None, encoder_mask=None, cache=cache)
        return model.logits(output.features)

    cache = jax.eval_shape(read, model, TOKENS)
    assert is_counted(source["forward"], read, model, TOKENS)
    assert is_counted(target["forward"], write, model, TOKENS, cache)


def test_masks_of_layers_and_of_both_stacks():
    model = abstract(LanguageModel, decoder_layers=5, per_layer=({"window": 1}, {}))
    local, whole = masks_of(model, 3).split("\n\n")
    band = CAUSAL.replace("■ ■ ■", "· ■ ■")
    assert local == f"decoder self-attention, layers 1, 3, 5; rows: queries\n{band}"
    assert whole == f"decoder self-attention, layers 2, 4; rows: queries\n{CAUSAL}"
    encoder, decoder = masks_of(abstract(EncoderDecoder), 3).split("\n\n")
    assert encoder.split("\n")[1:] == ["■ ■ ■"] * 3 and decoder.endswith(CAUSAL)


def test_difference_from_the_published_number():
    published = presets.get_config("bert_base").published
    text = compared(published, 108_891_648)
    assert "published  109,482,240 (the released checkpoint of Devlin et al. 2019)" in text
    assert "exactly as many, with what is absent here: pooler 590,592" in text
    assert "1.00% fewer" in compared(published, 107_796_826)


@pytest.fixture
def run_command(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command: (exit status, standard output, standard error)."""
    monkeypatch.chdir(REPOSITORY)

    def run_command(*arguments):
        status = run.main(["run.py", "--mode=describe", f"--cache={tmp_path / 'c'}", *arguments])
        return status, *capsys.readouterr()

    return run_command


LLAMA = "--config=presets:llama3_8b"


def test_preset_is_described_as_documented(run_command):
    status, output, error = run_command(LLAMA)
    assert (status, error) == (0, "")
    tables, _, pictures = output.partition(f"\n{NOTE}\n")
    assert tables in TRAINING
    assert pictures.count("■") == 16 * 17 / 2  # one causal mask for all layers


def test_memory_of_a_training_step_falls_with_fsdp(run_command):
    """Twice as many devices store half the state each; the default mesh needs no compilation."""
    small = "--config=char_lm:tiny", "--config.model.width=64"
    status, output, _ = run_command(*small)
    assert status == 0 and "a training step" not in output
    (total,) = (line.split() for line in output.splitlines() if line.startswith("total"))
    status, output, _ = run_command(*small, "--config.mesh.fsdp=2")
    assert status == 0 and "The 2 devices are simulated on this CPU" in output
    (line,) = (line for line in output.splitlines() if line.startswith("output"))
    state = 12 * int(total[1].replace(",", ""))  # parameters and two moments
    assert 0.5 <= int(line.split()[-1].replace(",", "")) / state < 0.55


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([LLAMA, "--config.model.num_kv_heads=3"], "cannot be shared evenly by num_kv_heads=3"),
        (
            ["--config=char_lm:tiny", "--config.mesh.tensor=2", "--config.model.hidden=47"],
            "size 47",
        ),
        (["--config=toy_translation_rnn:tiny"], "'recurrent' cannot be described: tr"),
    ],
)
def test_mistake_is_one_sentence(run_command, arguments, sentence):
    status, output, error = run_command(*arguments)
    assert (status, output) == (2, "") and sentence in error
    assert error.startswith("run.py: ") and error.count("\n") == 1
