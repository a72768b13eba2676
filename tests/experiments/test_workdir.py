"""Workdirs: one run each; which fields of its config may change, and how that is recorded."""

import json

import pytest
from ml_collections import ConfigDict

from experiments.config import Config
from experiments.config.build import as_config_dict
from experiments.config.files import import_plugin
from experiments.errors import UsageError
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
    workdir.claim(configuration("10 epochs"))
    workdir.checkpoints.mkdir()
    return workdir


def test_data_path_may_change(workdir):
    for path in ("here", "there"):
        workdir.claim(configuration("10 epochs", path=path))
    assert workdir.load_config().data.path == "here"


def test_a_run_reads_one_text(workdir):
    workdir.keep_texts({"train": "a", "test": "b"})
    workdir.keep_texts({"validation": "c", "test": "b"})
    with pytest.raises(UsageError, match=f"the test split is another text than {workdir.path}"):
        workdir.keep_texts({"train": "a", "test": "x"})
    workdir.check_texts({"longer": "d"})
    assert workdir.load_texts() == {"train": "a", "test": "b", "validation": "c"}


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
        workdir.claim(configuration(**{"duration": "10 epochs"} | change))
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


def test_a_run_is_trained_by_one_at_a_time(workdir):
    for _ in range(2):
        with (
            workdir.alone(),
            pytest.raises(UsageError, match="is being trained by another process"),
            Workdir(workdir.path).alone(),
        ):
            pass


def test_files_are_cut_to_the_lengths_of_a_checkpoint(workdir, capsys):
    for step in (5, 10):
        assert workdir.keep_sample(step, f"  step 9{step}\r") == f"step {step}\n  step 9{step}\r"
    lengths = workdir.lengths()
    assert lengths == {"samples.txt": 38}
    workdir.keep_sample(15, "later")
    workdir.keep_maps({"step": 15})
    workdir.cut(lengths)
    assert workdir.samples.read_bytes() == b"step 5\n  step 95\r\nstep 10\n  step 910\r\n"
    assert workdir.maps.read_bytes() == b""
    assert capsys.readouterr().err == ""
    workdir.cut({"samples.txt": 39})
    assert capsys.readouterr().err == f"{workdir.samples} has lost rows of earlier steps\n"


def test_data_may_stand_elsewhere_and_be_no_other(workdir):
    assert workdir.as_trained(configuration("10 epochs", path="there")).data.path == "there"
    with pytest.raises(UsageError, match=r"data\.files\.train: 'train' there, 'dev' here"):
        workdir.as_trained(configuration("10 epochs", file="dev"))


def test_a_run_is_extended_and_the_change_is_recorded(workdir):
    (workdir.checkpoints / "170").mkdir()
    (workdir.checkpoints / "340.orbax-checkpoint-tmp").mkdir()
    workdir.claim(configuration("20 epochs", steps=340, log=10, path="there"))
    used = workdir.load_config()
    assert (used.train.duration, used.train.steps, used.data.path) == ("20 epochs", 340, "here")
    (row,) = map(json.loads, workdir.changes.read_text().splitlines())
    assert row["step"] == 170 and row["time"].endswith("Z")
    assert row["changed"] == {
        "train.steps": [170, 340],
        "train.duration": ["10 epochs", "20 epochs"],
        "train.log_every": [50, 10],
    }
    workdir.claim(configuration("20 epochs", steps=340, log=10))
    assert workdir.changes.read_text().count("\n") == 1


def test_a_run_is_not_shortened_below_its_newest_checkpoint(workdir):
    (workdir.checkpoints / "170").mkdir()
    before = workdir.config.read_text()
    with pytest.raises(UsageError, match=r"train\.steps=160 is less than the 170 steps of "):
        workdir.claim(configuration(steps=160))
    assert workdir.config.read_text() == before and not workdir.changes.exists()


def test_a_run_in_training_is_not_changed(workdir):
    before = workdir.config.read_text()
    with workdir.alone(), pytest.raises(UsageError, match="is being trained by another process"):
        Workdir(workdir.path).claim(configuration("20 epochs", steps=340))
    assert workdir.config.read_text() == before and not workdir.changes.exists()


def test_an_empty_folder_becomes_the_workdir(tmp_path):
    Workdir(tmp_path).claim(configuration())
    assert Workdir(tmp_path).load_config() == as_config_dict(configuration())


def test_at_most_eight_differences_are_listed_one_short_line_each(tmp_path):
    workdir = Workdir(tmp_path / "run")
    fields = {f"field{number}": "x" * 100 for number in range(11)}
    workdir.claim(ConfigDict({"task": "benchmark", "model": fields}))
    with pytest.raises(UsageError) as refused:
        workdir.claim(ConfigDict({"task": "benchmark", "data": {"a": [0] * 100}}))
    first, *lines, last = str(refused.value).split("\n")
    assert first.endswith("contains a run of another configuration: choose another --workdir")
    assert lines[0] == "  data.a: None there, [0, 0, 0, 0, 0, 0, ...] here"
    assert len(lines) == 8 and max(map(len, lines)) < 80
    assert last == "  and 4 more"


def test_a_config_of_another_version_is_one_sentence(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.config.write_text('{"task": "translation", "data": {"bucket_lengths": [8]}}')
    with pytest.raises(UsageError, match=r"damaged or of another version: data\.name='toy' has no"):
        workdir.load_config()
