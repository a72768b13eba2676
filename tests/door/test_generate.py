"""--mode=generate: continuations of prompts, and errors."""

import functools
import json

import pytest
from ml_collections import ConfigDict

from experiments.data.sequences.text_file import toy_text
from tests.door.command import train

PROMPT = "the girl"


@pytest.fixture(scope="module")
def model(place):
    """Return the workdir of a tiny trained model."""
    train(place, "char_lm", "--config=configs/char_lm.py:tiny")
    return place / "char_lm"


@pytest.fixture
def write(model, knock):
    """Return a function that runs a command: (exit status, standard output, standard error)."""
    return functools.partial(knock, "--mode=generate", workdir=model)


def test_each_prompt_is_continued_on_one_line_and_reproducibly(write):
    status, output, error = write(given=f"{PROMPT}\n{PROMPT}\n")
    assert (status, error) == (0, "")
    half = len(output) // 2
    assert output[:half] == output[half:]  # equal prompts, equal seeds
    assert output.startswith(PROMPT)
    assert len(output[:half]) == len(PROMPT) + 20 + 1  # decoding.max_tokens, and the line's end
    assert write("--config.decoding.seed=1", given=f"{PROMPT}\n")[1] != output[:half]


def test_generate_does_not_need_the_training_text(model, write, tmp_path, request):
    config = model / "config.json"
    assert [*json.loads((model / "texts.json").read_text())] == ["train", "validation", "test"]
    before = config.read_text()
    request.addfinalizer(lambda: config.write_text(before))
    config.write_text(before.replace('"path": ""', '"path": "gone.txt"'))
    status, output, error = write(given=f"{PROMPT}\n")
    assert (status, error, output.startswith(PROMPT)) == (0, "", True)
    status, _, error = write("--mode=evaluate", given="")
    assert (status, error) == (
        2,
        "run.py: data.path=gone.txt is not there: name a text file, a folder of train.txt, "
        "validation.txt and test.txt, or '' for sentences of the toy language\n",
    )
    assert write("--mode=evaluate", "--config.data.path=", given="")[0] == 0
    backwards = tmp_path / "backwards.txt"
    backwards.write_text(toy_text(ConfigDict(json.loads(before)["data"]))[::-1])
    status, _, error = write("--mode=evaluate", f"--config.data.path={backwards}", given="")
    assert (status, "the test split is another text than" in error) == (2, True)


def test_low_temperature_equals_greedy(write):
    greedy = write("--config.decoding.strategy=greedy", given=f"{PROMPT}\n")
    assert greedy == write("--config.decoding.temperature=1e-4", given=f"{PROMPT}\n")


def test_continuation_may_exceed_the_context(write):
    status, output, _ = write(
        "--config.decoding.max_tokens=70", given=f"{PROMPT}\n"
    )  # the context is 64
    assert status == 0
    assert len(output) >= len(PROMPT) + 70


def test_invalid_prompt_is_reported_and_the_others_are_continued(write):
    status, output, error = write(given=f"\nthe Ω\n{'a' * 65}\n{PROMPT}\n")
    assert status == 1
    assert output.splitlines()[:3] == ["", "", ""]
    assert output.splitlines()[3].startswith(PROMPT)
    assert "line 1: the prompt is empty" in error
    assert "line 2: the character 'Ω' is not in the text that was learned" in error
    assert "line 3: a prompt of 65 tokens is longer than the 64 that the model reads" in error


@pytest.mark.parametrize(
    "flag, sentence",
    [
        ("decoding.strategy=gredy", "got 'gredy'; did you mean 'greedy'?"),
        ("decoding.temperature=0.0", "got 0.0; for 0 choose strategy=greedy"),
        ("decoding.top_p=1.5", "top_p must be in (0, 1], got 1.5"),
        ("decoding.top_k=-1", "decoding.top_k must be at least 0, got -1"),
        ("decoding.max_tokens=0", "decoding.max_tokens must be at least 1, got 0"),
        (
            "model.num_kv_heads=1",
            "\n  model.num_kv_heads: None there, 1 here",
        ),
        ("decoding.max_tokns=3", "did you mean --config.decoding.max_tokens?"),
        (
            "model.width=64",
            "configuration: choose another --workdir\n  model.width: 32 there, 64 here",
        ),
    ],
)
def test_usage_error(write, flag, sentence):
    status, output, error = write(f"--config.{flag}", given=PROMPT)
    assert (status, output) == (2, "")
    assert sentence in error
    assert error.count("\n") == 1 + sentence.count("\n")
