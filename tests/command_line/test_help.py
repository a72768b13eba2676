"""Help and mistakes are answered at once: before jax, NumPy and Flax are imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import run
from experiments.cli import FLAGS, MODES, parse
from experiments.config.files import load_config

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = ("jax", "numpy", "flax", "optax", "orbax", "tensorflow_datasets")
AT_ONCE = f"""
import sys, time
import run
status = None
try:
    status = run.main(["run.py", *sys.argv[1:]])
except SystemExit as exit_:
    status = exit_.code
print([name for name in {HEAVY} if name in sys.modules], status, time.process_time() < 1)
"""


def at_once(*arguments):
    """Run a command line in a new process; return its output, errors and last line."""
    ran = subprocess.run(
        [sys.executable, "-c", AT_ONCE, *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    *output, last = ran.stdout.splitlines()
    return "\n".join(output), ran.stderr, last


@pytest.mark.parametrize(
    "arguments, status",
    [
        (["--help"], 0),
        (["--help", "--config=toy_translation"], 0),
        (["--wrkdir=x"], 2),
        (["--mode=trian"], 2),
        (["--config=toy_translatio"], 2),
        (["--config.model.widht=3"], 2),
        (["--config.model.width=wide"], 2),
        (["--config=ledger", "--mode=predict"], 2),
        (["--mode=predict", "--format=xml"], 2),
        (["--config.task=translatoin"], 2),
        (["--mode=evaluate", "--workdir=nowhere"], 2),
        (["--mode=sweep", "--seeds=0,1", "--grid.model.widht=32"], 2),
    ],
)
def test_an_answer_needs_neither_jax_nor_a_second(arguments, status):
    output, error, last = at_once(*arguments)
    assert last == f"[] {status} True"
    assert bool(output) == (status == 0)
    assert error.count("\n") == (status != 0)


def shown(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        run.main(["run.py", *arguments])
    assert exit_.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_modes_configurations_and_flags(capsys, flag):
    output = shown(capsys, flag)
    lines = [line.split(maxsplit=1) for line in output.splitlines() if line.startswith("  ")]
    rows = dict(lines)
    assert {*MODES, "--config", *(f"--{name}" for name in FLAGS)} <= {*rows}
    assert rows["char_lm"] == "Characters: a small GPT learns to write, letter by letter."
    assert not {"defaults", "forms", "__init__"} & {*rows}
    assert "--config.model.width" not in rows


def test_help_lists_the_fields_of_a_configuration(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    lines = shown(capsys, "--config=toy_translation:tiny", "--help").splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines if line.startswith("  --config."))
    assert rows["--config.model.width"] == "32  D, width of the model"
    assert rows["--config.task"] == "'translation'"


@pytest.mark.parametrize(
    "name", ["toy_translation:tiny", "configs/toy_translation.py:tiny", "full path"]
)
def test_a_configuration_has_a_name_and_a_path(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if name == "full path":
        name = f"{REPOSITORY}/configs/toy_translation.py:tiny"
    command = parse(["run.py", f"--config={name}"])
    assert command.config.model.width == 32
    assert command.workdir == Path("workdirs/toy_translation_tiny")


def test_tilde_is_the_home_folder_except_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    names = "workdir", "cache", "config.data.path", "config.train.start_from"
    command = parse(["run.py", "--config=multi30k:tiny", *(f"--{name}=~/x" for name in names)])
    config = command.config
    found = command.workdir, command.cache, config.data.path, config.train.start_from
    assert [*map(str, found)] == [f"{tmp_path}/x"] * 4
    command = parse(["run.py", "--mode=explain", "--weights=~/x", "--sentence=~/x"])
    assert (command.weights, command.options["sentence"]) == (tmp_path / "x", "~/x")


def test_a_configuration_of_ones_own_may_build_on_ours(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from configs import copy\n\ndef get_config():\n    return copy.get_config('tiny')\n"
    )
    assert load_config("mine.py") == load_config("copy:tiny")


def test_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "run.py", "--help"],
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 2
    assert ran.stderr == "run.py: [Errno 28] No space left on device\n"
