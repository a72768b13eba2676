"""Files are written whole, and a full disk is reported with the path of the file."""

import os
import resource
import time
from threading import Thread

import pytest

from experiments.analysis.figures import draw_learning_curve
from experiments.files import PART, WEEK, append, read_lines, remove_abandoned, write_whole
from experiments.metrics import Metrics


@pytest.fixture
def full():
    """A function after which no file can grow, until the test ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", [write_whole, append])
def test_a_write_names_its_file(tmp_path, full, write):
    full()
    with pytest.raises(OSError, match=rf"File too large: '{tmp_path}/file'"):
        write(tmp_path / "file", "text")


def test_metrics_name_their_file(tmp_path, full):
    with Metrics(tmp_path, step=0) as metrics:
        full()
        with pytest.raises(OSError, match=r"File too large: '.*/metrics\.jsonl'"):
            metrics.write(1, "train", {"loss": 1.0})


def test_a_picture_names_its_file(tmp_path, full):
    with Metrics(tmp_path, step=0) as metrics:
        for split in ("train", "validation"):
            metrics.write(1, split, {"nll": 1.0, "accuracy": 0.5})
    full()
    with pytest.raises(OSError, match=r"File too large: '.*/curve\.png'"):
        draw_learning_curve(tmp_path, tmp_path / "curve.png")


def test_an_error_that_names_its_file_stays(tmp_path):
    with pytest.raises(FileNotFoundError, match="no/file"):
        append(tmp_path / "no" / "file", "text")


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
    (tmp_path / f"folder{PART}" / "inside").mkdir(parents=True)
    (tmp_path / f"file{PART}").write_text("half")
    remove_abandoned(tmp_path)
    assert len([*tmp_path.iterdir()]) == 2
    for part in tmp_path.iterdir():
        os.utime(part, (time.time() - 2 * WEEK,) * 2)
    remove_abandoned(tmp_path)
    assert not [*tmp_path.iterdir()]
