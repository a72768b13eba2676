"""Parameters are those published, and FLOPs of small models are those that XLA counts."""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import run
from attention.modules import (
    EncoderDecoder,
    LanguageModel,
    MaskedLanguageModel,
    TransformerConfig,
)
from configs import presets, toy_translation
from experiments.analysis.description import Description
from experiments.config import Config
from experiments.describe import NOTE, compared
from experiments.describe import abstract_model as preset_model
from experiments.registry import DATASETS
from experiments.tasks.translation import Translation
from experiments.workdir import Workdir
from tests.experiments.data.corpora import learn, load_split

REPOSITORY = Path(__file__).resolve().parents[2]
TRAINING = (REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8")
SCALING = (REPOSITORY / "docs" / "scaling.md").read_text(encoding="utf-8")
NOWHERE = Path("nowhere")

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


def abstract(family, vocab_size=211, **choices):
    config = TransformerConfig(**SIZES | choices)
    make = family.from_config
    return jax.eval_shape(lambda: make(config, vocab_size=vocab_size, rngs=nnx.Rngs(0)))


def translator(**choices):
    config = TransformerConfig(**SIZES | choices)
    sizes = dict(source_vocab_size=211, target_vocab_size=223)
    return jax.eval_shape(lambda: EncoderDecoder.from_config(config, **sizes, rngs=nnx.Rngs(0)))


def counted(function, *arguments):
    """What XLA counts of a function of 37 tokens, for each of them."""
    return jax.jit(function).lower(*arguments).cost_analysis()["flops"] / 37


def close(ours, xla):
    """XLA also counts what is no product of matrices."""
    return ours <= xla <= 1.03 * ours


def described(name):
    config = presets.get_config(name)
    return config, Description.of(preset_model(config, NOWHERE), context=config.model.max_length)


@pytest.mark.parametrize(
    "name, difference",
    [
        ("gpt2_small", 0),
        ("gpt3_175b", 0.004),
        ("llama3_8b", 0),
        ("bert_base", 0),
        ("transformer_base", 0.03),  # sizes of the paper make 63.1 million, not 65
    ],
)
def test_a_preset_has_the_published_number_of_parameters_and_allocates_none(name, difference):
    config = presets.get_config(name)
    start = time.process_time()
    model = preset_model(config, NOWHERE)
    description = Description.of(model, context=config.model.max_length)
    assert time.process_time() - start < 4  # at most 1 on one core
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(model))
    assert description.parameters == sum(leaf.size for leaf in jax.tree.leaves(model))
    here = description.parameters + sum(config.published.absent.values())
    assert abs(here - config.published.parameters) <= difference * config.published.parameters


def test_every_preset_is_compared_with_what_was_published():
    known = {"gpt2_small", "gpt3_175b", "llama3_8b", "bert_base", "transformer_base"}
    assert known == {*presets.PRESETS}


def test_parts_have_the_sizes_of_the_paper():
    _, description = described("gpt3_175b")
    parts = {part.name: part for part in description.parts}
    assert list(parts) == [
        "embedding tokens",
        "embedding positions",
        "decoder self attention",
        "decoder feed forward",
        "decoder norms",
    ]
    assert parts["embedding tokens"] == ("embedding tokens", 50_257 * 12_288, None)
    assert parts["embedding positions"].parameters == 2048 * 12_288
    attention = 4 * 12_288 * 12_288 + 4 * 12_288  # and biases
    assert parts["decoder self attention"].per_layer == attention
    assert parts["decoder self attention"].parameters == 96 * attention
    assert parts["decoder norms"].per_layer == 2 * 2 * 12_288
    assert parts["decoder norms"].parameters == (96 * 2 + 1) * 2 * 12_288  # and the last one


def test_shared_keys_make_the_cache_smaller():
    config, description = described("llama3_8b")
    (token,) = description.costs
    assert token.cache_bytes == 2 * 32 * 8 * 128 * 4  # keys and values, layers, K, H, float32
    with config.unlocked():
        config.model.num_kv_heads = 32
    everyone = Description.of(preset_model(config, NOWHERE), context=8192).costs[0]
    assert everyone.cache_bytes == 4 * token.cache_bytes


