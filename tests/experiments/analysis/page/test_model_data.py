"""The model of the page computes what JAX computes: Node runs it on data that a fixture writes."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from attention.modules import EncoderDecoder
from configs import char_lm, multi30k, toy_translation
from experiments.analysis.collect import RETURNING, attended
from experiments.analysis.page.model_data import NotInPageError, model_data
from experiments.config import Config
from experiments.data.tokenizers import CharacterTokenizer, Tokenizers, WordTokenizer
from experiments.data.vocabulary import SPECIALS, Vocabulary
from experiments.data.words import WHOLE, WORDS
from experiments.inference.sentence import read_sentence
from experiments.tasks.language_model import LanguageModeling
from experiments.tasks.translation import Translation

FOLDER = Path(__file__).parent
SCRIPTS = ("arrays", "model", "decode", "tokens")
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
    **{"activation": "silu", "gated": True, "use_bias": False, "qk_norm": "rms", "window": 3},
    **{"head_width": 6, "logit_softcap": 2.0, "logit_scale": 0.5, "rotary": {"base": 100.0}},
}
GPT = {
    **{"positions": "alibi", "num_heads": 3, "width": 12},
    "per_layer": ({"activation": "gelu"}, {"activation": "gelu_exact", "window": 2}),
}
TEXTS = {
    "words": (
        *("the Zoe visits l'Afrique", "THE zoe, visits?", "xyz the; Qqq!", "Zoé don't “the”", ""),
        *(" \t ", "…", "the " * 20, "l'l'b", "¿the", "the\u00a0Zoe", "a\u0301b <eos>", "日本 x_y"),
    ),
    "characters": ("ab c", "", "xyz", "a" * 40, "abc😀"),
}


def translation(model, shared=False):
    config = (multi30k if shared else toy_translation).get_config("tiny")
    config.batch.bucket_lengths = (12,)
    settings = SMALL | {"max_length": 12} | model
    config.model = config.model.to_dict() | settings
    words = (Vocabulary((*SPECIALS, *each)) for each in (SOURCE, SOURCE if shared else TARGET))
    tokenizers = Tokenizers(*(WordTokenizer(each, WORDS) for each in words))
    return Translation(Config.read(config.to_dict()), tokenizers)


def language_model(model):
    config = char_lm.get_config("tiny")
    settings = SMALL | {"max_length": 24} | model
    settings.pop("encoder_layers")
    config.model = config.model.to_dict() | settings
    config.decoding.max_tokens = 4
    tokenizers = Tokenizers(CharacterTokenizer.of(["abc xy"]), None)
    return LanguageModeling(Config.read(config.to_dict()), tokenizers)


def random_state(task, scale=0.3):
    """A state whose norms and biases are random too."""
    state, random = task.learner.initial_state(), np.random.default_rng(0)

    def moved(leaf):
        noise = random.normal(size=leaf.shape) * scale
        return jax.numpy.asarray(leaf + noise.astype(leaf.dtype))

    return state._replace(parameters=jax.tree.map(moved, state.parameters))


def expected(task, state, source, target):
    """What JAX computes with the parameters that the page has."""
    example = task.example(state, source, target)
    if isinstance(task, LanguageModeling):
        ids = {"source": [], "target": example.inputs["decoder"].tolist()}
    else:
        said = [*task.tokenizers.target.encode(target), 2]
        ids = {"source": example.inputs["encoder"].tolist(), "target": said}
    inputs = {stack: ids[None] for stack, ids in example.inputs.items()}
    lengths = {stack: np.array([ids.shape[1]], np.int32) for stack, ids in inputs.items()}

    def outputs(model, inputs, lengths):
        return {
            stack: each._replace(cache=None, losses=None)
            for stack, each in task.attended(model, inputs, lengths, RETURNING).items()
        }

    rounded = jax.tree.map(lambda leaf: leaf.astype("float16").astype("float32"), state.parameters)
    found = task.learner.apply(outputs)(rounded, inputs, lengths)
    seen = attended(found, 0, example)
    return ids | {
        "logits": np.asarray(found["decoder"].logits[0]).tolist(),
        "predicted": [*example.predicted],
        "stacks": {
            stack: {"labels": [*labels], "special": [*example.special[stack]]}
            for stack, labels in example.labels.items()
        },
        "maps": {kind: as_json(maps) for kind, maps in seen.maps.items()},
        "movement": {stack: distances(each) for stack, each in seen.hidden_states.items()},
    }


def as_json(maps):
    values = {"title": maps.title, "layers": [*maps.layers], "shape": [*maps.weights.shape]}
    labels = {"queries": [*maps.queries], "keys": [*maps.keys]}
    return values | labels | {"weights": maps.weights.tolist()}


def distances(hidden):
    units = hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)
    return (1 - (units[1:] * units[:-1]).sum(axis=-1)).tolist()


def typed(task, text):
    """What a person's text is, as `readText` returns it."""
    is_alone = isinstance(task, LanguageModeling)
    begin, end = (task.writer.begin, ()) if is_alone else ((), (2,))
    tokenizer, longest = task.tokenizers.source, task.config.model.max_length
    found = {"text": text, "ids": [], "labels": [], "unknown": [], "problem": ""}
    try:
        sentence = read_sentence(tokenizer, text, longest=longest - 1)
    except ValueError as error:
        known = ("no word", "empty", "at most", "text that was learned")
        return found | {"problem": next(each for each in known if each in str(error))}
    return found | {
        "ids": [*begin, *sentence.ids, *end],
        "labels": [*begin, *sentence.tokens(tokenizer), *(tokenizer.token(each) for each in end)],
        "unknown": [*sentence.unknown],
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file with the models and what JAX computes."""
    with jax.numpy_dtype_promotion("standard"):
        cases = {
            "transformer": (translation(TRANSFORMER), "Zoe visits the Afrique", "un trois deux"),
            "llama": (translation(LLAMA, shared=True), "the , the Zoe ?", "b b the Zoe , the"),
            "gpt": (language_model(GPT), "abc xy abc", ""),
        }
        content = {}
        for name, (task, source, target) in cases.items():
            state = random_state(task)
            texts = TEXTS["characters" if isinstance(task, LanguageModeling) else "words"]
            content[name] = {
                "model": model_data(task, state),
                "expected": expected(task, state, source, target),
                "texts": [typed(task, text) for text in texts],
            }
    path = tmp_path_factory.mktemp("page") / "models.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_of_the_model(written, script):
    environment = os.environ | {"PAGE_MODELS": str(written)}
    command = ["node", "--test", str(FOLDER / f"{script}.test.js")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert "# skipped 0" in run.stdout


def refused(task):
    with jax.numpy_dtype_promotion("standard"), pytest.raises(NotInPageError) as error:
        model_data(task, jax.eval_shape(task.learner.initial_state))
    return str(error.value)
