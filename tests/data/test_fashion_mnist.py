import hashlib
import importlib.util
import os
import re
from pathlib import Path

import numpy as np
import pytest

from keras_vitx.data import load_dataset
from keras_vitx.data.sources.arrays import FASHION_MNIST

pytestmark = pytest.mark.backend_free

# Folder of the full dataset; the default is that of Debian's package.
FULL = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))


@pytest.fixture(scope="module")
def draw():
    spec = importlib.util.spec_from_file_location("draw", FASHION_MNIST.with_name("draw.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_holds_as_many_images_of_each_class():
    source = load_dataset("fashion_mnist")
    for split, count in ((source.train, 450), (source.validation, 50), (source.test, 100)):
        assert split.images.shape == (10 * count, 28, 28, 1)
        assert split.images.dtype == np.uint8
        assert np.bincount(split.labels).tolist() == [count] * 10
    assert source.class_names[0] == "T-shirt/top" and source.class_names[9] == "Ankle boot"


def test_no_image_is_there_twice():
    images = load_dataset("fashion_mnist", validation_split=0).train.images
    assert len({image.tobytes() for image in images}) == 5000


def test_the_folder_is_small_and_its_readme_true():
    folder = FASHION_MNIST.parent
    assert sum(file.stat().st_size for file in folder.glob("*.*")) <= 3_000_000
    assert "MIT" in (folder / "LICENSE").read_text("utf-8")
    readme = (folder / "README.md").read_text("utf-8")
    stated = re.search(r"`sample.npz`:\s+`([0-9a-f]{64})`", readme)[1]
    assert hashlib.sha256(FASHION_MNIST.read_bytes()).hexdigest() == stated


def test_drawing_again_gives_the_same_arrays(draw):
    if not (FULL / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip(f"the full Fashion-MNIST is not in {FULL}")
    again = draw.sample(FULL)
    with np.load(FASHION_MNIST) as shipped:
        assert sorted(again) == sorted(shipped.files)
        for name in shipped.files:
            np.testing.assert_array_equal(again[name], shipped[name])
