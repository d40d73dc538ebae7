"""Damaged files of data, runs, folders and records: one clear error each, or a sound result.

`python tests/weights/test_mutated_sources.py COUNT` tries COUNT mutations of each kind.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vitx as kv
from keras_vitx.training.run import read_run

sys.path.insert(0, str(Path(__file__).parent))
from test_weight_fuzz import mutated

pytestmark = pytest.mark.backend_free

COUNT = 60


def write_npz(folder):
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype="uint8")
    path = folder / "file.npz"
    np.savez(path, x_train=images, y_train=np.arange(12) % 2, class_names=["cat", "dog"])
    return path


def write_records(folder):
    import io

    tf = pytest.importorskip("tensorflow")
    path = folder / "file.tfrecord"
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
    source = kv.data.load_dataset(str(path))
    for index in range(source.train.size):
        try:
            source.train.images[index]
        except OSError as error:  # As training and evaluation take it: the image is left out.
            assert str(path) in str(error)


def write_folder(folder):
    model = kv.CaiT(8, 1, 2, patch_size=8, class_depth=1, input_shape=(16, 16, 3), classes=2)
    kv.save(model, folder / "model")
    return folder / "model" / "config.json"


def write_recipe(folder):
    path = folder / "run.json"
    path.write_text(json.dumps({"recipe": kv.training.Recipe("short").to_dict()}))
    return path


def write_image(folder):
    path = folder / "image.png"
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype="uint8")
    Image.fromarray(pixels).save(path)
    return path


CASES = {
    "npz": (write_npz, read_source),
    "records": (write_records, read_source),
    "folder": (write_folder, lambda path: kv.load(path.parent)),
    "recipe": (write_recipe, kv.training.Recipe.read),
    "run": (write_recipe, lambda path: read_run(path.parent)),
    "image": (write_image, kv.data.decode_image),
}


def outcomes(kind: str, folder: Path, count: int) -> Counter:
    """Read `count` damaged files of a kind; return how often each came to what."""
    write, read = CASES[kind]
    path = write(folder)
    content, found = path.read_bytes(), Counter()
    read(path)
    for number in range(count):
        path.write_bytes(mutated(content, random.Random(f"{kind} {number}")))
        try:
            read(path)
            found["read"] += 1
        except (ValueError, OSError) as error:
            exact = type(error) in (ValueError, OSError)
            named = str(folder) in str(error) and len(str(error)) < 2000
            found["refused" if exact and named else f"{number}: {error!r:.300}"] += 1
        except Exception as error:
            found[f"{number}: {error!r:.300}"] += 1
    return found


@pytest.mark.parametrize("kind", CASES)
def test_a_damaged_file_is_read_or_is_one_clear_error(kind, tmp_path):
    found = outcomes(kind, tmp_path, COUNT)
    assert set(found) <= {"read", "refused"}
    assert found["refused"] > COUNT / 10


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    for case in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            tally = outcomes(case, Path(scratch), int(sys.argv[1]))
        odd = {key: n for key, n in tally.items() if key not in ("read", "refused")}
        print(case, tally["read"], "read", tally["refused"], "refused", len(odd), "odd", flush=True)
        print(*list(odd)[:12], sep="\n", flush=True)
