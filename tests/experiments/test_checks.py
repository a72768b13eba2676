"""Configurations that cannot run, of every family: one sentence, before anything is compiled."""

import pytest

from experiments.cli import parse
from experiments.errors import UsageError
from experiments.train import train
from experiments.workdir import Workdir


@pytest.mark.parametrize(
    "name, override, sentence",
    [
        ("char_lm", "data.path=nowhere.txt", "data.path=nowhere.txt is not there"),
        ("scan", "data.path=nowhere", "data.path=nowhere has no file simple_train.txt"),
        ("multi30k", "data.path=nowhere", "data.path has no nowhere.en and nowhere.de"),
        ("digits", "model.patch_size=3", "patches of 3x3 pixels do not fill an image of 8x8"),
    ],
)
def test_data_is_read_before_anything_is_written(name, override, sentence, tmp_path):
    config = parse(["run.py", f"--config={name}", f"--config.{override}"]).config
    workdir = Workdir(tmp_path / "never")
    with pytest.raises(UsageError) as refusal:
        train(config, workdir, tmp_path)
    assert sentence in str(refusal.value)
    assert not workdir.path.exists()


def test_a_flag_of_training_is_refused_where_a_run_is_used(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.save_config(parse(["run.py", "--config=copy", "--config.train.steps=300"]).config)
    workdir.checkpoints.mkdir()
    for base in ([], ["--config=copy"]):
        arguments = ["run.py", "--mode=evaluate", f"--workdir={tmp_path}", *base]
        command = parse([*arguments, "--config.train.log_every=50"])
        assert workdir.as_trained(command.config, command.fields).train.steps == 300
        command = parse([*arguments, "--config.train.steps=200"])
        with pytest.raises(UsageError, match="steps: 300 there, 200 here"):
            workdir.as_trained(command.config, command.fields)
