"""Damaged files of every kind: one clear error each, or a sound result.

They are read in a process of their own, which measures how much memory it takes, and how long.
`python tests/weights/test_mutations.py DIRECTORY COUNT [KIND ...]` tries COUNT mutations of each.
"""

import codecs
import ctypes
import io
import json
import os
import random
import signal
import struct
import subprocess
import sys
import warnings
import zipfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import SAVERS, make_tiny, weights_of

import keras_vitx as kv
from keras_vitx.training.resume import read_last_state, write_state
from keras_vitx.training.run import read_run
from keras_vitx.weights import load_weights, to_checkpoint

MUTATIONS = 100

# Time limit per file in seconds, a hundred times what any takes.
PATIENCE = 20

# Memory allowed for a load besides twice the file size: Python's allocations (it requests
# a MiB at a time), error messages, and buffers of a MiB for unzipping.
SLACK = 8 << 20

LIMITS_MEMORY = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="measures memory as Linux tells it"
)
pytestmark = [pytest.mark.backend_free, LIMITS_MEMORY]


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Damage a file's content in one of seven ways."""
    content, length = bytearray(content), draw.choice((1, 2, 4, 8, 50, 1000))
    last = max(len(content) - length, 0)
    # Headers and indexes are at the ends, and short.
    near = draw.randint(0, min(last, 3000))
    start = draw.choice((draw.randint(0, last), near, last - near))
    way, end = draw.randrange(7), start + length
    if way == 0:
        content[start] ^= 1 << draw.randrange(8)
    elif way == 1:
        del content[start:]
    elif way == 2:
        del content[start:end]
    elif way == 3:
        content[start:start] = draw.randbytes(length)
    elif way == 4:
        content[start:end] = draw.randbytes(length)
    elif way == 5:
        content[start:end] = bytes(length)
    else:
        number = draw.choice((2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1))
        start -= start % draw.choice((1, 4, 8))
        content[start : start + 8] = struct.pack("<Q", number)
    return bytes(content)


def resealed(content: bytes, draw: random.Random) -> bytes:
    """Damage one member of an archive and write correct checksums."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        names = old.namelist()
        # The members that are more than arrays of numbers.
        chosen = draw.choice([n for n in names if n.endswith((".pkl", ".json", ".h5"))])
        for name in names:
            data = old.read(name)
            new.writestr(name, mutated(data, draw) if name == chosen else data)
    return result.getvalue()


def memory(name: str) -> int:
    """Bytes of memory of this process: VmRSS now, VmHWM the peak since it was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def attempt(load) -> tuple[BaseException | None, int]:
    """Call a function; return the error and the memory that it took."""
    error = None
    signal.alarm(PATIENCE)
    # Freed memory that is kept for later would hide new allocations.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    held = memory("VmRSS")
    try:
        load()
    except BaseException as caught:
        error = caught
    signal.alarm(0)
    return error, memory("VmHWM") - held


WEIGHTS = (*SAVERS, ".old.pth")


def write_weights(kind: str, model, directory: Path) -> Path:
    """Write the weights of a model as a sound file."""
    path = directory / f"file{kind}"
    if kind in SAVERS:
        SAVERS[kind](model, path)
    else:
        import torch

        state = {name: torch.tensor(np.array(a)) for name, a in to_checkpoint(model).items()}
        torch.save({"model": state, "epoch": 3}, path, _use_new_zipfile_serialization=False)
    return path


def write_npz(directory):
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype="uint8")
    path = directory / "file.npz"
    np.savez(path, x_train=images, y_train=np.arange(12) % 2, class_names=["cat", "dog"])
    return path


def write_records(directory):
    import tensorflow as tf

    path = directory / "file.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for label in range(8):
            image = io.BytesIO()
            Image.fromarray(np.full((8, 8, 3), 20 * label, "uint8")).save(image, "PNG")
            lists = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.getvalue()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label % 2])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=lists))
            writer.write(example.SerializeToString())
    return path


def read_source(path):
    source = kv.data.load_dataset(str(path), validation_split=0)
    for index in range(source.train.size):
        try:
            source.train.images[index]
        except OSError as error:  # As training and evaluation take it: the image is left out.
            assert str(path) in str(error)


def write_directory(directory):
    model = kv.CaiT(8, 1, 2, patch_size=8, class_depth=1, input_shape=(16, 16, 3), classes=2)
    kv.save(model, directory / "model")
    return directory / "model" / "config.json"


def write_recipe(directory):
    path = directory / "run.json"
    path.write_text(json.dumps({"recipe": kv.training.Recipe("short").to_dict()}))
    return path


def write_archive(directory):
    model = kv.CaiT(8, 1, 2, patch_size=8, class_depth=1, input_shape=(16, 16, 3), classes=2)
    model.save(directory / "model.keras")
    return directory / "model.keras"


def write_table(directory):
    rows = [f"{write_image(directory, f'.{i}.png').name},{i % 2},train" for i in range(6)]
    (directory / "table.csv").write_text("\n".join(["file,label,split", *rows]))
    return directory / "table.csv"


def write_checkpoint(directory):
    (directory / "checkpoints").mkdir()
    state = {"values": [np.zeros(9, "float32")] * 2, "random": {"numpy": list(range(50))}}
    return write_state(directory / "checkpoints", 3, state)


def write_image(directory, suffix=".png"):
    path = directory / f"image{suffix}"
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype="uint8")
    Image.fromarray(pixels).save(path)
    return path


