"""Files are written whole or not at all, and clean-up removes only what nobody writes."""

import os
import signal
import subprocess
import sys

import pytest

from keras_vitx.files import atomic_write, remove_stale

pytestmark = pytest.mark.backend_free

WRITE = """
import sys, time
from pathlib import Path
from keras_vitx.files import atomic_write
with atomic_write(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("half", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def writer():
    """Start processes that write half of a file; they end with the test."""
    processes = []

    def start(path):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE, path],
            env={**os.environ, "KERAS_VITX_WORKER": "1"},  # without Keras
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "half\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def hidden(folder):
    return {path.name.rpartition("-")[0] for path in folder.glob(".unfinished-*")}


def test_only_what_a_killed_process_left_of_the_same_file_is_removed(writer, tmp_path):
    living, killed, other = (tmp_path / name for name in ("living", "killed", "other"))
    writer(living)
    for path in (killed, other):
        process = writer(path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert hidden(tmp_path) == {f".unfinished-{name}" for name in ("living", "killed", "other")}
    for path in (living, killed):
        remove_stale(path)
    assert hidden(tmp_path) == {".unfinished-living", ".unfinished-other"}
    for path in (living, other):
        with atomic_write(path) as temporary:
            temporary.write_text("whole")
        assert path.read_text() == "whole"
    assert hidden(tmp_path) == {".unfinished-living", ".unfinished-other"}


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "sub" / "file.txt"
    with atomic_write(path) as temporary:
        temporary.write_text("old")
    with pytest.raises(OSError, match="full"), atomic_write(path) as temporary:
        temporary.write_text("new")
        raise OSError("the disk is full")
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file.txt"]


def test_the_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with atomic_write("~/file.txt") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "file.txt").exists()
