"""Files are written whole, name themselves in errors, and JSON is read with checks."""

import json
import os
import resource
import time
from threading import Thread

import pytest

from experiments.errors import UsageError
from experiments.files import PART, WEEK, append, read_lines, remove_abandoned, write_whole
from experiments.metrics import Metrics, read_metrics


@pytest.fixture
def full():
    """A function after which no file can grow, until the test ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_write_to_a_full_disk_names_its_file(tmp_path, full):
    with Metrics(tmp_path, step=0) as metrics:
        full()
        for write in (write_whole, append):
            with pytest.raises(UsageError, match=rf"{tmp_path}/file cannot be written: File too"):
                write(tmp_path / "file", "text")
        with pytest.raises(UsageError, match=r"/metrics\.jsonl cannot be written: File too large"):
            metrics.write(1, "train", {"loss": 1.0})


def test_files_written_at_once_are_whole(tmp_path):
    contents = [str(number) * 300_000 for number in range(4)]
    threads = [Thread(target=write_whole, args=(tmp_path / "file", text)) for text in contents * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_text() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_line_feeds_alone_separate_lines(tmp_path):
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfa\rb\r\nc\n\n")
    assert read_lines(tmp_path / "file") == ["a\rb", "c", ""]


def test_abandoned_parts_are_removed_after_a_week(tmp_path):
    for name, age in ((f"old{PART}", 2 * WEEK), (f"new{PART}", 0), ("file", 2 * WEEK)):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    remove_abandoned(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"new{PART}", "file"}


def test_rows_are_read_without_a_last_line_cut_short_by_a_kill(tmp_path):
    with Metrics(tmp_path, step=0) as metrics:
        metrics.write(1, "train", {"loss": 0.5})
    append(tmp_path / "metrics.jsonl", json.dumps({"step": 3})[:-4])
    assert read_metrics(tmp_path) == [{"step": 1, "split": "train", "loss": 0.5}]


@pytest.mark.parametrize("damaged", ['{"step"', "5", "{}", '{"step": "1", "split": "train"}'])
def test_another_line_that_cannot_be_read_is_named(tmp_path, damaged):
    (tmp_path / "metrics.jsonl").write_text(f"{damaged}\n")
    with pytest.raises(UsageError, match=r"metrics\.jsonl cannot be read"):
        read_metrics(tmp_path)
