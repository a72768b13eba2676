"""--mode=sweep: names of runs, resuming, mean and standard deviation."""

import json
import statistics

import pytest

from experiments import sweep
from experiments.cli import parse
from experiments.errors import DivergedError, UsageError
from experiments.workdir import Workdir
from run import call

WIDTHS = "--grid.model.width=32,64"


def command(*arguments, config="digits:tiny"):
    return parse(["run.py", "--mode=sweep", f"--config={config}", *arguments])


def runs_of(*arguments):
    return command(*arguments).runs


def write_results(workdir, accuracy, steps=20):
    """Write the files that a training leaves behind."""
    splits = {"test": {"accuracy": accuracy, "nll": 1.0}}
    results = {"step": steps, "ended": True, "training_seconds": 90.0, "parameters": 7}
    workdir.results.write_text(json.dumps({**results, "splits": splits}))
    row = {"nll": 2.0, "accuracy": 0.25}
    rows = [{"step": 20, "split": split, **row} for split in ("train", "validation")]
    (workdir.path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    workdir.add_start({"command": "python run.py", "commit": "abc", "machine": "cpu"})


@pytest.fixture
def trained(monkeypatch):
    """Replace training; return the names of the runs that were trained."""
    trained = []

    def train(config, workdir, cache, wandb):
        trained.append(workdir.path.name)
        if config.model.width == 48:
            raise DivergedError("the loss became nan")
        write_results(workdir, config.model.width / 64 - config.seed / 10)

    monkeypatch.setattr(sweep, "train", train)
    return trained


@pytest.fixture
def no_figure(monkeypatch):
    """Draw no figure, because it takes long; one test reads it."""
    monkeypatch.setattr(sweep, "draw_runs", lambda *_: None)


def test_runs_are_named_after_what_differs():
    both = command("--grid.train.learning_rate=3e-3,1e-3", "--seeds=0,1")
    assert [*both.runs] == [
        *("learning_rate=0.003,seed=0", "learning_rate=0.003,seed=1"),
        *("learning_rate=0.001,seed=0", "learning_rate=0.001,seed=1"),
    ]
    assert both.runs["learning_rate=0.001,seed=1"].train.learning_rate == 1e-3
    assert both.runs["learning_rate=0.001,seed=1"].seed == 1
    assert str(both.workdir) == "workdirs/digits_tiny_sweep"


def test_lists_and_names():
    pairs = command("--grid.batch.bucket_lengths=(8,11),(9,)", config="reverse:tiny").runs
    assert [run.batch.bucket_lengths for run in pairs.values()] == [(8, 11), (9,)]
    seeds = command("--grid.seed=1", "--grid.decoding.seed=2", config="char_lm:tiny").runs
    assert [*seeds] == ["decoding.seed=2,seed=1"]
    assert [*command("--grid.data.seed=1,2").runs] == ["data.seed=1", "data.seed=2"]
    two = command("--seeds=3", "--config=copy:tiny").runs
    assert [*two] == ["digits_tiny,seed=3", "copy_tiny,seed=3"]


def test_a_field_of_the_data_that_varies():
    names, path = "--grid.data.name=csv,parallel", "--config.data.path=folder"
    runs = command(names, path, config="toy_translation:tiny").runs
    assert [run.data.path for run in runs.values()] == ["folder"] * 2


def test_mean_and_deviation_over_seeds(tmp_path, trained, capsys):
    place = Workdir(tmp_path / "sweep")
    sweep.sweep(runs_of(WIDTHS, "--seeds=0,1,2"), place, tmp_path)
    assert len(trained) == 6
    first, second = json.loads((place.path / "sweep.json").read_text())
    assert (first["run"], first["seeds"]) == ("width=32", [0, 1, 2])
    values = [0.5, 0.4, 0.3]
    assert second["scores"]["test"]["accuracy"]["mean"] == pytest.approx(0.9)
    assert first["scores"]["test"]["accuracy"] == {
        "mean": pytest.approx(0.4),
        "std": pytest.approx(statistics.stdev(values)),  # n - 1
        "values": pytest.approx(values),
    }
    table = (place.path / "sweep.md").read_text()
    assert "| width=32 | test | 0, 1, 2 | 40.00% ± 10.00% |\n" in table
    assert "| width=32 | validation | 0, 1, 2 | 25.00% ± 0.00% |\n" in table
    assert table in capsys.readouterr().out
    assert (place.path / "sweep.png").stat().st_size > 10_000


@pytest.mark.usefixtures("no_figure")
def test_the_same_command_trains_only_unfinished_runs(tmp_path, trained):
    place = Workdir(tmp_path / "sweep")
    sweep.sweep(runs_of("--seeds=0,1"), place, tmp_path)
    sweep.sweep(runs_of("--seeds=0,1"), place, tmp_path)
    assert trained == ["seed=0", "seed=1"]
    write_results(Workdir(place.path / "seed=1"), 0.5, steps=10)  # of 20
    sweep.sweep(runs_of("--seeds=0,1,2"), place, tmp_path)
    assert trained[2:] == ["seed=1", "seed=2"]
    (record,) = json.loads((place.path / "sweep.json").read_text())
    assert (record["run"], record["seeds"]) == ("sweep", [0, 1, 2])


@pytest.mark.usefixtures("no_figure", "trained")
def test_a_run_that_was_decoded_otherwise_is_left_out(tmp_path, capsys):
    place = Workdir(tmp_path / "sweep")
    sweep.sweep(runs_of("--seeds=0,1"), place, tmp_path)
    results = Workdir(place.path / "seed=1").results
    results.write_text(
        json.dumps({**json.loads(results.read_text()), "decoding": {"num_beams": 5}})
    )
    sweep.sweep(runs_of("--seeds=0,1"), place, tmp_path)
    (record,) = json.loads((place.path / "sweep.json").read_text())
    assert record["seeds"] == [0]
    assert "seed=1 is left out: it was measured otherwise (decoding: num_beams=5)" in (
        capsys.readouterr().err
    )


@pytest.mark.usefixtures("no_figure", "trained")
def test_table_shows_other_decoding(tmp_path):
    place = Workdir(tmp_path / "sweep")
    sweep.sweep(runs_of(WIDTHS), place, tmp_path)
    results = Workdir(place.path / "width=32").results
    results.write_text(
        json.dumps({**json.loads(results.read_text()), "decoding": {"num_beams": 5}})
    )
    sweep.sweep(runs_of(WIDTHS), place, tmp_path)
    table = (place.path / "sweep.md").read_text()
    assert "| width=32 (decoding: num_beams=5) | test |" in table
    assert "| width=64 | test |" in table


@pytest.mark.usefixtures("no_figure", "trained")
def test_table_shows_scores_of_a_plugin(tmp_path):
    place = Workdir(tmp_path / "sweep")
    sweep.sweep(runs_of(WIDTHS), place, tmp_path)
    results = Workdir(place.path / "width=64").results
    found = json.loads(results.read_text())
    found["splits"]["test"] |= {"first_word": 0.25, "nll": 2.0}
    results.write_text(json.dumps(found))
    sweep.sweep(runs_of(WIDTHS), place, tmp_path)
    head, _, *rows = (place.path / "sweep.md").read_text().splitlines()
    assert "| accuracy | first word |" in head and "nll" not in head
    assert any(row.startswith("| width=64 | test |") and row.endswith("| 0.250 |") for row in rows)


@pytest.mark.parametrize(
    ("steps", "patience", "best", "ended"),
    [(20, 5, 8, True), (24, 5, 8, False), (24, 3, 8, True), (20, 5, 4, False)],
)
def test_a_run_with_patience_has_ended(tmp_path, steps, patience, best, ended):
    flags = [f"--config.train.steps={steps}", f"--config.train.patience={patience}"]
    (config,) = runs_of(*flags, "--grid.seed=0").values()
    write_results(Workdir(tmp_path), 0.5, steps=best)  # those of the best checkpoint
    losses = {4: 3.0, 8: 2.0, 12: 2.5, 16: 2.5, 20: 2.5}
    rows = [{"step": step, "split": "validation", "loss": x} for step, x in losses.items()]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert sweep.has_ended(config, Workdir(tmp_path)) == ended


def test_a_run_with_patience_and_without_metrics_has_not_ended(tmp_path):
    (config,) = runs_of("--config.train.patience=3", "--grid.seed=0").values()
    write_results(Workdir(tmp_path), 0.5)
    (tmp_path / "metrics.jsonl").unlink()
    assert not sweep.has_ended(config, Workdir(tmp_path))


@pytest.mark.usefixtures("no_figure")
def test_a_sweep_is_continued_by_its_workdir_alone(tmp_path, trained):
    place = Workdir(tmp_path / "sweep")
    sweep.sweep(runs_of(WIDTHS), place, tmp_path)
    again = parse(["run.py", "--mode=sweep", f"--workdir={place.path}", "--config.data.seed=0"])
    assert again.workdir == place.path
    assert again.runs == runs_of(WIDTHS)


@pytest.mark.usefixtures("no_figure")
def test_a_diverged_run_is_left_out(tmp_path, trained, capsys):
    place = Workdir(tmp_path / "sweep")
    sweep.sweep(runs_of("--grid.model.width=48,32"), place, tmp_path)
    assert "width=48 is left out: the loss became nan\n" in capsys.readouterr().err
    assert [record["run"] for record in json.loads((place.path / "sweep.json").read_text())] == [
        "width=32"
    ]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--grid.model.patch_size=2,3"], "patch_size=3: model: patches of 3x3 pixels do not fill"),
        (
            ["--grid.model.positions=rotary,none", "--config.model.width=36"],
            "positions=rotary: model: rotary positions need an even head_width, got 9",
        ),
    ],
)
def test_every_run_is_checked_before_any_training(tmp_path, trained, arguments, sentence):
    place = Workdir(tmp_path / "sweep")
    with pytest.raises(UsageError) as refusal:
        sweep.sweep(runs_of(*arguments), place, tmp_path)
    assert sentence in str(refusal.value)
    assert not trained and not place.path.exists()


@pytest.mark.usefixtures("no_figure")
def test_each_run_of_a_sweep_takes_the_project_of_weights_and_biases(tmp_path, monkeypatch):
    projects = []

    def train(config, workdir, cache, wandb):
        projects.append(wandb)
        write_results(workdir, 0.5)

    monkeypatch.setattr(sweep, "train", train)
    given = command("--seeds=0,1", "--wandb=digits", f"--workdir={tmp_path / 'sweep'}")
    call(given._replace(cache=tmp_path), Workdir(given.workdir))
    assert projects == ["digits", "digits"]


def test_workdir_of_a_single_run_is_refused(tmp_path, trained):
    place, runs = Workdir(tmp_path / "run"), runs_of("--seeds=0,1")
    place.save_config(runs["seed=0"])
    with pytest.raises(UsageError, match="run is the workdir of a single run: choose another"):
        sweep.sweep(runs, place, tmp_path)
