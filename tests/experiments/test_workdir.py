"""Workdirs: one run each; which fields of its config may change, and how that is recorded."""

import json

import pytest

from experiments.config import Config
from experiments.config.files import import_plugin
from experiments.errors import UsageError
from experiments.files import append
from experiments.workdir import Workdir


def configuration(duration="", steps=170, beams=1, path="here", file="train", rate=3e-3, log=50):
    train = {"duration": duration, "steps": steps, "learning_rate": rate, "log_every": log}
    return Config.read(
        {
            "task": "translation",
            "train": train,
            "data": {"name": "parallel", "path": path, "files": {"train": file}},
            "decoding": {"num_beams": beams},
        }
    )


@pytest.fixture
def workdir(tmp_path):
    """Of a run of ten epochs, which are 170 steps."""
    workdir = Workdir(tmp_path / "run")
    workdir.save_config(configuration("10 epochs"))
    workdir.checkpoints.mkdir()
    return workdir


def test_a_run_reads_one_text(workdir):
    workdir.save_fingerprints({"train": "a", "test": "b"})
    workdir.save_fingerprints({"validation": "c", "test": "b"})
    with pytest.raises(UsageError, match=f"the test split is another text than {workdir.path}"):
        workdir.save_fingerprints({"train": "a", "test": "x"})
    workdir.check_fingerprints({"longer": "d"})
    assert workdir.load_fingerprints() == {"train": "a", "test": "b", "validation": "c"}


@pytest.mark.parametrize(
    "change, line",
    [
        ({"beams": 4}, "decoding.num_beams: 1 there, 4 here"),
        ({"rate": 0.5}, "train.learning_rate: 0.003 there, 0.5 here"),
    ],
)
def test_another_configuration_is_refused(workdir, change, line):
    before = workdir.config.read_text()
    with pytest.raises(UsageError) as refused:
        workdir.save_config(configuration(**{"duration": "10 epochs"} | change))
    assert f"\n  {line}" in str(refused.value)
    assert workdir.config.read_text() == before


def test_a_trained_model_is_used_with_other_decoding_and_with_its_own_training(workdir):
    used = workdir.as_trained(configuration("9 epochs", steps=200, beams=4))
    assert (used.train.steps, used.train.duration) == (170, "10 epochs")
    assert used.decoding.num_beams == 4


def test_data_of_another_name_are_refused_in_one_sentence(workdir):
    toy = Config.read({"task": "translation", "data": {"name": "toy"}})
    with pytest.raises(
        UsageError, match=r"on data\.name='parallel' and is measured on .* got 'toy'"
    ):
        workdir.as_trained(toy, other_data=True)


def test_run_needs_its_own_plugin(workdir, tmp_path):
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text("")
    tree = json.loads(workdir.config.read_text())
    workdir.config.write_text(json.dumps(tree | {"plugin": str(tmp_path / "first.py")}))
    import_plugin(str(tmp_path / "second.py"))
    with pytest.raises(UsageError, match=r"was trained with a plugin: give --plugin=.*first\.py"):
        workdir.load_config()
    import_plugin(str(tmp_path / "first.py"))
    assert workdir.load_config().plugin.endswith("first.py")


def test_files_are_cut_to_the_lengths_of_a_checkpoint(workdir, capsys):
    workdir.samples.write_text("step 5\n")
    lengths = workdir.lengths()
    assert lengths == {"samples.txt": 7}
    append(workdir.samples, "step 10\n")
    append(workdir.path / "metrics.jsonl", "{}\n")
    workdir.truncate(lengths)
    assert workdir.samples.read_text() == "step 5\n"
    assert (workdir.path / "metrics.jsonl").read_text() == ""
    assert capsys.readouterr().err == ""
    workdir.truncate({"samples.txt": 39})
    assert capsys.readouterr().err == f"{workdir.samples} has lost rows of earlier steps\n"


def test_data_may_stand_elsewhere_and_be_no_other(workdir):
    assert workdir.as_trained(configuration("10 epochs", path="there")).data.path == "there"
    with pytest.raises(UsageError, match=r"data\.files\.train: 'train' there, 'dev' here"):
        workdir.as_trained(configuration("10 epochs", file="dev"))


def test_a_run_is_extended_and_the_change_is_recorded(workdir):
    (workdir.checkpoints / "170").mkdir()
    (workdir.checkpoints / "340.orbax-checkpoint-tmp").mkdir()
    workdir.save_config(configuration("20 epochs", steps=340, log=10, path="there"))
    used = workdir.load_config()
    assert (used.train.duration, used.train.steps, used.data.path) == ("20 epochs", 340, "here")
    (row,) = map(json.loads, workdir.changes.read_text().splitlines())
    assert row["step"] == 170 and row["time"].endswith("Z")
    assert row["changed"] == {
        "train.steps": [170, 340],
        "train.duration": ["10 epochs", "20 epochs"],
        "train.log_every": [50, 10],
    }
    workdir.save_config(configuration("20 epochs", steps=340, log=10))
    assert workdir.changes.read_text().count("\n") == 1


def test_a_run_is_not_shortened_below_its_newest_checkpoint(workdir):
    (workdir.checkpoints / "170").mkdir()
    before = workdir.config.read_text()
    with pytest.raises(UsageError, match=r"train\.steps=160 is less than the 170 steps of "):
        workdir.save_config(configuration(steps=160))
    assert workdir.config.read_text() == before and not workdir.changes.exists()


def test_a_run_in_training_is_not_changed(workdir):
    before = workdir.config.read_text()
    with workdir.lock(), pytest.raises(UsageError, match="is being trained by another process"):
        Workdir(workdir.path).save_config(configuration("20 epochs", steps=340))
    assert workdir.config.read_text() == before and not workdir.changes.exists()


def test_a_config_of_another_version_is_one_sentence(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.config.write_text('{"task": "translation", "data": {"bucket_lengths": [8]}}')
    with pytest.raises(UsageError, match=r"damaged or of another version: data\.name="):
        workdir.load_config()
