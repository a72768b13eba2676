"""--mode=sweep: names of runs, resuming, mean and standard deviation."""

import json
import statistics

import pytest

from experiments import sweep
from experiments.cli import parse
from experiments.errors import DivergedError, UsageError
from experiments.main import call
from experiments.workdir import Workdir
from tests.command_line.command import write_measured

WIDTHS = "--grid.model.width=32,64"


def command(*arguments, config="digits:tiny"):
    return parse(["run.py", "--mode=sweep", f"--config={config}", *arguments])


def runs_of(*arguments, **config):
    return command(*arguments, **config).runs


@pytest.fixture
def trained(monkeypatch):
    """Replace training and the figure; return names and W&B projects of the trained runs."""
    trained = []

    def train(config, workdir, cache, wandb):
        trained.append((workdir.path.name, wandb))
        if config.model.width == 48:
            raise DivergedError("the loss became nan")
        accuracy = config.model.width / 64 - config.seed / 10
        write_measured(workdir.path, {"accuracy": accuracy, "nll": 1.0, "first_word": 0.25})

    monkeypatch.setattr(sweep, "train", train)
    monkeypatch.setattr(sweep, "draw_runs", lambda *_: None)
    return trained


@pytest.mark.parametrize(
    "arguments, names",
    [
        ("--grid.train.beta1=.8 --seeds=0,1", ["beta1=0.8,seed=0", "beta1=0.8,seed=1"]),
        ("--grid.data.seed=1,2", ["data.seed=1", "data.seed=2"]),
        ("--seeds=3 --config=copy:tiny", ["digits_tiny,seed=3", "copy_tiny,seed=3"]),
    ],
)
def test_runs_are_named_after_what_differs(arguments, names):
    assert [*runs_of(*arguments.split())] == names


def test_values_of_a_grid():
    runs = runs_of("--grid.batch.bucket_lengths=(8,11),(9,)", config="reverse:tiny")
    assert [run.batch.bucket_lengths for run in runs.values()] == [(8, 11), (9,)]
    fields = "--grid.data.name=csv,parallel", "--config.data.path=folder"
    runs = runs_of(*fields, config="toy_translation:tiny")
    assert [run.data.path for run in runs.values()] == ["folder"] * 2


def test_table_of_means_and_deviations_over_seeds(tmp_path, trained, capsys):
    workdir = Workdir(tmp_path / "sweep")
    given = command(WIDTHS, "--seeds=0,1,2", "--wandb=digits", f"--workdir={workdir.path}")
    call(given._replace(cache=tmp_path), workdir)
    assert len(trained) == 6 and {project for _, project in trained} == {"digits"}
    table = (workdir.path / "sweep.md").read_text()
    assert table in capsys.readouterr().out
    head, _, *rows = table.splitlines()
    assert head == "| run | seeds | minutes | split | accuracy | first word |"
    deviation = statistics.stdev([0.5, 0.4, 0.3])  # n - 1
    assert f"| width=32 | 0, 1, 2 | 1.5 | test | 40.00% ± {deviation:.2%} | 0.250 ± 0.000 |" in rows
    assert "| width=32 | 0, 1, 2 | 1.5 | validation | 25.00% ± 0.00% |  |" in rows
    assert [*json.loads((workdir.path / "sweep.json").read_text())] == ["width=32", "width=64"]


def test_the_same_command_trains_only_unfinished_runs(tmp_path, trained):
    workdir = Workdir(tmp_path / "sweep")
    sweep.sweep(runs_of("--seeds=0,1"), workdir, tmp_path)
    sweep.sweep(runs_of("--seeds=0,1"), workdir, tmp_path)
    write_measured(workdir.path / "seed=1", {"accuracy": 0.5}, train_steps=10)  # of 20
    again = parse(["run.py", "--mode=sweep", f"--workdir={workdir.path}"])
    assert again.runs == runs_of("--seeds=0,1")
    sweep.sweep(again.runs, workdir, tmp_path)
    assert [name for name, _ in trained] == ["seed=0", "seed=1", "seed=1"]


def test_a_diverged_run_is_left_out(tmp_path, trained, capsys):
    workdir = Workdir(tmp_path / "sweep")
    sweep.sweep(runs_of("--grid.model.width=48,32"), workdir, tmp_path)
    assert "width=48 is left out: the loss became nan\n" in capsys.readouterr().err
    assert [*json.loads((workdir.path / "sweep.json").read_text())] == ["width=32"]


def test_mistakes_are_found_before_any_training(tmp_path, trained):
    workdir = Workdir(tmp_path / "sweep")
    with pytest.raises(UsageError, match="model: patches of 3x3 pixels do not fill"):
        sweep.sweep(runs_of("--grid.model.patch_size=2,3"), workdir, tmp_path)
    assert not trained and not workdir.path.exists()
    runs = runs_of("--seeds=0,1")
    workdir.save_config(runs["seed=0"])
    with pytest.raises(UsageError, match="sweep is the workdir of a single run: choose another"):
        sweep.sweep(runs, workdir, tmp_path)
