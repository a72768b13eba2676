"""Text as characters: random training windows, and validation windows with every label once."""

import numpy as np
import pytest

from experiments.config.data import CharactersData
from experiments.data.batching import resumable
from experiments.data.text import (
    Characters,
    RandomWindows,
    fixed_windows,
    load_text,
    split_text,
)
from experiments.errors import UsageError

IDS = np.arange(101, 101 + 53, dtype=np.int32)


def data(**changes):
    return CharactersData(**{"sentences": 50} | changes)


def test_characters_and_ids():
    characters = Characters.of("to be\nor not")
    assert characters.characters == "\n benort"
    assert len(characters) == 8
    ids = characters.encode("bet\n")
    assert (ids.tolist(), ids.dtype) == ([2, 3, 7, 0], np.int32)
    assert characters.decode(ids) == "bet\n"
    assert Characters.from_text(characters.as_text()) == characters
    assert characters.as_text().count("\n") == 1


@pytest.mark.parametrize("separator", ["\r", "\u2028", "\u0085", '"'])
def test_unusual_line_separators_survive_saving(separator, tmp_path):
    characters = Characters.of(f"a{separator}b\n")
    (tmp_path / "characters").write_text(characters.as_text(), encoding="utf-8")
    read = Characters.from_text((tmp_path / "characters").read_text(encoding="utf-8"))
    assert read == characters


def test_unknown_character_raises():
    with pytest.raises(ValueError, match="the character 'z' is not in the text that was learned"):
        Characters.of("to be").encode("bez")


def test_duplicate_character_raises():
    with pytest.raises(ValueError, match="names each once"):
        Characters("abca")


def test_validation_is_the_end_of_the_text():
    assert split_text("0123456789" * 3) == ("0123456789" * 2 + "0123456", "789")


def test_windows_start_anywhere_and_labels_are_the_next_tokens():
    windows = RandomWindows(IDS, context=7, size=5, num_batches=200, seed=3)
    batches = [windows[i] for i in range(200)]
    for batch in batches:
        assert batch.inputs.shape == batch.labels.shape == batch.counted.shape == (5, 7)
        np.testing.assert_array_equal(batch.labels, batch.inputs + 1)
        np.testing.assert_array_equal(batch.inputs, batch.inputs[:, :1] + np.arange(7))
        assert batch.counted.all()
    starts = {int(start) for batch in batches for start in batch.inputs[:, 0]}
    assert starts == {*range(101, 101 + 53 - 7)}


def test_batch_depends_on_seed_and_index_only():
    def inputs(seed, index):
        return RandomWindows(IDS, context=7, size=5, num_batches=9, seed=seed)[
            index
        ].inputs.tolist()

    assert inputs(1, 4) == inputs(1, 4)
    assert inputs(1, 4) != inputs(1, 5)
    assert inputs(1, 4) != inputs(2, 4)


def test_windows_resume_from_their_saved_state():
    def iterator():
        return resumable(RandomWindows(IDS, context=7, size=5, num_batches=9, seed=0))

    stopped, straight = iterator(), [batch.inputs.tolist() for batch in iterator()]
    for _ in range(4):
        next(stopped)
    resumed = iterator()
    resumed.set_state(stopped.get_state())
    assert [batch.inputs.tolist() for batch in resumed] == straight[4:]


@pytest.mark.parametrize("length", [8, 9, 14, 15, 29, 36, 53])
def test_fixed_windows_count_every_label_once(length):
    batches = fixed_windows(IDS[:length], context=7, size=3)
    assert {batch.inputs.shape for batch in batches} == {(3, 7)}
    counted = [label for batch in batches for label in batch.labels[batch.counted].tolist()]
    assert counted == IDS[1:length].tolist()
    for batch in batches:
        np.testing.assert_array_equal(batch.labels, batch.inputs + 1)


def test_text_shorter_than_a_window_raises():
    words = "batch.row_length=7 needs a text of at least 8 characters, got 7"
    with pytest.raises(UsageError, match=words):
        RandomWindows(IDS[:7], context=7, size=2, num_batches=1, seed=0)
    with pytest.raises(UsageError, match=words):
        fixed_windows(IDS[:7], context=7, size=2)


def test_default_text_is_the_toy_language():
    text = load_text(data())
    assert text == load_text(data())
    assert text != load_text(data(seed=1))
    assert len(text.splitlines()) == 50
    assert text.endswith("\n")
    assert {*text} <= {*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ- \n"}


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "is not there: name a text file, or '' for ours"),
        (b"", "is empty"),
        (b"\xff\xfe", "cannot be read as UTF-8 text"),
    ],
)
def test_file_without_text_raises(content, words, tmp_path):
    path = tmp_path / "input.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        load_text(data(path=str(path)))


def test_tiny_shakespeare(real_data):
    config = data(path=str(real_data("tiny_shakespeare") / "input.txt"))
    text = load_text(config)
    characters = Characters.of(text)
    assert (len(text), len(characters)) == (1_115_394, 65)
    train, validation = split_text(text)
    assert (len(train), len(validation)) == (1_003_854, 111_540)
    assert characters.decode(characters.encode(validation)) == validation
