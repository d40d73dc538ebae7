"""The files of ImageNet-A, -R, -V2 and -ReaL, and ImageNet's classes by their names."""

import json

import keras
import numpy as np
import pytest
from harness import randomize
from PIL import Image

import keras_vitx as kv
from keras_vitx.data.predictions import imagenet_classes

pytestmark = pytest.mark.backend_free
SYNSETS = [synset for synset, _ in imagenet_classes()]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    model = kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 16, 3))
    randomize(model)
    model.preprocessing = model.preprocessing.replace(crop_ratio=1.0)
    return model


def picture(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), "uint8")
    Image.fromarray(pixels).save(path, format="PNG")
    return pixels


def outputs_of(model, images):
    return model.predict(kv.preprocess_input(np.stack(images), model), verbose=0)


def directory_of(path, names, each=2):
    images = [
        picture(path / name / f"{i}.png", [i, seed])
        for seed, name in enumerate(names)
        for i in range(each)
    ]
    return path, images


def test_directories_of_synsets(model, tmp_path):
    """ImageNet-A and -R have 200 of the 1,000 classes; here some, chosen by the predictions."""
    images = [picture(tmp_path / "probe.png", [i, seed]) for seed in range(3) for i in range(2)]
    outputs = outputs_of(model, images)
    # The first class is right for its first image; the others are not the best ones.
    chosen = sorted({int(outputs[0].argmax()), 5, 700})
    directory, images = directory_of(tmp_path / "r", [SYNSETS[c] for c in chosen])
    outputs, labels = outputs_of(model, images), np.repeat(chosen, 2)
    found = kv.evaluate(model, directory, "train", validation_split=0)
    assert found["accuracy"] == pytest.approx((outputs.argmax(-1) == labels).mean())
    among = outputs[:, chosen] / outputs[:, chosen].sum(-1, keepdims=True)
    restricted = kv.evaluate(
        model, directory, "train", validation_split=0, restrict=True, confusion=True
    )
    right = among.argmax(-1) == np.repeat(range(3), 2)
    assert restricted["accuracy"] == pytest.approx(right.mean())
    loss = -np.log(among[np.arange(6), np.repeat(range(3), 2)]).mean()
    assert restricted["loss"] == pytest.approx(loss, rel=1e-3)
    assert restricted["class_names"] == tuple(SYNSETS[c] for c in chosen)
    assert restricted["confusion"].shape == (3, 3)


def test_numbered_directories(model, tmp_path):
    """ImageNet-V2: "10" sorts before "2"."""
    numbers = [2, 10, 7, 999]
    directory, images = directory_of(tmp_path / "v2", map(str, numbers))
    outputs = outputs_of(model, images)
    rank = [
        (row > row[label]).sum() < 5
        for row, label in zip(outputs, np.repeat(numbers, 2), strict=True)
    ]
    found = kv.evaluate(model, directory, "train", validation_split=0)
    log = -np.log(outputs[np.arange(8), np.repeat(numbers, 2)]).mean()
    assert found["loss"] == pytest.approx(log, rel=1e-3)
    assert found["top_5_accuracy"] == pytest.approx(np.mean(rank))


def test_several_right_labels(model, tmp_path):
    names = [f"ILSVRC2012_val_{i:08}.JPEG" for i in (1, 2, 3, 5)]
    images = [picture(tmp_path / "val" / name, i) for i, name in enumerate(names)]
    best = outputs_of(model, images).argmax(-1).tolist()
    # The image 2 has no label, the image 4 is missing.
    listed = [[3, best[0]], [], [(best[2] + 1) % 1000], [1], [best[3]]]
    (tmp_path / "real.json").write_text(json.dumps(listed))
    source = kv.data.load_real(tmp_path / "val", tmp_path / "real.json")
    found = kv.evaluate(model, source)
    assert (found["images"], found["split"]) == (3, "test")
    assert found["accuracy"] == pytest.approx(2 / 3)
    (row,) = kv.robustness.curve(model, source, "occlude", [0])
    assert row["accuracy"] == pytest.approx(2 / 3)


def test_bad_input(model, tmp_path):
    picture(tmp_path / "val" / "ILSVRC2012_val_00000002.JPEG", 0)
    (tmp_path / "real.json").write_text("[[1]]")
    with pytest.raises(ValueError, match="with 1, none for ILSVRC2012_val_00000002"):
        kv.data.load_real(tmp_path / "val", tmp_path / "real.json")
    (tmp_path / "real.json").write_text("[[1], [1000]]")
    with pytest.raises(ValueError, match=r"integers in 0\.\.999"):
        kv.data.load_real(tmp_path / "val", tmp_path / "real.json")
    images = np.zeros((4, 16, 16, 3), "uint8"), np.arange(4) % 2
    with pytest.raises(ValueError, match="`restrict` must be False"):
        kv.evaluate(
            kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=4), images, restrict=True
        )
