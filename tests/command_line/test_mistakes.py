"""Each mistake on the command line is one sentence, reported before anything is written."""

import os
import subprocess
import sys

import pytest

import run
from configs import toy_translation
from experiments.cli import parse
from experiments.config import Config
from experiments.errors import UsageError
from experiments.workdir import Workdir
from tests.command_line.command import REPOSITORY, TINY, command, make_untrained

MISTAKES = [
    ("--wrkdir=x", "unknown flag --wrkdir; did you mean --workdir?"),
    ("--steps=5", "did you mean --config.train.steps?"),
    ("--lr=1", "did you mean --config.train.learning_rate?"),
    ("--config.train.lr=1", "no field 'train.lr'; did you mean --config.train.learning_rate?"),
    ("--config.widht=3", "no field 'widht'; did you mean --config.model.width?"),
    ("--config.model.width=wide", "model.width must be an integer, got 'wide'"),
    ("--mode=sweep --seeds=0,0", "the run 'seed=0' occurs twice"),
    ("--mode=sweep --seeds=0 --grid.seed=1", "the seeds of the sweep are given twice, by --seeds"),
    ("--mode=sweep --grid.model.width=8,", "--grid.model.width needs a list of values"),
    ("--mode=sweep --grid.model.width=30", "model.width=30 is not divisible"),
    ("--mode=sweep", "contains no runs: name a --config"),
    ("--grid.model.width=32", "--grid.model.width is for --mode=sweep, got --mode=train"),
    ("--mode=ledger --config=copy", "--config is not for --mode=ledger"),
    ("--config=copy --config=reverse", "more than once: only --mode=sweep takes several"),
    ("--mode=describe --profile", "--profile is for --mode=train alone, got --mode=describe"),
    ("--beam=--runner=DirectRunner", "--beam is for --mode=prepare alone"),
    ("--help --config=nope", "there is no configuration 'nope'; --help lists all"),
    ("--config.model.width", "--config.model.width needs a value, got none"),
    ("--config=configs/toy_translatio.py", "did you mean 'configs/toy_translation.py'?"),
    ("--config=configs/toy_translation.py:big", "has the form 'tiny' or none, got 'big'"),
    ("--config=presets:llama --mode=describe", "did you mean 'llama3_8b'?"),
    ("--config=digits --mode=evaluate --against=x", "--against is for translations, and"),
    ("--config=", "--config needs a value, got none"),
    ("--mode=evaluate --against --split=test", "--against needs a value, got none"),
    ("--mode=explain --gold=x", "--gold is for the pairs of a --file"),
    ("--config=README.md", "the configuration README.md cannot be read: SyntaxError"),
    ("--config.model.tie=all", "model.tie='all' needs one vocabulary"),
    ("--config.seed=-1", "seed must be in [0, 4294967296), got -1"),
    ("--config.model.max_length=10", "batch.bucket_lengths: 21 is more than model.max_length=10"),
    ("--config.batch.tokens=40", "batch.tokens=40 does not fit a row of 48"),
    ("--config.model.encoder_layers=0", "model.encoder_layers must be at least 1, got 0"),
    ("--config.model.num_kv_heads=3", "num_heads=4 cannot be shared evenly by num_kv_heads=3"),
    ("--config.model.width=36", "model: rotary positions need an even head_width, got 9"),
    ("--config.model.norm_placement=prre", "got 'prre'; did you mean 'pre'?"),
    ("--config.architecture=recurent", "architecture must be one of transformer, recurrent"),
    ("--config.decoding.length_penalty=nan", "decoding.length_penalty must be in [-5, 5], got nan"),
    ("--config.train.warmup_steps=99999", "warmup_steps=99999 is not less than steps="),
    ("--config.data.name=toys", "got 'toys'; did you mean 'toy'?"),
    ("--config.task=translatoin", "did you mean 'translation'?"),
    ("--mode=trian", "got 'trian'; did you mean 'train'?"),
    ("train", "unexpected argument 'train': arguments are flags, --name=value"),
    ("--process_id=0", "belong together: --coordinator and --num_processes missing"),
    ("--coordinator=h:99999 --num_processes=2 --process_id=0", "must be HOST:PORT, got 'h:99999'"),
    ("--config.batch.bucket_lengths=(0,8)", "batch.bucket_lengths must be of at least 2, got (0"),
    ("--config.train.duration=1.2.3", "duration must be a number and a unit, as in '10 epochs'"),
    ("--config.train.duration=2,epochs --config.train.steps=3", "in place of --config.train.steps"),
    ("--config.train=3", "fields: choose one, as 'train."),
    ("--config.train.start_except=('output',)", "needs start_from, which is empty"),
    ("--cache=a", "holds no run: train one with --config=NAME"),
    ("--nohelp=1", "--nohelp=1 does not take an argument"),
    ("--noconfig.data=x", "--noconfig.data takes no value, got 'x'"),
    ("--mode=explain --layer=x", "--layer must be a positive integer, got 'x'"),
    ("--coordinator=host:1 --num_processes=2 --process_id=2", "less than 2 processes, got 2"),
    ("--num_processes=2 --mode=predict", "is for --mode=train and --mode=evaluate alone"),
    ("--config=char_lm --config.batch.row_length=65", "is more than model.max_length=64"),
    ("--config=char_lm --config.model.positions=learned", "where learned positions end"),
    ("--config=char_lm --config.decoding.temperature=0.0", "must be in [1e-30, 1e30], got 0.0"),
    ("--config=word_vectors --config.batch.threshold=0.0", "must be in (0, 1], got 0.0"),
    ("--config=copy --config.train.loss=focal", "must be one of cross_entropy, got 'focal'"),
    ("--config=copy --config.train.monitor=bleu", "must be one of loss, nll, accuracy, got"),
    ("--config=digits --config.train.evaluators=('bleu',)", "texts, which classification has not"),
    ("--config=multi30k:tiny --config.train.ema=0.9", "choose average=1 or ema=0.0"),
    ("--config=toy_translation_rnn --config.batch.packed=True", "batch.packed must be False"),
]


