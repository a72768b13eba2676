"""Each mistake on the command line is one sentence, reported before anything is written."""

import errno
import os
import re
import subprocess
import sys

import pytest

import run
from configs import toy_translation
from experiments import train as commands
from experiments.config import Config
from experiments.workdir import Workdir
from tests.command_line.command import REPOSITORY, command, make_untrained

TWO = ("--num_processes=2",)
ONE_OF = "--coordinator=host:1", "--process_id=0"


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--wrkdir=x"], "unknown flag --wrkdir; did you mean --workdir?"),
        (["--config.model.widht=3"], "no field 'model.widht'; did you mean --config.model.width?"),
        (["--config.widht=3"], "no field 'widht'; did you mean --config.model.width?"),
        (
            ["--config.mesh.zzqq.xx=2"],
            "no field 'mesh.zzqq.xx': mesh has data, fsdp, sequence, tensor",
        ),
        (["--config.model.width.x=3"], "no field 'model.width.x'"),
        (["--config.model.width=wide"], "--config.model.width must be a whole number, got 'wide'"),
        (["--config.train.beta1=x"], "--config.train.beta1 must be a number, got 'x'"),
        (["--config.model.remat=7"], "--config.model.remat must be True or False, got '7'"),
        (["--mode=sweep", "--grid.seed=0", "--grid.train.beta1=x"], "--grid.train.beta1 must be a"),
        (["--help", "--config=nope"], "there is no configuration 'nope'; --help lists all"),
        (["--config.model.width"], "Missing value for flag --config.model.width"),
        (["--config=configs/toy_translatio.py"], "did you mean configs/toy_translation.py?"),
        (
            ["--config=configs/toy_translation.py:big"],
            "has the form 'tiny' or none, got 'big'",
        ),
        (["--config="], "--config needs a name, got none"),
        (["--workdir"], "--workdir needs a name, got none"),
        (["--cache=README.md"], "--cache=README.md is no folder"),
        (["--noconfig.model.reamt"], "no field 'model.reamt'; did you mean --config.model.remat?"),
        (["--config=README.md"], "the configuration README.md cannot be read: SyntaxError"),
        (["--config.model.tie=all"], "model.tie='all' needs one vocabulary"),
        (["--config.seed=-1"], "seed must lie in [0, 2**32), got -1"),
        (["--config.model.max_length=10"], "lengths of at most model.max_length=10, got (8, 11"),
        (["--config.batch.bucket_lengths=()"], "batch.bucket_lengths must contain lengths of at"),
        (["--config.batch.bucket_lengths=(0,)"], "batch.bucket_lengths must be at least 2, got"),
        (["--config.model.encoder_layers=0"], "model.encoder_layers must be at least 1, got 0"),
        (["--config.batch.tokens=40"], "batch.tokens=40 does not fit a sentence of"),
        (["--config.train.learning_rate=nan"], "train.learning_rate must be a number above 0"),
        (["--config.train.beta1=2.0"], "train.beta1 must lie in [0, 1), got 2.0"),
        (["--process_id=0"], "belong together: --coordinator and --num_processes missing"),
        (["--num_processes=2"], "belong together: --coordinator and --process_id missing"),
        (
            [*TWO, "--coordinator=host", "--process_id=0"],
            "HOST:PORT with a port from 1 to 65535, got 'host'",
        ),
        ([*TWO, "--coordinator=host:0", "--process_id=0"], "from 1 to 65535, got 'host:0'"),
        ([*TWO, "--coordinator=host:65536", "--process_id=0"], "65535, got 'host:65536'"),
        (["--num_processes=0", *ONE_OF], "--num_processes is a whole number from 1, got '0'"),
        ([*TWO, "--coordinator=host:1", "--process_id=2"], "--process_id is from 0 to 1 with"),
        ([*TWO, "--coordinator=host:1", "--process_id=x"], "--process_id is a whole number from 0"),
        ([*TWO, "--mode=predict"], "--num_processes is for --mode=train and --mode=evaluate alone"),
        (["--mode=trian"], "got 'trian'; did you mean 'train'?"),
        (["train"], "unexpected argument 'train': arguments are flags, --name=value"),
        (["--config.model.num_kv_heads=3"], "num_heads=4 is not divisible by num_kv_heads=3"),
        (["--config.model.width=130"], "run.py: model.width=130 is not divisible by num_heads=4"),
        (["--config.model.norm_placement=prre"], "got 'prre'; did you mean 'pre'?"),
        (["--config.model.implementation=tield"], "got 'tield'; did you mean 'tiled'?"),
        (["--against", "--split=test"], "--against needs a name, got none"),
        (["--config.data.name=toys"], "got 'toys'; did you mean 'toy'?"),
        (["--config.task=translatoin"], "did you mean 'translation'?"),
        (
            ["--config.train.warmup_steps=99999"],
            "choose fewer by --config.train.warmup",
        ),
        (["--config.train.steps=0"], "train.steps must be at least 1, got 0"),
        (["--config.train.log_every=0"], "train.log_every must be at least 1, got 0"),
        (["--config.data.sizes.train=9"], "data.sizes.train must be at least 1000, got 9"),
        (["--config.data.sizes.test=0"], "data.sizes.test must be at least 1, got 0"),
        (["--config.train.label_smoothing=1.5"], "train.label_smoothing must lie in [0, 1)"),
    ],
)
def test_a_mistake_is_one_sentence(run_command, place, arguments, sentence):
    status, output, error = run_command(*arguments, workdir="never")
    assert (status, output) == (2, "")
    assert sentence in error
    assert error.startswith("run.py: ")
    assert error.count("\n") == 1
    assert len(error) < 250
    assert not (place / "never").exists()


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--config.model.width=36"], "rotary positions need an even head_width, got 9"),
    ],
)
def test_what_the_library_cannot_compute_is_refused_before_anything_is_written(
    run_command, place, arguments, sentence
):
    status, _, error = run_command("--config=toy_translation:tiny", *arguments, workdir="never")
    assert status == 2
    assert sentence in error
    assert error.count("\n") == 1
    assert not (place / "never").exists()


