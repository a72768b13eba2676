"""Rows of numbers that survive a kill."""

import json

import pytest

from experiments.errors import UsageError
from experiments.files import read_json_lines
from experiments.metrics import TIMING, Metrics, read_metrics


def write(directory, first, last):
    with Metrics(directory, step=first) as metrics:
        for step in range(first + 1, last + 1):
            metrics.write(step, "train", {"loss": 1 / step})
            metrics.write_timing(step, {"steps_per_second": step})


def test_rows_are_read_as_they_were_written(tmp_path):
    write(tmp_path, 0, 3)
    assert read_metrics(tmp_path) == [
        {"step": step, "split": "train", "loss": 1 / step} for step in (1, 2, 3)
    ]
    timing = read_json_lines(tmp_path / TIMING, {})
    assert timing == [{"step": step, "steps_per_second": step} for step in (1, 2, 3)]
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path):
    write(tmp_path, 0, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + json.dumps({"step": 3})[:-4])
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]


@pytest.mark.parametrize("damaged", ['{"step"', "5", "{}", '{"step": "1", "split": "train"}'])
def test_another_line_that_cannot_be_read_is_named(tmp_path, damaged):
    write(tmp_path, 0, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{damaged}\n" + path.read_text())
    with pytest.raises(UsageError, match=r"metrics\.jsonl, line 1 cannot be read"):
        read_metrics(tmp_path)


def test_nothing_is_read_where_nothing_is(tmp_path):
    assert read_metrics(tmp_path) == []
