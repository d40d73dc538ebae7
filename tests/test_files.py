"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from keras_vitx.files import atomic_write, local_path

pytestmark = pytest.mark.backend_free


def write(path, text, directory=False):
    """Write a file, or a directory with one file."""
    with atomic_write(path) as temporary:
        if directory:
            temporary.mkdir()
        (temporary / "file" if directory else temporary).write_text(text)


def read(path):
    return (path / "file" if path.is_dir() else path).read_text()


@pytest.mark.parametrize("name", ["model.weights.h5", "x" * 255, "ä\n"])
@pytest.mark.parametrize("directory", [False, True])
def test_whole_or_not_at_all(tmp_path, name, directory):
    path = tmp_path / "new" / "directory" / name
    for text in ("old", "new"):
        write(path, text, directory)
        assert read(path) == text
    with pytest.raises(OSError, match="full"), atomic_write(path) as temporary:
        assert temporary.suffixes == path.suffixes
        temporary.write_text("newer")
        raise OSError("the disk is full")
    assert read(path) == "new" and os.listdir(path.parent) == [name]


def test_a_file_does_not_replace_a_directory(tmp_path):
    write(tmp_path / "directory", "mine", directory=True)
    with pytest.raises(OSError):
        write(tmp_path / "directory", "x")
    assert read(tmp_path / "directory") == "mine"


def test_an_exchange_that_fails_leaves_the_old_directory(tmp_path, monkeypatch):
    write(tmp_path / "directory", "old", directory=True)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "directory", "new", directory=True)
    assert read(tmp_path / "directory") == "old"


def test_a_link_is_followed_and_what_is_protected_stays(tmp_path):
    (tmp_path / "link").symlink_to("target")
    for text in ("old", "new"):  # Of a link to nothing, and to a file.
        write(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink() and read(tmp_path / "target") == text
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="neither a file nor a directory"):
        write(tmp_path / "pipe", "x")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("path", ["gs://b/m", "s3://b/m.onnx", "hf://a/b", Path("gs://b/m")])
def test_an_address_is_no_path(path):
    with pytest.raises(ValueError, match="Write to a local path and copy it"):
        local_path(path)


def test_the_directory_of_the_user(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert local_path("~/C:/m.keras") == Path("/home/me/C:/m.keras")
    assert local_path("C:/m.keras") == Path("C:/m.keras")
