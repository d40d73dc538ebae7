"""Files are written whole or not at all, and clean-up removes only what nobody writes."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from keras_vitx.files import atomic_write, is_being_moved, locked, remove_stale, temporary_beside

pytestmark = pytest.mark.backend_free

WRITE = """
import os, signal, sys, time
from pathlib import Path
from keras_vitx.files import atomic_write
path, how, rename = Path(sys.argv[1]), sys.argv[2], Path.rename
def aside(here, target):
    rename(here, target)
    os.kill(os.getpid(), signal.SIGKILL)
with atomic_write(path) as temporary:
    if how == "killed while setting a directory aside":
        Path.rename = aside
        temporary.mkdir()
    else:
        temporary.write_text("half")
        print("half", flush=True)
        time.sleep(100)
"""


@pytest.fixture
def writer():
    """Start processes that write a file; they end with the test."""
    processes = []

    def start(path, how="half of it"):
        environment = {**os.environ, "KERAS_VITX_WORKER": "1"}  # without Keras
        command = [sys.executable, "-c", WRITE, path, how]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == ("half\n" if how == "half of it" else "")
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def write(path, text, directory=False):
    """Write a file, or a directory with one file."""
    with atomic_write(path) as temporary:
        if directory:
            temporary.mkdir()
        (temporary / "file" if directory else temporary).write_text(text)


def read(path):
    return (path / "file" if path.is_dir() else path).read_text()


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=63)


@example(name="lock", other="new", directory=True)
@example(name="x" * 255, other="x" * 254, directory=True)
@given(name=NAMES, other=NAMES, directory=st.booleans())
def test_files_of_any_name_are_written_whole_or_not_at_all(
    name, other, directory, tmp_path_factory
):
    """And none of another name is touched, not even by the clean-up."""
    assume(name != other and not {name, other} & {".", ".."})
    parent = tmp_path_factory.mktemp("files") / "new" / "directory"
    write(parent / other, "other")
    for text in ("old", "new"):
        with locked(parent / name):
            write(parent / name, text, directory)
        assert read(parent / name) == text
    with locked(parent / name), temporary_beside(parent / name):
        hidden = set(os.listdir(parent)) - {name, other}
        assert len(hidden) == 2 and max(len(os.fsencode(each)) for each in hidden) < 143
    with pytest.raises(OSError, match="full"), atomic_write(parent / name) as temporary:
        assert temporary.suffixes == (parent / name).suffixes
        temporary.write_text("newer")
        raise OSError("the disk is full")
    remove_stale(parent / name)
    assert (read(parent / name), read(parent / other)) == ("new", "other")
    assert sorted(os.listdir(parent)) == sorted([name, other])


def hidden(directory):
    return {path.name.rpartition("-")[0] for path in directory.glob(".unfinished-*")}


def test_only_what_a_killed_process_left_of_the_same_file_is_removed(writer, tmp_path):
    living, killed, other = (tmp_path / name for name in ("living", "killed", "killed-too"))
    writer(living)
    for path in (killed, other):
        process = writer(path)
        process.kill()
        process.wait()
    for path in (living, killed):
        remove_stale(path)
    assert hidden(tmp_path) == {".unfinished-living", ".unfinished-killed-too"}


def test_a_directory_that_a_killed_process_set_aside_is_restored(writer, tmp_path):
    path = tmp_path / "directory"
    write(path, "old", directory=True)
    process = writer(path, "killed while setting a directory aside")
    assert process.wait() == -signal.SIGKILL and is_being_moved(path) and not path.exists()
    remove_stale(path)
    assert read(path) == "old"
    assert os.listdir(tmp_path) == ["directory"]


def test_the_directory_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write("~/file.txt", "x")
    assert (tmp_path / "file.txt").exists()


@pytest.mark.parametrize("stop", [OSError("full"), KeyboardInterrupt()])
def test_a_directory_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch, stop):
    path, renamed = tmp_path / "directory", Path.rename
    write(path, "old", directory=True)

    def aside_and_stop(here, target):
        renamed(here, target)
        monkeypatch.undo()
        monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(stop))

    monkeypatch.setattr(Path, "rename", aside_and_stop)
    with pytest.raises(type(stop)):
        write(path, "new", directory=True)
    monkeypatch.undo()
    assert read(path) == "old"
    assert os.listdir(tmp_path) == ["directory"]


def test_a_file_does_not_replace_a_directory(tmp_path):
    write(tmp_path / "directory", "mine", directory=True)
    with pytest.raises(OSError):
        write(tmp_path / "directory", "x")
    assert read(tmp_path / "directory") == "mine"


def test_writers_of_one_directory(tmp_path):
    """Each sees its own or a later one; none fails, and nothing is left."""
    path, texts = tmp_path / "directory", [str(number) for number in range(4)]

    def write_often(text):
        for _ in range(50):
            write(path, text, directory=True)

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write_often, texts))
    assert read(path) in texts
    assert os.listdir(tmp_path) == ["directory"]
