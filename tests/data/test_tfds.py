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


def features():
    return {
        "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
        "label": tfds.features.ClassLabel(names=["disc", "square", "star"]),
    }


def built(directory, features, file_format="array_record", **splits):
    """Write a dataset as tensorflow-datasets does; a split is a list of examples."""

    class Shapes(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = directory

        def _info(self):
            features_dict = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features_dict)

        def _split_generators(self, manager):
            return {split: enumerate(examples) for split, examples in splits.items()}

        def _generate_examples(self):
            pass

    Shapes(data_dir=directory, file_format=file_format).download_and_prepare()
    # Read from its files alone, like any prepared dataset.
    tfds.core.registered._DATASET_REGISTRY.pop("shapes", None)
    return directory


def contents(part):
    return sorted(
        (image.tobytes(), int(label)) for image, label in zip(part.images, part.labels, strict=True)
    )


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
def test_its_splits_images_and_labels_are_read(tmp_path, file_format):
    splits = {"train": range(21), "test": range(21, 30), "validation": range(30, 36)}
    examples = {split: list(map(example, ids)) for split, ids in splits.items()}
    directory = built(tmp_path, features(), file_format, **examples)
    source = load_dataset("tfds:shapes", data_dir=directory)
    assert source.class_names == ("disc", "square", "star") and source.name == "tfds:shapes"
    for split, ids in splits.items():
        part = getattr(source, split)
        assert part.size == len(part.images) == len(ids)
        assert contents(part) == sorted((pixels(i).tobytes(), i % 3) for i in ids)
    file = next(directory.rglob(f"*train.{file_format}*"))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(OSError, match=r"shapes/1\.0\.0, split 'train' can't be read"):
        load_dataset("tfds:shapes", data_dir=directory)


def test_other_splits_and_features(tmp_path, caplog):
    unlabeled = [{**example(i), "label": -1} for i in range(3)]
    directory = built(tmp_path / "a", features(), train=map(example, range(30)), test=unlabeled)
    source = load_dataset("tfds:shapes", data_dir=directory, validation_split=0.2)
    assert "split 'test' has no labels" in caplog.text and source.test is None
    assert np.bincount(source.train.labels).tolist() == [8] * 3
    assert np.bincount(source.validation.labels).tolist() == [2] * 3
    both = contents(source.train) + contents(source.validation)
    assert sorted(both) == sorted((pixels(i).tobytes(), i % 3) for i in range(30))
    directory = built(tmp_path / "b", {"text": tfds.features.Text()}, train=[{"text": "x"}] * 3)
    with pytest.raises(ValueError, match="must have the features image and label"):
        load_dataset("tfds:shapes", data_dir=directory)


def test_mocked_data_are_read(tmp_path):
    with tfds.testing.mock_data(num_examples=12):
        source = load_dataset("tfds:mnist", data_dir=tmp_path, validation_split=0)
        assert source.train.size == 12 and len(source.class_names) == 10
        assert all(image.shape == (28, 28, 3) for image in source.train.images)


READING = """
import importlib.util, sys

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
source = kv.data.load_dataset("tfds:shapes", data_dir=sys.argv[1], validation_split=0)
model = kv.ViT(dim=8, depth=1, num_heads=2, patch_size=8, input_shape=(16, 16, 3), classes=3)
settings = {"epochs": 1, "warmup_epochs": 0, "batch_size": 3, "verbose": 0}
history = kv.fit(model, source, augmentation="random_resized_crop", **settings)
assert np.isfinite(history.history["loss"]).all() and "tensorflow" not in sys.modules
print(len([image.shape for image in source.train.images]))
"""


def test_array_record_is_trained_on_without_tensorflow(tmp_path):
    directory = built(tmp_path, features(), train=map(example, range(9)))
    backend = keras.backend.backend().replace("tensorflow", "torch")
    assert run_python(READING, directory, backend=backend).stdout.split()[-1] == "9"


def test_an_unknown_name_gives_the_nearest(tmp_path):
    with pytest.raises(ValueError, match=r"Received: 'cifar11'.*'cifar10"):
        load_dataset("tfds:cifar11", data_dir=tmp_path)
