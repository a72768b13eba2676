"""Configurations that cannot run, of every family: one sentence, before anything is compiled."""

from pathlib import Path

import pytest

import run
from experiments.cli import parse
from experiments.errors import UsageError

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "name, override, sentence",
    [
        ("char_lm", "model.positions=learned", "learned positions end at model.max_length=64"),
        ("char_lm", "data.context=65", "data.context=65 is longer than model.max_length=64"),
        ("char_lm", "data.path=nowhere.txt", "data.path=nowhere.txt is not there"),
        ("char_lm", "train.batch_tokens=10", "has no room for a row of data.context=64"),
        ("char_lm", "train.label_smoothing=1.5", "label_smoothing must lie in [0, 1), got 1.5"),
        (
            "char_lm",
            "decoding.temperature=-1.0",
            "temperature must be between 1e-30 and 1e+30, got -1.0; for 0 use Greedy",
        ),
        (
            "char_lm",
            "data.name=sentences",
            "its names ask for (it has no field 'sizes'): start",
        ),
        ("packed_lm", "data.sizes.train=9", "data.sizes.train must be at least 1000, got 9"),
        ("packed_lm", "data.seed=-1", "data.seed must be at least 0, got -1"),
        ("packed_lm", "data.name=character", "got 'character'; did you mean 'characters'?"),
        ("masked_lm", "data.bucket_lengths=(0,)", "data.bucket_lengths must lie in [2, "),
        ("masked_lm", "model.encoder_layers=0", "model.encoder_layers must be at least 1, got 0"),
        ("word_vectors", "data.window=0", "data.window must be at least 1, got 0"),
        ("word_vectors", "data.threshold=0.0", "data.threshold must lie in (0, 1], got 0.0"),
        ("word_vectors", "train.batch_size=0", "train.batch_size must be at least 1, got 0"),
        ("digits", "data.patch_size=3", "patches of 3x3 pixels do not fill an image of 8x8"),
        ("digits", "model.max_length=9", "an image of 16 patches is longer than max_length=9"),
        ("digits", "pooling=men", "got 'men'; did you mean 'mean'?"),
        ("sentiment", "model.max_length=40", "the sentences need 48 positions"),
        ("reverse", "data.longest_test=25", "data.longest_test must be at least 26, got 25"),
        ("reverse_rnn", "model.cell=gruu", "got 'gruu'; did you mean 'gru'?"),
        ("reverse_rnn", "model.attention=aditive", "got 'aditive'; did you mean 'additive'?"),
        ("reverse", "architecture=recurrent", "not a configuration of the kind that its names"),
        ("denoising", "data.noise=('msk',)", "got 'msk'; did you mean 'mask'?"),
        ("scan", "data.path=nowhere", "data.path=nowhere has no file simple_train.txt"),
        ("copy", "decoding.num_beams=0", "decoding.num_beams must be at least 1, got 0"),
        (
            "copy",
            "decoding.n_best=2",
            "decoding.n_best must lie in 1 to decoding.num_beams=1, got 2",
        ),
        ("copy", "train.average=0", "train.average must be at least 1, got 0"),
        ("copy", "train.microbatches=0", "train.microbatches must be at least 1, got 0"),
        ("copy", "train.dtype=float16", "train.dtype must be one of float32, bfloat16"),
        ("copy", "train.ema=1.0", "train.ema must lie in [0, 1), got 1.0"),
        ("copy", "train.z_loss=-1.0", "train.z_loss must be a number from 0, got -1.0"),
        ("copy", "train.patience=-1", "train.patience must be at least 0, got -1"),
        ("multi30k", "train.patience=1", "what was evaluated is kept: train.checkpoint_every="),
        ("copy", "train.plateau_factor=1.0", "train.plateau_factor must lie in (0, 1), got 1.0"),
        ("copy", "train.duration=ten", "train.duration needs a number, as in '10 epochs'"),
        ("copy", "train.steps=2147483648", "train.steps must be at most 2,147,483,647 steps"),
        ("multi30k", "train.ema=0.9", "choose one, with train.average=1 or train.ema=0.0"),
        ("multi30k", "data.row_length=81", "data.row_length must lie in [0, model.max_length=80]"),
        ("multi30k", "architecture=recurrent", "data.row_length must be 0 for architecture='recur"),
        (
            "copy",
            "decoding.hypotheses=0",
            "decoding.hypotheses=0 are fewer than the decoding.num_beams",
        ),
        ("copy", "decoding.length_penalty=nan", "decoding.length_penalty must be finite, got nan"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused(name, override, sentence, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises(UsageError) as refusal:
        run.check(parse(["run.py", f"--config=configs/{name}.py", f"--config.{override}"]))
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    "name, mode",
    [("char_lm", "generate"), ("multi30k", "translate"), ("multi30k_rnn", "translate")],
)
def test_what_was_trained_is_used_wherever_its_data_is(name, mode, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    command = parse(["run.py", f"--config=configs/{name}.py", "--config.data.path=nowhere"])
    if "runs" in command.config:
        command = command._replace(config=command.config.runs.additive)
    with pytest.raises(UsageError, match=r"data\.path=nowhere "):
        run.check(command)
    run.check(command._replace(mode=mode))


def test_several_files_are_only_compared(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    twice = ["run.py", "--config=configs/copy.py", "--config=configs/reverse.py"]
    with pytest.raises(UsageError, match="more than once: only --mode=compare takes several"):
        parse(twice)
