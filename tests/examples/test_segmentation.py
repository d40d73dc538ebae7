"""The masks and crops of examples/segmentation."""

import numpy as np
import pytest
from harness import ROOT, save_picture
from PIL import Image

import keras_vitx as kv

pytestmark = pytest.mark.backend_free
RANDOM = np.random.default_rng(0)


@pytest.fixture
def example(monkeypatch):
    """Import a module of the example."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "segmentation")
    return __import__


def scene(size=(20, 30)):
    """An image whose red channel tells the class: 10 times the label, 250 where ignored."""
    mask = RANDOM.integers(0, 4, (2, 3)).repeat(10, axis=0).repeat(10, axis=1).astype("int32")
    mask[:3] = 255
    image = np.full((*size, 3), 128, "uint8")
    image[..., 0] = np.where(mask == 255, 250, 10 * mask)
    return image, mask


def write(directory, pairs, images, masks, sub="", shift=0):
    for i, (image, mask) in enumerate(pairs):
        save_picture(directory / images / sub / f"{i}.png", image)
        labels = np.where(mask == 255, 0 if shift else 255, mask + shift).astype("uint8")
        picture = Image.fromarray(labels)
        picture.putpalette(RANDOM.integers(0, 256, 768, "uint8").tobytes())
        (directory / masks / sub).mkdir(parents=True, exist_ok=True)
        picture.save(directory / masks / sub / f"{i}.png")


def test_directories(example, tmp_path):
    """Labels stay those of their pixels; ADE20K's 0 is ignored."""
    load, pairs, names = example("masks").load, [scene(), scene()], "a\nb\nc\nd\n"
    for sub in ("train", "val"):
        write(tmp_path / "plain", pairs, "images", "masks", sub)
    write(tmp_path / "voc", pairs, "JPEGImages", "SegmentationClass")
    for sub in ("training", "validation"):
        write(tmp_path / "ade", pairs, "images", "annotations", sub, shift=1)
    for name in ("plain", "voc"):
        (tmp_path / name / "class_names.txt").write_text(names)
    rows = "".join(f"{i}\t.1\t1\t1\t1\t{name}, other\n" for i, name in enumerate(names.split()))
    (tmp_path / "ade" / "objectInfo150.txt").write_text(
        f"Idx\tRatio\tTrain\tVal\tStuff\tName\n{rows}"
    )
    for name in ("plain", "voc", "ade"):
        *parts, found = load(tmp_path / name)
        assert found == list("abcd")
        for part in parts:
            assert len(part) == 2
            for ours, expected in zip(part, pairs, strict=True):
                np.testing.assert_array_equal(ours[0], expected[0])
                np.testing.assert_array_equal(ours[1], expected[1])


def test_crops_keep_the_labels_of_their_pixels(example):
    model = kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 24, 3))
    Crops, pairs = example("crops").Crops, [scene() for _ in range(6)]
    mean, std = model.preprocessing.mean[0], model.preprocessing.std[0]
    crops = {scale: Crops(pairs, model, 3, (scale, scale)) for scale in (0.5, 1.0, 2.5)}
    assert len(crops[1.0]) == 2
    for batches in crops.values():
        x, y = batches[1]
        assert x.shape == (3, 16, 24, 3) and y.shape == (3, 16, 24)
        assert set(np.unique(y)) <= {0, 1, 2, 3, 255}
        padded = ~x.any(-1)
        assert (y[padded] == 255).all()
        red = np.rint((x[..., 0] * std + mean) * 255)
        # Pixels at the borders of classes have mixed colors.
        right = np.abs(red - np.where(y == 255, 250, 10 * y)) < 3
        assert right[~padded].mean() > 0.6
    assert (crops[0.5][0][1][:, 8:] == 255).all()
    first = crops[1.0][1]
    crops[1.0].set_epoch(1)
    assert (crops[1.0][1][0] != first[0]).any()
    crops[1.0].set_epoch(0)
    np.testing.assert_array_equal(crops[1.0][1][0], first[0])


def test_pictures(example):
    masks = example("masks")
    assert masks.palette(4).tolist() == [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0]]
    image, mask = np.full((2, 2, 3), 100, "uint8"), np.array([[0, 1], [255, 2]])
    drawn = masks.overlay(image, mask, opacity=0.5)
    assert drawn[0, 0].tolist() == drawn[1, 0].tolist() == [100, 100, 100]
    assert drawn[0, 1].tolist() == [114, 50, 50]
