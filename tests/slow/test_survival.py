"""Kills, signals, flipped bits and a full disk: a continued run equals the unbroken one."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from itertools import count

import pytest

from experiments.checkpoint import saved_steps
from tests.child import ended, read_log, start

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("KILLS", 100))
IN_A_SAVE = KILLS // 5
LINES = re.compile(r"[\r\n]+")
COMPARED = "metrics.jsonl", "samples.txt"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("survival")


@pytest.fixture(scope="module")
def unbroken(place):
    """The content of an unbroken run, and the seconds that it takes with compiled programs."""
    for name in ("first", "unbroken"):
        began = time.monotonic()
        assert ended(start(place, name)) == [0], read_log(place, name)
    return content(place / "unbroken"), time.monotonic() - began


def content(workdir):
    """Return what equal runs have in common: the bytes of files, and the digests of the state."""
    files = {name: (workdir / name).read_bytes() for name in COMPARED}
    newest = saved_steps(workdir / "checkpoints")[-1]
    saved = json.loads((workdir / "checkpoints" / str(newest) / "progress/metadata").read_text())
    losses = [*map(tuple, saved["progress"]["losses"])]
    return files | {"digests": saved["digests"], "losses": losses}


def kill(process, seconds, folder=None):
    """Kill a process after some seconds, or then in its next save; return whether it still ran."""
    process.join(seconds)
    while folder and process.is_alive() and not [*folder.glob("*.orbax-checkpoint-tmp*")]:
        time.sleep(0.0005)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def test_killed_runs_equal_the_unbroken_run(place, unbroken):
    """Each process is killed at a random instant, and the next one continues its run."""
    expected, seconds = unbroken
    chance, kills, saves, runs = random.Random(0), 0, 0, 0
    while kills < KILLS:
        name = f"killed{runs}"
        folder = place / name / "checkpoints"
        while True:
            in_a_save = saves < IN_A_SAVE and chance.random() < 0.3
            (process,) = start(place, name)
            until = chance.uniform(0, seconds) * (0.5 if in_a_save else 1.1)
            if not kill(process, until, folder if in_a_save else None):
                assert process.exitcode == 0, read_log(place, name)
                break
            kills, saves = kills + 1, saves + in_a_save
        assert content(place / name) == expected
        runs += 1
    print(f"{kills} kills, {saves} of them in a save, in {runs} runs")
    assert saves >= IN_A_SAVE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_runs_equal_the_unbroken_run(place, unbroken, number):
    """Each process is stopped at a random instant of its training, and the next one continues."""
    expected, seconds = unbroken
    chance, stops, numbers = random.Random(number), 0, count()
    while stops < 10:
        name = f"stopped{number}.{next(numbers)}"
        for _ in range(99):
            size, (process,) = len(read_log(place, name)), start(place, name)
            while process.is_alive() and "/30 [" not in read_log(place, name)[size:]:
                time.sleep(0.001)
            process.join(chance.uniform(0, seconds / 4))
            if process.is_alive():
                os.kill(process.pid, number)
            asked = time.monotonic()
            statuses = ended([process])
            if ": the same command continues" not in read_log(place, name)[size:]:
                break  # the training had ended
            assert statuses == [0], read_log(place, name)
            assert time.monotonic() - asked < 5
            stops += 1
        assert content(place / name) == expected


def test_flipped_bit_in_any_file_is_reported_or_harmless(place, unbroken):
    """A continued run equals the unbroken one, whichever file of its newest checkpoint changes."""
    run, chance = place / "flipped", random.Random(0)
    newest = place / "unbroken" / "checkpoints" / "30"
    for path in sorted(path for path in newest.rglob("*") if path.is_file()):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(place / "unbroken", run)
        damaged = bytearray(path.read_bytes() or b" ")
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        (run / path.relative_to(place / "unbroken")).write_bytes(damaged)
        assert ended(start(place, "flipped")) == [0], read_log(place, "flipped")
        assert content(run) == unbroken[0]
    assert "/30 cannot be read (" in read_log(place, "flipped")


def test_full_disk_is_one_sentence_and_the_run_continues(place, unbroken):
    """The run has a file system of 3 MB; a file leaves less than its files need."""
    disk, filler = place / "disk", place / "disk" / "filler"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a file system")
    try:
        for left in (0, 20_000, 200_000, 500_000):
            with filler.open("wb") as file:
                file.truncate(0)
                free = shutil.disk_usage(disk).free
                file.write(bytes(max(0, free - left)))
            size, statuses = len(read_log(place, "disk/run")), ended(start(place, "disk/run"))
            log = read_log(place, "disk/run")[size:]
            assert statuses == [2], log
            sentences = [line for line in LINES.split(log) if "run.py: " in line]
            assert len(sentences) == 1 and "No space left on device" in sentences[0]
            assert "Traceback" not in log and "Error" not in log
        filler.unlink()
        assert ended(start(place, "disk/run")) == [0]
        assert content(disk / "run") == unbroken[0]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
