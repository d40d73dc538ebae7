import hashlib
import os
import re
from pathlib import Path

import numpy as np
import pytest

from keras_vitx.data import load_dataset
from keras_vitx.data.sources.arrays import FASHION_MNIST

pytestmark = pytest.mark.backend_free
README = FASHION_MNIST.with_name("README.md").read_text("utf-8")


def test_it_holds_as_many_images_of_each_class():
    source = load_dataset("fashion_mnist")
    for split, count in ((source.train, 450), (source.validation, 50), (source.test, 100)):
        assert split.images.shape == (10 * count, 28, 28, 1)
        assert split.images.dtype == np.uint8
        assert np.bincount(split.labels).tolist() == [count] * 10
    assert source.class_names[0] == "T-shirt/top" and source.class_names[9] == "Ankle boot"
    images = load_dataset("fashion_mnist", validation_split=0).train.images
    assert len({image.tobytes() for image in images}) == 5000


def test_the_folder_is_small_and_its_readme_true():
    folder = FASHION_MNIST.parent
    assert sum(file.stat().st_size for file in folder.glob("*.*")) <= 3_000_000
    assert "MIT" in (folder / "LICENSE").read_text("utf-8")
    stated = re.search(r"`sample.npz`:\s+`([0-9a-f]{64})`", README)[1]
    assert hashlib.sha256(FASHION_MNIST.read_bytes()).hexdigest() == stated


def test_the_code_of_the_readme_draws_the_same_arrays(tmp_path, monkeypatch):
    folder = os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist")
    if not Path(folder, "train-images-idx3-ubyte.gz").is_file():
        pytest.skip(f"the full Fashion-MNIST is not in {folder}")
    monkeypatch.chdir(tmp_path)
    code = re.search("```python\n(.*?)```", README, re.DOTALL)[1]
    exec(code.replace("/usr/share/datasets/fashion-mnist", folder))
    with np.load("sample.npz") as again, np.load(FASHION_MNIST) as shipped:
        assert sorted(again.files) == sorted(shipped.files)
        for name in shipped.files:
            np.testing.assert_array_equal(again[name], shipped[name])
