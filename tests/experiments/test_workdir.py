"""Workdirs: one run each; which fields of its config may change, and how that is recorded."""

import json
import sys

import pytest

from experiments.config import REPOSITORY, Config
from experiments.errors import UsageError
from experiments.files import append
from experiments.workdir import Workdir, origin


def configuration(duration="10 epochs", steps=170, beams=1, path="here", rate=3e-3, log=50):
    train = {"duration": duration, "steps": steps, "learning_rate": rate, "log_every": log}
    return Config.read(
        {
            "task": "translation",
            "train": train,
            "data": {"name": "parallel", "path": path},
            "decoding": {"num_beams": beams},
        }
    )


@pytest.fixture
def workdir(tmp_path):
    """Of a run of ten epochs, which are 170 steps."""
    workdir = Workdir(tmp_path / "run")
    workdir.save_config(configuration())
    (workdir.checkpoints / "170").mkdir(parents=True)
    return workdir


def test_a_run_reads_one_text(workdir):
    workdir.save_fingerprints({"train": "a", "test": "b"})
    workdir.save_fingerprints({"validation": "c", "test": "b"})
    with pytest.raises(UsageError, match=f"the test split is another text than {workdir.path}"):
        workdir.save_fingerprints({"train": "a", "test": "x"})
    assert workdir.load_fingerprints() == {"train": "a", "test": "b", "validation": "c"}


@pytest.mark.parametrize(
    "change, line",
    [
        ({"beams": 4}, "decoding.num_beams: 1 there, 4 here"),
        ({"rate": 0.5}, "train.learning_rate: 0.003 there, 0.5 here"),
        ({"steps": 160}, "train.steps=160 is less than the 170 steps of "),
    ],
)
def test_another_configuration_is_refused(workdir, change, line):
    before = workdir.config.read_text()
    with pytest.raises(UsageError) as refused:
        workdir.save_config(configuration(**change))
    assert line in str(refused.value)
    assert workdir.config.read_text() == before and not workdir.changes.exists()


def test_a_trained_model_is_used_with_other_decoding_and_with_its_own_training(workdir):
    used = workdir.as_trained(configuration("9 epochs", steps=200, beams=4, path="there"))
    assert (used.train.steps, used.train.duration) == (170, "10 epochs")
    assert (used.decoding.num_beams, used.data.path) == (4, "there")
    toy = Config.read({"task": "translation", "data": {"name": "toy"}})
    with pytest.raises(UsageError, match=r"data\.name: 'parallel' there, 'toy' here"):
        workdir.as_trained(toy, other_data=True)


def test_files_are_cut_to_the_lengths_of_a_checkpoint(workdir):
    workdir.samples.write_text("step 5\n")
    lengths = workdir.lengths()
    append(workdir.samples, "step 10\n")
    append(workdir.path / "metrics.jsonl", "{}\n")
    workdir.truncate(lengths)
    assert workdir.samples.read_text() == "step 5\n"
    assert (workdir.path / "metrics.jsonl").read_text() == ""


def test_a_run_is_extended_and_the_change_is_recorded(workdir):
    longer = configuration("20 epochs", steps=340, log=10, path="there")
    with workdir.lock(), pytest.raises(UsageError, match="is being trained by another process"):
        Workdir(workdir.path).save_config(longer)
    workdir.save_config(longer)
    used = workdir.load_config()
    assert (used.train.duration, used.train.steps, used.data.path) == ("20 epochs", 340, "here")
    (row,) = map(json.loads, workdir.changes.read_text().splitlines())
    assert row["step"] == 170
    assert row["changed"] == {
        "train.steps": [170, 340],
        "train.duration": ["10 epochs", "20 epochs"],
        "train.log_every": [50, 10],
    }


def test_origin_names_no_folder_of_the_machine(monkeypatch):
    paths = f"--config={REPOSITORY}/configs/copy.py", "--workdir=/runs/copy", "/data/texts"
    monkeypatch.setattr(sys, "argv", ["run.py", *paths])
    command = "python run.py --config=configs/copy.py --workdir=copy texts"
    assert origin()["command"] == command
