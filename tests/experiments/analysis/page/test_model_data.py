"""The model of the page computes what JAX computes: Node runs it on data that a fixture writes."""

import json
import os
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import attend
from attention.modules.attention import Attention
from attention.modules.layers import Norm
from attention.modules.transformer import Residual
from configs import char_lm, masked_lm, multi30k, toy_translation
from experiments.analysis.page.build import write_explanation
from experiments.analysis.page.example_data import distances, map_data
from experiments.analysis.page.model_data import NotInPageError, described, model_data, side_data
from experiments.config import Config
from experiments.config.parts import TextPart
from experiments.data.subwords import Subwords
from experiments.data.tokenizers import (
    EOS,
    SPECIALS,
    WHOLE,
    WORDS,
    CharacterTokenizer,
    SentencePair,
    Tokenizers,
    WordTokenizer,
)
from experiments.tasks.language_model import LanguageModeling
from experiments.tasks.masked_language_model import MaskedLanguageModeling
from experiments.tasks.prediction import read_sentence
from experiments.tasks.translation import Translation
from tests.experiments.data.corpora import learn

SMALL = {"width": 8, "num_heads": 2, "hidden": 12, "encoder_layers": 1, "decoder_layers": 2}
SOURCE = ("the", "Zoe", "l'", "Afrique", "visits", "The", ",", "?", "b")
TARGET = ("un", "deux", "trois", "quatre")

# Each option of the page is in one of these models.
TRANSFORMER = {
    **{"norm_placement": "post", "positions": "learned", "tie": "none", "softcap": 0.7},
    **{"num_heads": 4, "num_kv_heads": 2},
}
LLAMA = {
    **{"norm": "rms", "norm_placement": "both", "positions": "rotary", "tie": "all"},
    **{"activation": "silu", "gated": True, "use_bias": False, "qk_norm": "rms", "window": 2},
    **{"head_width": 6, "logit_softcap": 2.0, "logit_scale": 0.5, "rotary": {"base": 100.0}},
}
NTK = {"scaling": "ntk", "factor": 2.0}
GPT = {
    **{"positions": "alibi", "num_heads": 3, "width": 12},
    "per_layer": ({"activation": "gelu"}, {"activation": "gelu_exact", "window": 1}),
}
SIGNS = (
    *"aλ字7½_ \x85\x1c\u3000.,?'“-«+€^→😀🏽❤\ufe0f\u0301ा\u200d\u200f\u202e\ufeff",
    "the",
    "Zoe",
)
WORD_TEXTS = (
    *("the Zoe visits l'Afrique", "THE zoe, visits?", "xyz the; Qqq!", "Zoé don't “the”"),
    *("", " \t ", "…", "l'l'b", "¿the", "the\u00a0Zoe", "a\u0301b <eos>", "日本 x_y", "²the"),
    *("the " * 11, "the " * 12, "👩‍👩‍👧‍👦 visits 🇫🇷", "Zoe👍🏽, ❤️!", "1 + → <img>…"),
    *("".join(random.Random(seed).choices(SIGNS, k=16)) for seed in range(100)),
)
CHARACTER_TEXTS = ("ab c", "", "xyz", "a" * 24, "a" * 25, "abc😀")


@pytest.fixture(scope="module")
def subwords(tmp_path_factory):
    part, pairs = TextPart(size=300), [SentencePair("the boys, the small boys", "then the toys")]
    return learn(Subwords(), part, pairs * 9, tmp_path_factory.mktemp("cache")).source


def translation(model, shared=None):
    config = (multi30k if shared else toy_translation).get_config("tiny")
    config.batch.bucket_lengths = (12,)
    settings = SMALL | {"max_length": 12} | model
    config.model = config.model.to_dict() | settings
    words = ((*SPECIALS, *each) for each in (SOURCE, TARGET))
    tokenizers = Tokenizers(*(WordTokenizer(each, WORDS) for each in words))
    tokenizers = Tokenizers(shared, shared) if shared else tokenizers
    return Translation(Config.read(config.to_dict()), tokenizers)


