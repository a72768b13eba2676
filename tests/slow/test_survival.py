"""Kills, signals, flipped bits and a full disk: a continued run equals the unbroken one."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

from experiments.checkpoint import saved_steps
from tests.child import ended, read_log, start

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("KILLS", 100))
IN_A_SAVE = KILLS // 5
LINES = re.compile(r"[\r\n]+")
COMPARED = "metrics.jsonl", "samples.txt"
UNFINISHED = "*.orbax-checkpoint-tmp*"  # a save that runs, or that was killed


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_interrupted_runs_equal_the_unbroken_run(place, unbroken, number):
    """Each process gets a signal at a random instant, and the next one continues its run.

    Kills also come in a save, and other signals once the training has begun.
    """
    expected, seconds = unbroken
    chance, signals, saves, runs = random.Random(number), 0, 0, 0
    is_kill = number == signal.SIGKILL
    while signals < (KILLS if is_kill else 10):
        name, has_ended = f"signal{number}.{runs}", False
        folder = place / name / "checkpoints"
        while not has_ended:
            in_a_save = is_kill and saves < IN_A_SAVE and chance.random() < 0.3
            size, (process,) = len(read_log(place, name)), start(place, name)
            while process.is_alive() and not is_kill:
                if "/30 [" in read_log(place, name)[size:]:
                    break
                time.sleep(0.001)
            most = 0.25 if not is_kill else 0.5 if in_a_save else 1.1
            process.join(chance.uniform(0, most * seconds))
            while process.is_alive() and in_a_save and not [*folder.glob(UNFINISHED)]:
                time.sleep(0.0005)
            if process.is_alive():
                os.kill(process.pid, number)
            asked, (status,) = time.monotonic(), ended([process])
            printed = read_log(place, name)[size:]
            has_ended = ": the same command continues" not in printed and status != -number
            assert status in (0, -signal.SIGKILL if is_kill else 0), printed
            if not has_ended:
                assert time.monotonic() - asked < 5
                signals, saves = signals + 1, saves + in_a_save
        assert content(place / name) == expected
        runs += 1
    print(f"{signals} signals, {saves} of them in a save, in {runs} runs")
    assert saves >= IN_A_SAVE or not is_kill


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
