"""Configurations that cannot run, of every family: one sentence, before anything is compiled."""

import pytest

from experiments.cli import parse
from experiments.errors import UsageError
from experiments.train import train
from experiments.workdir import Workdir


@pytest.mark.parametrize(
    "name, override, sentence",
    [
        ("char_lm", "batch.row_length=65", "batch.row_length=65 is more than model.max_length=64"),
        ("char_lm", "model.positions=learned", "max_length=64, where learned positions end"),
        ("char_lm", "batch.tokens=10", "batch.tokens=10 does not fit a row of row_length=64"),
        ("char_lm", "decoding.temperature=0.0", "for 0 choose strategy=greedy"),
        ("char_lm_moe", "model.experts.number=1", "model.experts.number must be at least 2"),
        ("word_vectors", "batch.window=0", "batch.window must be at least 1, got 0"),
        ("word_vectors", "batch.threshold=0.0", "batch.threshold must be in (0, 1], got 0.0"),
        ("digits", "model.pooling=men", "got 'men'; did you mean 'mean'?"),
        ("reverse", "data.longest_test=25", "data.longest_test must be at least 26, got 25"),
        ("reverse_rnn", "model.cell=gruu", "got 'gruu'; did you mean 'gru'?"),
        ("denoising", "data.infill=1.0", "data.infill must be in [0, 1), got 1.0"),
        ("copy", "train.dtype=float16", "train.dtype must be one of float32, bfloat16"),
        ("copy", "train.schedule=cosin", "got 'cosin'; did you mean 'cosine'?"),
        ("copy", "train.loss=focal", "train.loss must be one of cross_entropy, got 'focal'"),
        ("copy", "train.monitor=bleu", "train.monitor must be one of loss, nll, accuracy, got"),
        ("copy", "decoding.metrics=('chr',)", "got 'chr'; did you mean 'chrf'?"),
        ("digits", "train.evaluators=('bleu',)", "a metric of text, and task='classification' has"),
        ("copy", "train.duration=ten", "train.duration must be a number and a unit"),
        ("multi30k:tiny", "train.ema=0.9", "choose one, with average=1 or ema=0.0"),
        ("multi30k", "batch.row_length=81", "batch.row_length=81 is more than model.max_length"),
        ("toy_translation_rnn", "batch.packed=True", "batch.packed must be False for archi"),
        ("multi30k", "text.kind=bpee", "got 'bpee'; did you mean 'bpe'?"),
        ("multi30k", "data.faults=dorp", "got 'dorp'; did you mean 'drop'?"),
    ],
)
def test_a_config_that_cannot_run_is_refused(name, override, sentence):
    with pytest.raises(UsageError) as refusal:
        parse(["run.py", f"--config={name}", f"--config.{override}"])
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    "name, override, sentence",
    [
        ("char_lm", "data.path=nowhere.txt", "data.path=nowhere.txt is not there"),
        ("scan", "data.path=nowhere", "data.path=nowhere has no file simple_train.txt"),
        ("multi30k", "data.path=nowhere", "data.path=nowhere has no train.en and train.de"),
        ("digits", "model.patch_size=3", "patches of 3x3 pixels do not fill an image of 8x8"),
        ("digits", "model.max_length=9", "an image of 16 patches is longer than max_length=9"),
    ],
)
def test_data_is_read_before_anything_is_written(name, override, sentence, tmp_path):
    config = parse(["run.py", f"--config={name}", f"--config.{override}"]).config
    workdir = Workdir(tmp_path / "never")
    with pytest.raises(UsageError) as refusal:
        train(config, workdir, tmp_path)
    assert sentence in str(refusal.value)
    assert not workdir.path.exists()


def test_a_split_that_is_shorter_than_a_window_is_named(tmp_path):
    (tmp_path / "short.txt").write_text("abcde" * 200)  # 50 characters for validation
    name, path = "char_lm", f"--config.data.path={tmp_path / 'short.txt'}"
    config = parse(["run.py", f"--config={name}", path]).config
    sentence = r"the validation split of .*short.txt has 50 characters: .*=64 needs at least 65$"
    with pytest.raises(UsageError, match=sentence):
        train(config, Workdir(tmp_path / "never"), tmp_path)
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("base", [[], ["--config=copy"]])
def test_a_flag_of_training_is_refused_where_a_run_is_used(base, tmp_path):
    workdir = Workdir(tmp_path)
    workdir.save_config(parse(["run.py", "--config=copy", "--config.train.steps=300"]).config)
    arguments = ["run.py", "--mode=evaluate", f"--workdir={tmp_path}", *base]
    parse([*arguments, "--config.train.steps=300"])
    sentence = r"train.steps=200 is for training: --mode=evaluate uses the run of .*, with 300"
    with pytest.raises(UsageError, match=sentence):
        parse([*arguments, "--config.train.steps=200"])