def language_model(model):
    config = char_lm.get_config("tiny")
    settings = SMALL | {"max_length": 24} | model
    settings.pop("encoder_layers")
    config.model = config.model.to_dict() | settings
    config.decoding.max_tokens = 4
    tokenizers = Tokenizers(CharacterTokenizer.of(["abc xy"]), None)
    return LanguageModeling(Config.read(config.to_dict()), tokenizers)


def masked_model():
    config = masked_lm.get_config("tiny")
    config.model = config.model.to_dict() | SMALL
    del config.model.decoder_layers
    tokenizers = Tokenizers(WordTokenizer((*SPECIALS, *SOURCE), WORDS), None)
    return MaskedLanguageModeling(Config.read(config.to_dict()), tokenizers)


def random_state(task, scale=0.6):
    """Return a state with random parameters, those of norms and biases too."""
    random = np.random.default_rng(0)
    shapes = task.learner.abstract_state.parameters

    def draw(leaf):
        return (scale * random.normal(size=leaf.shape)).astype(leaf.dtype)

    return SimpleNamespace(parameters=jax.tree.map(draw, shapes))


def expected(task, state, source, target):
    """What JAX computes with the parameters that the page has."""
    example = task.example(state, source, target)
    parameters = jax.tree.map(lambda x: x.astype("float16").astype("float32"), state.parameters)
    (seen,) = task.collector(parameters, [example])
    read = {stack: ids.tolist() for stack, ids in example.inputs.items()}
    written = read.get("decoder", [])
    written = [*written[1:], EOS] if "encoder" in read and written else written
    inputs = {stack: jnp.asarray(ids)[None] for stack, ids in example.inputs.items()}
    lengths = {stack: jnp.array([ids.shape[1]], jnp.int32) for stack, ids in inputs.items()}
    model = nnx.merge(task.learner.definition, jax.tree.map(jnp.asarray, parameters))
    last = min(seen.logits)  # the decoder, if there is one
    return {
        **{"source": read.get("encoder", []), "target": written},
        "steps": steps_of(lambda: task.attended(model, inputs, lengths)),
        "logits": seen.logits[last][: len(read[last])].tolist(),
        "predicted": [*example.predicted],
        "stacks": {stack: {"labels": [*labels]} for stack, labels in example.labels.items()},
        "maps": {
            kind: map_data(maps) | {"weights": maps.weights.tolist()}
            for kind, maps in seen.maps.items()
        },
        "movement": {stack: distances(each).tolist() for stack, each in seen.hidden_states.items()},
    }


def steps_of(run):
    """The arrays of each attention layer, in the order in which they are computed."""
    found, step, of_layer, of_residual = [], {}, Attention._attend, Residual.__call__

    def recording_attend(*arrays, **options):
        output = attend(*arrays, **options)
        step.update(zip(("query", "key", "value", "sum"), (*arrays, output), strict=True))
        return output

    def recording_layer(layer, context, *arrays, **options):
        output = of_layer(layer, replace(context, attend=recording_attend), *arrays, **options)
        step["written"] = output.features
        return output

    def recording_residual(part, inputs, *, context):
        output = of_residual(part, inputs, context=context)
        if isinstance(part.sublayer, Attention):
            normalized = part.norm(inputs) if part.placement == "pre" else inputs
            change = (part.output_norm or jnp.asarray)(step["written"])
            step.update(vector=inputs, normalized=normalized, change=change)
            step["result"] = output.features
            jax.debug.callback(found.append, dict(step), ordered=True)  # a scan traces layers once
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attention, "_attend", recording_layer)
        patch.setattr(Residual, "__call__", recording_residual)
        jax.jit(run)()
    jax.effects_barrier()
    return [{name: array[0].tolist() for name, array in each.items()} for each in found]


def typed(task, text):
    """What a person's text is, as `readText` returns it."""
    is_alone = isinstance(task, LanguageModeling)
    begin, end = (task.begin, ()) if is_alone else ((), (EOS,))
    tokenizer = task.tokenizers.source
    longest = task.config.model.max_length - len(begin) - len(end)
    found = {"text": text, "ids": [], "labels": [], "unknown": [], "problem": ""}
    try:
        sentence = read_sentence(tokenizer, text, longest=longest, gap=getattr(task, "gap", None))
    except ValueError as error:
        known = ("no word", "empty", "at most", "text that was learned")
        return found | {"problem": next(each for each in known if each in str(error))}
    return found | {
        "ids": [*begin, *sentence.ids, *end],
        "labels": [*begin, *labels(task, sentence), *(SPECIALS[each] for each in end)],
        "unknown": [*sentence.unknown],
    }


