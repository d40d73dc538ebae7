"""The files of ImageNet-A, -R, -V2 and -ReaL, and ImageNet's classes by their names."""

import json
import runpy

import keras
import numpy as np
import pytest
from harness import ROOT, randomize, save_picture

import keras_vitx as kv
from keras_vitx.data.predictions import imagenet_classes

pytestmark = pytest.mark.backend_free
EXAMPLE = ROOT / "examples" / "real_labels.py"
SYNSETS = [synset for synset, _ in imagenet_classes()]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    model = kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 16, 3))
    randomize(model)
    model.preprocessing = model.preprocessing.replace(crop_ratio=1.0)
    return model


def outputs_of(model, *paths):
    """Write a picture of noise to each path; return the model's outputs for them."""
    random = np.random.default_rng(len(paths))
    for path in paths:
        save_picture(path, random.integers(0, 256, (16, 16, 3), "uint8"), format="PNG")
    return model.predict(kv.preprocess_input(list(paths), model), verbose=0)


def test_directories_of_some_synsets(model, tmp_path):
    """As ImageNet-A and -R, which have 200 of the 1,000 classes."""
    chosen = [5, 300, 700]
    paths = [tmp_path / SYNSETS[c] / f"{i}.png" for c in chosen for i in range(2)]
    outputs = outputs_of(model, *paths)
    # The first image is right.
    wins = int(outputs[0].argmax())
    (tmp_path / SYNSETS[5]).rename(tmp_path / SYNSETS[wins])
    chosen = sorted([wins, 300, 700])
    outputs = outputs[np.argsort(np.repeat([wins, 300, 700], 2), kind="stable")]
    found = kv.evaluate(model, tmp_path, "train")
    right = outputs.argmax(-1) == np.repeat(chosen, 2)
    assert found["accuracy"] == pytest.approx(right.mean()) and right.any()
    among = outputs[:, chosen] / outputs[:, chosen].sum(-1, keepdims=True)
    found = kv.evaluate(model, tmp_path, "train", restrict=True, predictions=True)
    of_labels = among[np.arange(6), np.repeat(range(3), 2)]
    assert found["loss"] == pytest.approx(-np.log(of_labels).mean(), rel=1e-3)
    assert found["class_names"] == tuple(SYNSETS[c] for c in chosen)
    np.testing.assert_allclose(found["probabilities"], among, rtol=1e-4)


def test_numbered_directories(model, tmp_path):
    """As ImageNet-V2, where "10" sorts before "2"."""
    labels = np.array([2, 10, 7, 999])
    outputs = outputs_of(model, *(tmp_path / f"{label}" / "0.png" for label in labels))
    own = outputs[np.arange(4), labels]
    found = kv.evaluate(model, tmp_path, "train")
    assert found["loss"] == pytest.approx(-np.log(own).mean(), rel=1e-3)
    among = (outputs > own[:, None]).sum(-1) < 5
    assert found["top_5_accuracy"] == pytest.approx(among.mean())


def test_several_right_labels(model, tmp_path):
    names = [f"ILSVRC2012_val_{i:08}.JPEG" for i in (1, 2, 3, 5)]
    best = outputs_of(model, *(tmp_path / "val" / name for name in names)).argmax(-1).tolist()
    # The image 2 has no label, the image 4 is missing.
    listed = [[3, best[0]], [], [(best[2] + 1) % 1000], [1], [best[3]]]
    (tmp_path / "real.json").write_text(json.dumps(listed))
    example = runpy.run_path(EXAMPLE)
    found = example["real_accuracy"](model, tmp_path / "val", tmp_path / "real.json")
    assert found == pytest.approx(2 / 3)