def test_cache_of_source_and_target():
    model = translator(encoder_layers=2, decoder_layers=3)
    source, target = Description.of(model, context=37).costs
    assert (source.token, target.token) == ("source token", "target token")
    assert source.cache_bytes == target.cache_bytes == 2 * 3 * 3 * 26 * 4
    assert Description.of(abstract(MaskedLanguageModel), context=37).costs[0].cache_bytes == 0


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
    (token,) = Description.of(model, context=37).costs
    assert close(token.forward_flops, counted(lambda m, tokens: m(tokens).logits, model, TOKENS))
    assert token.attention_flops == 2 * 37 * 6 * (26 + 26)
    gradient = jax.grad(lambda m, tokens: jnp.sum(m(tokens).logits ** 2))
    assert close(token.training_flops, counted(gradient, model, TOKENS))


def test_flops_of_an_encoder_are_what_xla_counts():
    model = abstract(MaskedLanguageModel, norm_placement="post")
    (token,) = Description.of(model, context=37).costs
    encode = counted(lambda m, tokens: m(tokens, mask=None).logits, model, TOKENS)
    assert close(token.forward_flops, encode)


def test_flops_of_a_translator_are_what_xla_counts_of_each_side():
    model = translator()
    source, target = Description.of(model, context=37).costs

    def read(model, tokens):
        encoded = model.encode(tokens, mask=None).features
        return model.new_cache(tokens.shape[:-1], 37, encoder_output=encoded)

    def write(model, tokens, cache):
        output = model.decode(tokens, None, encoder_mask=None, cache=cache)
        return model.logits(output.features)

    cache = jax.eval_shape(read, model, TOKENS)
    assert close(source.forward_flops, counted(read, model, TOKENS))
    assert close(target.forward_flops, counted(write, model, TOKENS, cache))


def test_flops_grow_with_layers_and_context():
    one, two, three = (
        Description.of(abstract(LanguageModel, decoder_layers=layers), context=10).costs[0]
        for layers in (1, 2, 3)
    )
    assert three.forward_flops - two.forward_flops == two.forward_flops - one.forward_flops > 0
    assert three.attention_flops == 3 * one.attention_flops
    longer = Description.of(abstract(LanguageModel), context=30).costs[0]
    assert longer.attention_flops == 3 * one.attention_flops
    assert longer.matrix_flops == one.matrix_flops


def test_layers_with_a_window_attend_to_and_cache_fewer_tokens():
    per_layer = ({"window": 3}, {})
    (plain,), (local,) = (
        Description.of(abstract(LanguageModel, decoder_layers=2, **choices), context=37).costs
        for choices in ({}, {"per_layer": per_layer})
    )
    assert local.attention_flops == plain.attention_flops * (37 + 4) // (2 * 37)
    assert local.matrix_flops == plain.matrix_flops
    assert local.cache_bytes == plain.cache_bytes * (36 + 3) // (2 * 36)
    encoder = abstract(MaskedLanguageModel, encoder_layers=2, per_layer=per_layer)
    both_sides = Description.of(encoder, context=37).costs[0]
    assert both_sides.attention_flops == plain.attention_flops * (37 + 7) // (2 * 37)


def test_a_run_is_described_with_the_words_of_its_data(tmp_path):
    config = Config.read(toy_translation.get_config("tiny").to_dict())
    model = Translation.prepare(config, tmp_path).learner.abstract_model
    parts = {part.name: part.parameters for part in Description.of(model, context=48).parts}
    pairs = load_split(config.data, "train", tmp_path)
    words = learn(DATASETS["toy"].source.text, config.text, pairs, tmp_path)
    assert parts["source embedding tokens"] == 32 * len(words.source)
    assert parts["target embedding tokens"] == 32 * len(words.target)


def test_difference_from_the_published_number():
    published = presets.get_config("bert_base").published
    text = compared(published, 108_891_648)
    assert "published  109,482,240 (the released checkpoint of Devlin et al. 2019)" in text
    assert "exactly as many, with what is absent here: " in text
    assert "pooler 590,592" in text
    assert "1.00% fewer" in compared(published, 107_796_826)
    assert "1.00% more" in compared(published, 109_986_470)