def labels(task, sentence):
    gap = getattr(task, "gap", None)
    gaps = {place: "_" for place, number in enumerate(sentence.ids) if number == gap}
    return sentence._replace(unknown={**sentence.unknown, **gaps}).tokens(task.tokenizers.source)


@pytest.fixture(scope="module")
def written(tmp_path_factory, subwords):
    """A file with the models and what JAX computes."""
    with jax.numpy_dtype_promotion("standard"):
        cases = {
            "transformer": (translation(TRANSFORMER), "Zoe visits the Afrique", "un trois deux"),
            "llama": (translation(LLAMA | {"max_length": 70}, subwords), "the boy", "then toys"),
            "gpt": (language_model(GPT), "abc xy abc", ""),
            "bert": (masked_model(), "the _ visits _", None),
        }
        content = {}
        for name, (task, source, target) in cases.items():
            state = random_state(task)
            texts = CHARACTER_TEXTS if name == "gpt" else WORD_TEXTS
            content[name] = {
                "model": model_data(task, state),
                "expected": expected(task, state, source, target),
                "texts": [typed(task, text) for text in texts],
            }
    path = tmp_path_factory.mktemp("page") / "models.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
@pytest.mark.parametrize("name", ["arrays", "model", "calculation", "decode", "tokens", "views"])
def test_scripts(written, name):
    environment = os.environ | {"PAGE_MODELS": str(written)}
    command = ["node", "--test", str(Path(__file__).with_name(f"{name}.test.js"))]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and "# skipped 0" in run.stdout, run.stdout


@pytest.mark.parametrize(
    ("make", "scale", "reason"),
    [
        (lambda: translation({"positions": "relative"}), 1, "RelativeScores"),
        (lambda: translation({"positions": "rotary", "rotary": NTK}), 1, "'ntk'"),
        (lambda: language_model({"experts": {"every": 1}}), 1, "sublayer: Experts"),
        (lambda: translation({}), 1e5, "not finite in float16"),
        (lambda: translation({"hidden": 200_000}), 1, "at most 4,000,000 parameters, and this"),
    ],
)
def test_models_that_the_page_does_not_run(make, scale, reason):
    with jax.numpy_dtype_promotion("standard"), pytest.raises(NotInPageError, match=reason):
        model_data(task := make(), random_state(task, scale))


def test_page_of_the_main_job_is_small(tmp_path):
    words = WordTokenizer((*SPECIALS, *(f"word{number}" for number in range(1_000))), WORDS)
    config = Config.read(toy_translation.get_config().to_dict())
    task = Translation(config, Tokenizers(words, words))
    with jax.numpy_dtype_promotion("standard"):
        write_explanation(tmp_path / "page.html", task, random_state(task, 0.1), [])
    size = (tmp_path / "page.html").stat().st_size
    assert 1_500_000 < size < 2_500_000  # with its model; each of 25 examples adds up to 20 kB


def test_tasks_that_the_page_does_not_run():
    other = SimpleNamespace(config=SimpleNamespace(task="text_classification"))
    with pytest.raises(NotInPageError, match="task=text_classification"):
        model_data(other, None)


def test_attributes_that_the_page_does_not_read():
    class Changed(Norm):
        pass

    norm = Norm(4, is_centred=True, rngs=None)
    assert described(norm, (Norm,), "a norm")["type"] == "Norm"
    norm.offset = 1.0
    with pytest.raises(NotInPageError, match="the page does not read offset of a norm"):
        described(norm, (Norm,), "a norm")
    with pytest.raises(NotInPageError, match="does not know this value of a norm: Changed"):
        described(Changed(4, is_centred=True, rngs=None), (Norm,), "a norm")


def test_texts_that_the_page_does_not_split(subwords):
    whole = side_data(WordTokenizer((*SPECIALS, "a b"), WHOLE), None)
    for side in (whole, side_data(subwords, TextPart(kind="unigram"))):
        assert side["problem"] == "The page cannot split a text into the tokens of this model."