@pytest.mark.parametrize("mode", ["evaluate", "predict"])
def test_a_run_that_is_not_there_or_not_trained(place, run_command, mode):
    status, _, error = run_command(f"--mode={mode}", workdir="nowhere")
    assert status == 2
    assert "nowhere holds no run: train one with --workdir=" in error
    Workdir(place / "claimed").save_config(
        Config.read(toy_translation.get_config("tiny").to_dict())
    )
    status, _, error = run_command(f"--mode={mode}", workdir="claimed")
    assert status == 2
    assert "claimed has no checkpoint yet: train it first" in error


@pytest.mark.parametrize(
    "error, sentence",
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "here"),
            "No space left on device: 'here'",
        ),
        (RuntimeError("of a library:\nFile too large; here"), "of a library: File too large; here"),
    ],
)
def test_what_a_disk_refuses_is_one_sentence(run_command, monkeypatch, error, sentence):
    def train(*_):
        raise error

    monkeypatch.setattr(commands, "train", train)
    status, output, found = run_command("--config=configs/toy_translation.py:tiny", workdir="full")
    assert (status, output, found.count("\n")) == (2, "", 1)
    assert found.startswith("run.py: ") and found.endswith(f"{sentence}\n")


def test_another_error_of_a_library_keeps_its_traceback(run_command, monkeypatch):
    def train(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(commands, "train", train)
    with pytest.raises(RuntimeError, match="a bug"):
        run_command("--config=configs/toy_translation.py:tiny", workdir="full")


def test_a_full_disk_is_one_line(place, tmp_path):
    """No file may exceed 20 KiB; a checkpoint does, written by threads of libraries."""
    code = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20 * 1024,) * 2); "
        "sys.argv[0] = 'run.py'; runpy.run_path('run.py', run_name='__main__')"
    )
    flags = "--config=digits:tiny", "--config.train.checkpoint_every=1"
    arguments = command(place, tmp_path / "full", *flags)[1:]
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    step = tmp_path / "full" / "checkpoints" / "1"
    lines = [line for line in re.split(r"[\r\n]+", ran.stderr) if "/20 [" not in line]
    assert ran.returncode == 2
    assert [line for line in lines if line.strip()] == [
        f"run.py: the checkpoint {step} cannot be written (File too large)"
    ]


def test_standard_input_that_is_closed_is_no_text(place, capsys, monkeypatch):
    folder = make_untrained(place, "char_lm", "closed")
    monkeypatch.setattr(sys, "stdin", None)
    assert run.main(command(place, folder, "--mode=predict")) == 2
    assert "reads standard input, which is closed" in capsys.readouterr().err


def test_help_names_every_flag(run_command, capsys):
    with pytest.raises(SystemExit) as exit_:
        run_command("--help")
    assert exit_.value.code == 0
    output = capsys.readouterr().out
    for flag in ("--config", "--mode", "--workdir", "--cache"):
        assert flag in output
