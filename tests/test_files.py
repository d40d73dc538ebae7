"""Files are written whole or not at all, and clean-up removes only what nobody writes."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keras_vitx.files import atomic_write, is_being_moved, remove_stale

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


def hidden(directory):
    return {path.name.rpartition("-")[0] for path in directory.glob(".unfinished-*")}


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


def test_the_directory_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with atomic_write("~/file.txt") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "file.txt").exists()


def directory_of(path, text):
    """Write a directory with one file, in the place of another."""
    with atomic_write(path) as temporary:
        temporary.mkdir()
        (temporary / "file").write_text(text)


def test_a_directory_takes_the_place_of_another(tmp_path):
    for text in ("old", "new"):
        directory_of(tmp_path / "directory", text)
        assert (tmp_path / "directory" / "file").read_text() == text
    assert os.listdir(tmp_path) == ["directory"]


@pytest.mark.parametrize("stop", [OSError("full"), KeyboardInterrupt()])
def test_a_directory_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch, stop):
    path, renamed = tmp_path / "directory", Path.rename
    directory_of(path, "old")

    def aside_and_stop(here, target):
        renamed(here, target)
        monkeypatch.undo()
        monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(stop))

    monkeypatch.setattr(Path, "rename", aside_and_stop)
    with pytest.raises(type(stop)):
        directory_of(path, "new")
    monkeypatch.undo()
    assert (path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["directory"]


def test_a_file_does_not_replace_a_directory(tmp_path):
    directory_of(tmp_path / "directory", "mine")
    with pytest.raises(OSError), atomic_write(tmp_path / "directory") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "directory" / "file").read_text() == "mine"


KILLED = """
import os, signal, sys
from pathlib import Path
from keras_vitx.files import atomic_write
path, rename = Path(sys.argv[1]), Path.rename
def aside(here, target):
    rename(here, target)
    os.kill(os.getpid(), signal.SIGKILL)
Path.rename = aside
with atomic_write(path) as temporary:
    temporary.mkdir()
"""


def test_a_directory_that_a_killed_process_set_aside_is_restored(tmp_path):
    path = tmp_path / "directory"
    directory_of(path, "old")
    environment = {**os.environ, "KERAS_VITX_WORKER": "1"}
    done = subprocess.run([sys.executable, "-c", KILLED, path], env=environment)
    assert done.returncode == -signal.SIGKILL and is_being_moved(path) and not path.exists()
    remove_stale(path)
    assert (path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["directory"]


def test_writers_of_one_directory(tmp_path):
    """Each sees its own or a later one; none fails, and nothing is left."""
    path, texts = tmp_path / "directory", [str(number) for number in range(4)]

    def write(text):
        for _ in range(50):
            directory_of(path, text)

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write, texts))
    assert (path / "file").read_text() in texts
    assert os.listdir(tmp_path) == ["directory"]
