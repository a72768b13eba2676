"""`run.py --mode=predict --weights=FOLDER`: text from a released checkpoint."""

import io
import json
import shutil
from itertools import takewhile
from pathlib import Path

import jax
import numpy as np
import pytest

import run
from attention.decoding import AllowedTokens
from attention.decoding import generate as generate_ids

CHECKPOINTS = "tests/fixtures/checkpoints"


@pytest.fixture
def generate(place, capsys, monkeypatch):
    """Run the command for a checkpoint; return (exit status, standard output, standard error)."""

    def call(folder, *flags, given="the cat\nhello\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        folders = f"--cache={place / 'cache'}", f"--weights={Path(CHECKPOINTS) / folder}"
        return run.main(["run.py", "--mode=predict", *folders, *flags]), *capsys.readouterr()

    return call


def with_words(place, name, more=0):
    """Copy a checkpoint with a tokenizer of the words w0, w1, …; return it and its vocab size."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = shutil.copytree(f"{CHECKPOINTS}/{name}", place / name)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    words = {f"w{i}": i for i in range(size + more)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, size


@pytest.mark.parametrize("flag", ["strategy=greedy", "num_beams=2"])
def test_each_line_is_continued(generate, flag):
    flags = "--config.decoding.max_tokens=4", f"--config.decoding.{flag}"
    status, output, error = generate("gpt2", *flags)
    assert (status, error) == (0, "")
    answers = [
        json.loads(line) for line in generate("gpt2", *flags, "--format=json")[1].splitlines()
    ]
    assert [answer["prompt"] for answer in answers] == ["the cat", "hello"]
    for text, answer in zip(output.splitlines(), answers, strict=True):
        assert answer["text"] and answer["prompt"] + answer["text"] == text
        assert all(0 < each <= 1 for each in answer["probabilities"])


def test_encoder_decoder_is_greedy_and_uses_generation_config(generate, tmp_path):
    """Start token from pad, a forced first token, a banned one, the second of two end tokens."""
    weights = pytest.importorskip("attention.weights")
    folder, size = with_words(tmp_path, "bart")
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"decoder_start_token_id": None, "eos_token_id": 42}
    (folder / "config.json").write_text(json.dumps(settings))
    options = {"start": settings["pad_token_id"], "prefix": [[7]], "max_tokens": 6}
    model = weights.load(folder)
    read = np.array([[5, 6]]), np.array([[options["start"], 7]])
    banned = int(jax.jit(lambda model: model(*read).logits[0, -1].argmax())(model))
    options["logit_processors"] = [AllowedTokens(lambda history: np.arange(size)[None] != banned)]
    ids = generate_ids(model, [[5, 6]], **options).tokens[0].tolist()
    end = ids[3]
    assert end != ids[0]
    generation = {"eos_token_id": [41, end], "forced_bos_token_id": 7, "pad_token_id": None}
    generation["bad_words_ids"] = [[banned], [41], [end]]
    (folder / "generation_config.json").write_text(json.dumps(generation))
    found = generate(folder, "--config.decoding.max_tokens=6", given="w5 w6\n")
    expected = " ".join(f"w{i}" for i in takewhile(lambda i: i != end, ids))
    assert found == (0, f"{expected}\n", "")
    status, _, error = generate(folder, "--config.decoding.max_tokens=33")
    assert status == 2 and "=33 is more than the 32 tokens that the model can write" in error


def test_lines_that_the_model_cannot_read(generate, tmp_path):
    """A line that is empty, too long or with a token that only the tokenizer has is not printed."""
    folder, size = with_words(tmp_path, "gpt2", 1)
    flags = "--config.decoding.max_tokens=30", "--config.decoding.strategy=greedy"
    given = f"w4 w4 w4 w4\n\nw4\nw5 w{size}\nw6\n"
    status, output, error = generate(folder, *flags, given=given)
    first, blank, third, fourth, fifth, _ = output.split("\n")
    assert status == 1 and first == blank == fourth == ""
    assert third.startswith("w4") and fifth.startswith("w6")
    reason = "are more than the 3 that the model reads with --config.decoding.max_tokens=30"
    assert error.splitlines() == [
        f"line 1: 4 tokens {reason}",
        f"line 4: the tokenizer has token {size}, and the vocabulary of the model {size} tokens",
    ]


def test_wrong_use_is_one_sentence(generate):
    reason = "contains a MaskedLanguageModel, which generates no text"
    for folder, message in (("bert", reason), ("nothing", "nothing is not a folder: load needs")):
        status, output, error = generate(folder)
        assert (status, output, error.count("\n")) == (2, "", 1) and message in error
