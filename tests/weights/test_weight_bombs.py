"""Small `.keras` files that expand to huge sizes, opened with limited memory."""

import io
import json
import os
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from keras_vitx.weights import check_archive

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).resolve().parents[2]
LARGE = (1 << 27) + 0x12345  # A size that occurs nowhere else in the file.
CONFIG, WEIGHTS = "config.json", "model.weights.h5"


def h5_of(place, **storage):
    """A weights file with one array; a chunked one is not allocated, and is 128 MiB of zeros."""
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file.create_dataset(place, **storage)
    return content.getvalue()


SOUND = {
    CONFIG: b'{"class_name": "Functional", "config": {}}',
    WEIGHTS: h5_of("layers/dense/vars/0", data=np.ones((2, 2), "float32")),
}
CHUNKED = {"shape": (LARGE // 4,), "dtype": "float32", "chunks": (1 << 20,), "compression": "gzip"}


def packed(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def understated(path):
    """Pack 128 MiB of weights that declare 100 bytes, with the checksum of these."""
    packed(path, {**SOUND, WEIGHTS: bytes(LARGE)})
    content = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        crc = file.getinfo(WEIGHTS).CRC
    for old, new in ((LARGE, 100), (crc, zlib.crc32(bytes(100)))):
        assert content.count(old.to_bytes(4, "little")) == 2
        content = content.replace(old.to_bytes(4, "little"), new.to_bytes(4, "little"))
    path.write_bytes(content)


BOMBS = {
    "config": lambda path: packed(path, {**SOUND, CONFIG: b"[" + b" " * LARGE}),
    "weights": lambda path: packed(path, {**SOUND, WEIGHTS: bytes(LARGE)}),
    "asset": lambda path: packed(path, {**SOUND, "assets/words.txt": bytes(LARGE)}),
    "understated": understated,
    "array": lambda path: packed(path, {**SOUND, WEIGHTS: h5_of("layers/a/vars/0", **CHUNKED)}),
    "optimizer": lambda path: packed(
        path, {**SOUND, WEIGHTS: h5_of("optimizer/vars/0", **CHUNKED)}
    ),
    "unusual": lambda path: packed(path, {**SOUND, "x": bytes(1 << 20)}, zipfile.ZIP_LZMA),
}

OPEN = """
import json, resource, sys
import keras_vitx as kv
from keras_vitx.weights import check_archive
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
for path in sys.argv[1:]:
    found = []
    for function in (check_archive, kv.load):
        try:
            function(path)
            found.append("opened")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits memory as Linux does")
def test_bombs_are_refused_within_limited_memory(tmp_path):
    paths = []
    for name, write in BOMBS.items():
        paths.append(tmp_path / f"{name}.keras")
        write(paths[-1])
        assert paths[-1].stat().st_size < 1 << 20
    finished = subprocess.run(
        [sys.executable, "-c", OPEN, *paths],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    outcomes = [json.loads(line) for line in finished.stdout.splitlines()]
    assert len(outcomes) == len(paths), finished.stderr[-2000:]
    for path, errors in zip(paths, outcomes, strict=True):
        for error in errors:
            assert error.startswith("ValueError: ") and path.name in error
            assert "MemoryError" not in error


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_sound_archive_passes(tmp_path, compression):
    path = packed(tmp_path / "m.keras", {**SOUND, "metadata.json": "{}"}, compression)
    assert check_archive(path) == json.loads(SOUND[CONFIG])


@pytest.mark.parametrize("member", [CONFIG, WEIGHTS])
def test_a_missing_member_is_named(tmp_path, member):
    path = packed(tmp_path / "m.keras", {k: v for k, v in SOUND.items() if k != member})
    with pytest.raises(ValueError, match=rf"m\.keras: The file holds no {member}"):
        check_archive(path)


def test_a_file_that_is_absent_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        check_archive(tmp_path / "m.keras")
