import functools

import keras
import numpy as np
import pytest
from harness import run_python

from keras_vitx.data import load_dataset

tfds = pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.backend_free


def pixels(i):
    return np.random.default_rng(i).integers(256, size=(5 + i % 3, 6, 3), dtype="uint8")


def example(i):
    return {"image": pixels(i), "label": i % 3}


FEATURES = {
    "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
    "label": tfds.features.ClassLabel(names=["disc", "square", "star"]),
}


def built(directory, file_format="array_record", **splits):
    """Write a dataset as tensorflow-datasets does; a split is a list of examples."""
    tfds.dataset_builders.store_as_tfds_dataset(
        "shapes",
        "1.0.0",
        tfds.features.FeaturesDict(FEATURES),
        {split: list(enumerate(examples)) for split, examples in splits.items()},
        data_dir=directory,
        file_format=file_format,
    )
    return directory


def contents(part):
    return sorted(
        (image.tobytes(), int(label)) for image, label in zip(part.images, part.labels, strict=True)
    )


@pytest.fixture
def open_in(monkeypatch):
    """A function that opens the dataset of a directory."""

    def open_dataset(directory, **options):
        with monkeypatch.context() as patched:
            patched.setattr(tfds, "builder", functools.partial(tfds.builder, data_dir=directory))
            return load_dataset("tfds:shapes", **options)

    return open_dataset


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
def test_its_splits_images_and_labels_are_read(tmp_path, open_in, file_format):
    splits = {"train": range(21), "test": range(21, 30), "validation": range(30, 36)}
    examples = {split: list(map(example, ids)) for split, ids in splits.items()}
    source = open_in(built(tmp_path, file_format, **examples))
    assert source.class_names == ("disc", "square", "star") and source.name == "tfds:shapes"
    for split, ids in splits.items():
        part = getattr(source, split)
        assert len(part) == len(part.images) == len(ids)
        assert contents(part) == sorted((pixels(i).tobytes(), i % 3) for i in ids)


def test_a_test_split_without_labels_is_left_out(tmp_path, open_in):
    unlabeled = [{**example(i), "label": -1} for i in range(3)]
    directory = built(tmp_path, train=map(example, range(30)), test=unlabeled)
    source = open_in(directory, validation_split=0.2)
    assert source.test is None
    assert np.bincount(source.train.labels).tolist() == [8] * 3
    assert np.bincount(source.validation.labels).tolist() == [2] * 3


READING = """
import importlib.util, os, sys

os.environ["TFDS_DATA_DIR"] = sys.argv[1]

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: (
    None if name.partition(".")[0] == "tensorflow" else find_spec(name, *rest)
)
sys.meta_path.insert(0, Hidden())
import numpy as np
import keras_vitx as kv
source = kv.data.load_dataset("tfds:shapes")
model = kv.ViT(dim=8, depth=1, num_heads=2, patch_size=8, input_shape=(16, 16, 3), classes=3)
settings = {"epochs": 1, "warmup_epochs": 0, "batch_size": 3}
history = kv.fit(model, source, augmentation="random_resized_crop", **settings)
assert np.isfinite(history.history["loss"]).all() and "tensorflow" not in sys.modules
print(len([image.shape for image in source.train.images]))
"""


def test_array_record_is_trained_on_without_tensorflow(tmp_path):
    directory = built(tmp_path, train=map(example, range(9)))
    backend = keras.backend.backend().replace("tensorflow", "torch")
    assert run_python(READING, directory, backend=backend).stdout.split()[-1] == "9"