@pytest.fixture
def run_command(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command: (exit status, standard output, standard error)."""
    monkeypatch.chdir(REPOSITORY)
    before = jax.config.jax_compilation_cache_dir

    def run_command(*arguments):
        status = run.main(["run.py", f"--cache={tmp_path / 'cache'}", *arguments])
        return status, *capsys.readouterr()

    yield run_command
    jax.config.update("jax_compilation_cache_dir", before)


LLAMA = "--config=configs/presets.py:llama3_8b"


def test_a_preset_with_a_changed_field(run_command):
    status, output, error = run_command("--mode=describe", LLAMA)
    assert (status, error) == (0, "")
    assert "exactly as many" in output
    tables, _, pictures = output.partition(f"\n{NOTE}\n")
    assert tables in TRAINING
    assert pictures.count("■") == 16 * 17 / 2  # one causal mask for all layers
    status, output, _ = run_command("--mode=describe", LLAMA, "--config.model.num_kv_heads=1")
    assert status == 0
    assert "cache, bytes in float32               32,768" in output
    assert "fewer" in output


def without_activations(line):
    """The words of a line of a plan, but for the activations of a row of its table."""
    words = line.split()
    return words[:3] + words[5:] if words and "=" in words[0] else words


def test_a_mesh_of_more_devices_than_there_are(run_command):
    start = time.process_time()
    sizes = ("--config.mesh.fsdp=64", "--config.mesh.tensor=8", "--config.train.dtype=bfloat16")
    status, output, _ = run_command("--mode=describe", LLAMA, *sizes)
    assert time.process_time() - start < 60
    assert status == 0
    tables = output.partition(NOTE)[2].partition("A step reads")[0].splitlines()
    lines = [without_activations(line) for line in tables if not line.startswith("activations")]
    assert ["parameters", "62.8", "MB"] in lines  # 4 · 8,030,261,248 / 512
    documented = [without_activations(line) for line in SCALING.splitlines()]
    assert [line for line in lines if line not in documented] == []
    assert [line[0] for line in lines if line and "=" in line[0]] == [
        *("data=8", "fsdp=8", "tensor=8", "sequence=8"),
        *("data=64", "fsdp=64", "sequence=64"),
        *("data=512", "fsdp=512", "sequence=512"),
    ]


def test_experts_have_no_plan(run_command):
    status, output, _ = run_command("--mode=describe", "--config=char_lm_moe:tiny")
    assert status == 0
    assert "communication is not planned for a mixture of experts" in output


def test_a_task_is_planned_for_a_mesh_of_more_devices_than_there_are(run_command):
    command = "--mode=describe", "--config=char_lm:tiny", "--config.mesh.fsdp=4"
    status, output, _ = run_command(*command)
    assert status == 0
    assert "data=1 fsdp=4 sequence=1 tensor=1" in output


def test_the_run_of_a_workdir_is_described_and_left_as_it_is(run_command, tmp_path):
    place = tmp_path / "run"
    Workdir(place).save_config(presets.get_config("llama3_8b"))
    before = list(place.iterdir())
    status, output, error = run_command("--mode=describe", f"--workdir={place}")
    assert (status, error) == (0, "")
    assert "exactly as many" in output
    assert list(place.iterdir()) == before


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--config=configs/presets.py:lama3"], "got 'lama3'; did you mean 'llama3_8b'?"),
        ([LLAMA, "--config.mesh.tensor=64"], "size 8, not divisible by mesh.tensor=64"),
        ([LLAMA, "--config.mesh.fsdp=0"], "mesh.fsdp must be at least 1, got 0"),
        (["--config=configs/presets.py"], "must be one of gpt2_small, gpt3_175b, llama3_8b, "),
        ([LLAMA, "--config.model.num_kv_heads=3"], "cannot be shared evenly by num_kv_heads=3"),
        ([LLAMA, "--mode=train"], "preset has no mode 'train', it has describe"),
        (["--config=configs/benchmark.py"], "benchmark has no mode 'describe', it has benchmark"),
        (["--workdir=nowhere"], "nowhere holds no run: train one with --workdir=nowhere"),
        ([LLAMA, "--workdir=nowhere"], "takes a --config or a --workdir, got both"),
        (["--mode=ledger", "--workdir=nowhere"], "--mode=ledger lists all runs below --config."),
        (
            ["--config=configs/toy_translation_rnn.py:tiny"],
            "'recurrent' cannot be described: tr",
        ),
        (
            ["--config.architecture=recurrent"],
            "'recurrent' has no field 'model.activation', it has",
        ),
        (
            ["--mode=benchmark", "--config=configs/toy_translation.py"],
            "it has train, evaluate, predict, explain, prepare",
        ),
        (["--config.model.width=130"], "width=130 is not divisible by num_heads=4"),
    ],
)
def test_a_mistake_is_one_sentence(run_command, arguments, sentence):
    status, output, error = run_command("--mode=describe", *arguments)
    assert (status, output) == (2, "")
    assert sentence in error
    assert error.startswith("run.py: ")
    assert error.count("\n") == 1