@pytest.mark.parametrize("arguments, sentence", MISTAKES)
def test_a_mistake_is_one_sentence(arguments, sentence, tmp_path):
    with pytest.raises(UsageError) as refusal:
        parse(["run.py", f"--workdir={tmp_path}", *arguments.split()])
    text = str(refusal.value)
    assert sentence in text and "\n" not in text and len(text) < 240


@pytest.mark.parametrize(
    "flags, sentence",
    [
        ("--config=char_lm --config.data.path=nowhere.txt", "nowhere.txt is not there"),
        ("--config=scan --config.data.path=nowhere", "nowhere has no file simple_train.txt"),
        ("--config=multi30k --config.data.path=nowhere", "has no nowhere.en and nowhere.de"),
        (
            "--config=toy_translation --cache=README.md",
            "README.md/text cannot be written: Not a directory",
        ),
        ("--config=digits --config.model.patch_size=3", "patches of 3x3 pixels do not fill"),
        ("--config=copy:tiny --config.model.hidden=9999999999", "GiB, and "),
    ],
)
def test_data_is_read_before_anything_is_written(flags, sentence, run_command, place):
    status, _, error = run_command(*flags.split(), workdir="never")
    assert status == 2 and sentence in error and not (place / "never").exists()


def test_data_is_prepared_without_a_run_and_beam_needs_an_extra(run_command, place, monkeypatch):
    status, printed, _ = run_command("--mode=prepare", *TINY, workdir="none")
    assert status == 0 and "\nvalidation: 20 examples\n" in printed
    assert not (place / "none").exists()
    assert {"text", "tokens", "ids"} <= {path.name for path in (place / "cache").iterdir()}
    monkeypatch.setattr("experiments.prepare.find_spec", lambda name: None)
    status, _, error = run_command("--mode=prepare", "--beam=--runner=DirectRunner", *TINY)
    assert status == 2 and 'pip install "attention-jax[prepare]"' in error