OTHERS = {
    "npz": (write_npz, read_source),
    "records": (write_records, read_source),
    "directory": (write_directory, lambda path: kv.load(path.parent)),
    "recipe": (write_recipe, kv.training.Recipe.read),
    "run": (write_recipe, lambda path: read_run(path.parent)),
    "archive": (write_archive, kv.load),
    "checkpoint": (write_checkpoint, lambda path: read_last_state(path.parent)),
    "csv": (write_table, read_source),
    **{
        suffix: (partial(write_image, suffix=suffix), kv.data.decode_image)
        for suffix in (".png", ".jpg", ".gif", ".webp", ".tif", ".bmp", ".ppm", ".tga", ".jp2")
    },
}


def weights_reader(source, model):
    """Return a function that loads a file of the weights of `source` into `model`."""
    right, before = weights_of(source), weights_of(model)

    def is_same(wanted):
        found = weights_of(model)
        return all(found[name].tobytes() == wanted[name].tobytes() for name in found)

    def read(path):
        try:
            load_weights(model, path)
            # Without a checksum, a flipped bit in a number gives a valid number.
            if path.name in ("file.pth", "file.keras"):
                assert is_same(right), "other weights were loaded"
        except (ValueError, OSError):
            assert is_same(before), "the model is changed"
            raise
        for variable in model.weights:
            variable.assign(before[variable.path])

    return read


def fuzz(kind: str, path: Path, read, count: int) -> dict:
    """Read `count` damaged versions of a file; return the outcomes."""
    read(path)  # The sound file, which triggers lazy imports.
    content, result = path.read_bytes(), {"read": 0, "refused": 0, "wrong": []}
    for number in range(count):
        # Whoever kills this process can tell which file it was.
        print(f"{kind} {number}", file=sys.stderr, flush=True)
        target, change = path, mutated
        if kind in (".pth", ".keras", "archive") and number % 2 == 0:
            target, change = path.with_stem("sealed"), resealed
        target.write_bytes(change(content, random.Random(f"{kind}{number}")))
        load = partial(read, target)
        error, taken = attempt(load)
        allowed = 2 * target.stat().st_size + SLACK
        if kind in WEIGHTS and taken > allowed:
            # The first error in a library loads its error tables.
            _, taken = attempt(load)
            if taken > allowed:
                result["wrong"].append(f"{number} takes {taken} bytes, {allowed} allowed")
        result["read" if error is None else "refused"] += 1
        # An error about weights lists all that doesn't fit.
        # What the values of a table can't be names the row, not the file.
        is_named = kind == "csv" or str(path.parent) in str(error)
        is_clear = is_named and len(str(error)) < 20_000
        if error is not None and not (is_clear and type(error) in (ValueError, OSError)):
            result["wrong"].append(f"{number} raises {error!r:.300}")
    return result


def main(directory: Path, count: int, *kinds: str) -> None:
    """Print one line per kind of file: its name, and the outcomes of its mutations."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # With which the names in archives and the texts of pickles are decoded.
    codecs.lookup("cp437")
    codecs.lookup("raw_unicode_escape")
    large = make_tiny(dim=512, depth=2, class_depth=1)
    small = {"dim": 8, "depth": 1, "class_depth": 1, "num_heads": 2, "input_shape": (16, 16, 3)}
    source, model = make_tiny(**small), make_tiny(**small)
    read_weights = weights_reader(source, model)
    for kind in set(WEIGHTS) & set(kinds or WEIGHTS):
        path = write_weights(kind, large, directory)
        error, taken = attempt(partial(load_weights, large, path))
        sound = {"error": error and repr(error), "memory": taken, "size": path.stat().st_size}
        result = fuzz(kind, write_weights(kind, source, directory), read_weights, count)
        print(json.dumps([kind, {**result, "sound": sound}]), flush=True)
    for kind, (write, read) in OTHERS.items():
        if kind in (kinds or OTHERS) and (kind != "records" or find_spec("tensorflow")):
            print(json.dumps([kind, fuzz(kind, write(directory), read, count)]), flush=True)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """The outcomes of the mutations of each kind of file, all from one process."""
    pytest.importorskip("torch")
    here = Path(__file__).resolve()
    finished = subprocess.run(
        [sys.executable, here, tmp_path_factory.mktemp("fuzz"), str(MUTATIONS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(here.parents[2]), *sys.path))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    last = finished.stderr[-2000:]
    return dict(json.loads(line) for line in finished.stdout.splitlines()), last


@pytest.mark.parametrize("kind", [*WEIGHTS, *OTHERS])
def test_a_damaged_file_is_read_or_is_one_clear_error(outcome, kind):
    results, last = outcome
    if kind == "records" and not find_spec("tensorflow"):
        pytest.skip("needs TensorFlow")
    assert kind in results, f"the process ended at {last}"
    result = results[kind]
    assert result["wrong"] == []
    assert result["read"] + result["refused"] == MUTATIONS
    assert result["refused"] > MUTATIONS / 10, "the mutations are too tame"
    assert result["read"] or kind not in WEIGHTS, "the mutations are too wild"


@pytest.mark.parametrize("kind", WEIGHTS)
def test_sound_weights_are_read_one_array_at_a_time(outcome, kind):
    sound = outcome[0][kind]["sound"]
    assert sound["error"] is None
    # The file's pages and a few copies of an array at a time; under JAX, new variables
    # beside the old ones, too.
    assert sound["size"] > 4 * SLACK and sound["memory"] <= 3 * sound["size"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