@pytest.mark.parametrize("mode", ["evaluate", "predict"])
def test_a_run_that_is_not_there_or_not_trained(place, run_command, mode):
    status, _, error = run_command(f"--mode={mode}", workdir="nowhere")
    assert status == 2 and "nowhere holds no run: train one with --config=NAME" in error
    config = Config.read(toy_translation.get_config("tiny").to_dict())
    Workdir(place / "claimed").save_config(config)
    status, _, error = run_command(f"--mode={mode}", workdir="claimed")
    assert status == 2 and "claimed has no checkpoint yet: train it first" in error


def test_a_flag_of_training_is_refused_where_a_run_is_used(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.save_config(parse(["run.py", "--config=copy", "--config.train.steps=300"]).config)
    workdir.checkpoints.mkdir()
    arguments = ["run.py", "--mode=evaluate", f"--workdir={tmp_path}", "--config=copy"]
    command = parse([*arguments, "--config.train.log_every=50"])
    assert workdir.as_trained(command.config, command.fields).train.steps == 300
    command = parse([*arguments, "--config.train.steps=200"])
    with pytest.raises(UsageError, match="steps: 300 there, 200 here"):
        workdir.as_trained(command.config, command.fields)


@pytest.mark.parametrize(
    "error", [BrokenPipeError("of a user's code"), OSError("of the disk"), ValueError("a bug")]
)
def test_an_error_of_other_code_keeps_its_traceback(run_command, monkeypatch, error):
    def train(*_):
        raise error

    monkeypatch.setattr("experiments.train.train", train)
    with pytest.raises(type(error)):
        run_command("--config=toy_translation:tiny", workdir="full")


def run_process(command, **environment):
    """Run a shell command in the root of the repository."""
    environment = os.environ | environment
    options = {"shell": True, "cwd": REPOSITORY, "capture_output": True, "text": True}
    return subprocess.run(command, env=environment, check=False, **options)


def test_output_that_nobody_reads_is_no_error_and_that_is_lost_is_one():
    """The shell closes the pipe after the first line."""
    ran = run_process(f"{sys.executable} run.py --help | head -n 1")
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith("usage: ")
    ran = run_process(f"{sys.executable} run.py --help > /dev/full")
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1) and "No space left" in ran.stderr


def test_platform_that_is_not_there_is_one_sentence():
    ran = run_process(f"{sys.executable} run.py --config=digits:tiny", JAX_PLATFORMS="no_such")
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1
    assert ran.stderr.startswith("run.py: jax cannot use JAX_PLATFORMS=no_such: ")


def test_a_full_disk_ends_with_one_sentence(place, tmp_path):
    """No file may exceed 40 blocks; a checkpoint does, written by threads of libraries."""
    flags = "--config=digits:tiny", "--config.train.checkpoint_every=1"
    arguments = " ".join(command(place, tmp_path / "full", *flags))
    limited = f"ulimit -f 40; {sys.executable} {arguments}"
    no_index = {"GIT_DIR": str(tmp_path)}  # git would leave a lock of the index behind
    ran = run_process(limited, JAX_DISABLE_MOST_OPTIMIZATIONS="1", **no_index)
    step = tmp_path / "full" / "checkpoints" / "1"
    assert ran.returncode == 2
    assert f"run.py: {step} cannot be written: File too large" in ran.stderr


def test_standard_input_that_is_closed_is_no_text(place, capsys, monkeypatch):
    folder = make_untrained(place, "char_lm", "closed")
    monkeypatch.setattr(sys, "stdin", None)
    assert run.main(command(place, folder, "--mode=predict")) == 2
    assert "reads standard input, which is closed" in capsys.readouterr().err
