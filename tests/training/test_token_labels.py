"""Token labels follow the augmentation of their image."""

import keras
import numpy as np
import pytest
from harness import array

import keras_vitx as kv
from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.windows import Window
from keras_vitx.layers import ClassToken, DenseHead, PatchEmbedding
from keras_vitx.models import Chain
from keras_vitx.training import SmoothedCrossentropy, TokenLabels
from keras_vitx.training.targets import sample

pytestmark = pytest.mark.backend_free
CLASSES = 3
RANDOM = np.random.default_rng(0)
GRIDS = RANDOM.dirichlet(np.ones(CLASSES), (5, 4, 4)).astype("float32")
BLOCKS = RANDOM.integers(0, CLASSES, (36, 4, 4))
# Each class is a color, that of each patch.
COLORS = (255 * np.eye(CLASSES)[BLOCKS]).astype("uint8").repeat(4, 1).repeat(4, 2)
SOURCE = COLORS, np.arange(36) % CLASSES
BY_COLOR = np.eye(CLASSES, dtype="float32")[BLOCKS]
SHORT = {"batch_size": 9, "warmup_epochs": 0, "verbose": 0}


def model_of(size=(16, 16)):
    keras.utils.set_random_seed(0)
    head = DenseHead(CLASSES, "softmax", name="head")
    layers = [PatchEmbedding(6, 4, name="stem"), ClassToken(name="token"), head]
    return Chain(layers, (*size, 3), preprocessing=kv.Preprocessing((0.5,) * 3, (0.5,) * 3))


def bilinear(grid, y, x):
    """The value at (y, x), where the center of cell (i, j) is at (i + 1/2, j + 1/2)."""
    y, x = (min(max(v - 0.5, 0), n - 1) for v, n in zip((y, x), grid.shape, strict=False))
    i, j = int(y), int(x)
    below, right = min(i + 1, len(grid) - 1), min(j + 1, grid.shape[1] - 1)
    top = (1 - (x - j)) * grid[i, j] + (x - j) * grid[i, right]
    bottom = (1 - (x - j)) * grid[below, j] + (x - j) * grid[below, right]
    return (1 - (y - i)) * top + (y - i) * bottom


PART = Window(0.1, 0.3, 0.5, 0.6)
WINDOWS = {
    "whole": Window(),
    "part": PART,
    "tiny": Window(0.4, 0.2, 0.1, 0.05),
    "shifted": Window(-0.125, 0.0625),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("flip", (False, True))
@pytest.mark.parametrize("size", ((2, 3), (4, 4), (7, 5)))
def test_sampling_is_roi_align(name, flip, size):
    grid, window = RANDOM.random((4, 6, 2)), WINDOWS[name]
    expected = np.zeros((*size, 2))
    height, width = window.height * 4 / size[0], window.width * 6 / size[1]
    down, right = (max(int(np.ceil(side)), 1) for side in (height, width))
    for a, b in np.ndindex(size):
        samples = [
            bilinear(
                grid,
                window.top * 4 + (a + (i + 0.5) / down) * height,
                window.left * 6 + (b + (j + 0.5) / right) * width,
            )
            for i, j in np.ndindex(down, right)
        ]
        expected[a, size[1] - 1 - b if flip else b] = np.mean(samples, 0)
    np.testing.assert_allclose(sample(grid, window._replace(flip=flip), size), expected, atol=1e-6)


def test_the_grid_of_an_image():
    """Whole, in part, and at another resolution: labels on a grid of 3, patches on one of 5."""
    labels = TokenLabels(GRIDS, model_of())
    np.testing.assert_allclose(labels(3, Window()), GRIDS[3].reshape(16, CLASSES), atol=1e-6)
    np.testing.assert_allclose(labels(1, PART).sum(-1), 1, atol=1e-6)
    window = PART._replace(flip=True)
    found = TokenLabels(GRIDS, model_of((20, 20)), relabel_size=3)(1, window)
    expected = sample(sample(GRIDS[1], window, (3, 3)), Window(), (5, 5))
    np.testing.assert_allclose(found, expected.reshape(25, CLASSES), atol=1e-6)


@pytest.mark.parametrize("from_logits", (False, True))
@pytest.mark.parametrize("among", (2, 3))
def test_the_highest_scores(from_logits, among):
    """Two scores per place, of all classes or of the first two alone."""
    scores = RANDOM.uniform(0.2, 0.5, (5, 4, 4, 2)).astype("float32")
    classes = np.argsort(RANDOM.random((5, 4, 4, among)), -1)[..., :2]
    dense = np.zeros((5, 4, 4, CLASSES), "float32")
    dense[...] = 0 if from_logits else 1 - scores.sum(-1, keepdims=True)
    np.put_along_axis(dense, classes, scores, -1)
    given = TokenLabels((scores, classes), model_of(), from_logits)
    expected = sample(dense[2], PART, (4, 4)).reshape(16, CLASSES)
    if from_logits:
        expected = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    np.testing.assert_allclose(given(2, PART), expected, atol=1e-6)
    np.testing.assert_allclose(given(2, Window()).sum(-1), 1, atol=1e-6)
    by_path = TokenLabels({"a/2.jpg": (scores[2], classes[2])}, model_of(), from_logits)
    np.testing.assert_array_equal(by_path("a/2.jpg", Window()), given(2, Window()))


def test_the_class_head_learns_the_pooled_labels():
    """The released loss never reads the image's own label; `relabel=False` reads nothing else."""
    logits = RANDOM.normal(size=(5, 4, 4, CLASSES)).astype("float32")
    pooled = np.exp(sample(logits[2], PART, (1, 1))[0, 0])
    found = TokenLabels(logits, model_of(), from_logits=True).of_image(2, PART)
    np.testing.assert_allclose(found, pooled / pooled.sum(), atol=1e-6)
    mean = TokenLabels(GRIDS, model_of()).of_image(3, Window(flip=True))
    np.testing.assert_allclose(mean, GRIDS[3].mean((0, 1)), atol=1e-6)

    source, twos = (COLORS[:8], np.arange(8) % 2), np.zeros((8, 4, 4, CLASSES), "float32")
    twos[..., 2] = 1
    for relabel, expected in ((True, [2] * 8), (False, [0] * 4 + [1] * 4)):
        labels = TokenLabels(twos, model_of(), relabel=relabel)
        batches = kv.data.pipelines(source, model_of(), 8, targets=labels, validation_split=0.0)
        given = batches.train[0][1]
        assert (given["aux_head"].argmax(-1) == 2).all()
        assert sorted(given["head"].argmax(-1) if relabel else given["head"]) == expected


def test_refiner_advanced_mixes_as_released():
    """MixUp and CutMix, in turn, mix the targets of both heads by the same coefficient."""
    mixing = kv.training.recipes.get("refiner_advanced").mixing
    assert mixing.cutmix == 1.0
    own = np.broadcast_to(np.eye(CLASSES, dtype="float32")[SOURCE[1]][:, None, None], (36, 4, 4, 3))
    labels = TokenLabels(own, model_of())
    batches = kv.data.pipelines(SOURCE, model_of(), 8, targets=labels, mixing=mixing)
    for index in range(4):
        given = batches.train[index][1]
        np.testing.assert_allclose(given["head"].sum(-1), 1, atol=1e-6)
        each = np.broadcast_to(given["head"][:, None], given["aux_head"].shape)
        np.testing.assert_allclose(given["aux_head"], each, atol=1e-6)


@pytest.mark.parametrize(("crop", "minimum"), (("random_resized", 0.9), ("shift", 0.75)))
def test_the_labels_of_an_image_stay_with_it(crop, minimum):
    """Every patch of a training image is labeled by its color."""
    labels = TokenLabels(BY_COLOR, model_of())
    augmentation = Augmentation(crop, scale=(0.3, 1.0))
    batches = kv.data.pipelines(SOURCE, model_of(), 8, augmentation=augmentation, targets=labels)
    seen, given = batches.train[0]
    assert given["aux_head"].shape == (8, 16, CLASSES)
    assert given["head"].shape == (8, CLASSES)
    colors = seen.reshape(8, 4, 4, 4, 4, 3).mean((2, 4)).reshape(8, 16, 3)
    sure = given["aux_head"].max(-1) > 0.75
    agree = colors.argmax(-1) == given["aux_head"].argmax(-1)
    assert sure.mean() > 0.3
    assert agree[sure].mean() > minimum
    assert agree.mean() > 0.7


@pytest.mark.parametrize("own", (False, True))
def test_fit_learns_the_labels_of_the_patches(own):
    """With MixToken; labels that `fit` is given, or batches of one's own."""
    model = model_of()
    changes = {"augmentation": "crop_flip", "mixing": None, "similarity": None, "drop_path": None}
    changes |= {"cooldown_epochs": 0, "ema": None, "epochs": 15, "learning_rate": 0.2, **SHORT}
    source, targets = SOURCE, {"token_labels": BY_COLOR}
    if own:
        targets = {}
        source = kv.data.pipelines(SOURCE, model, 9, targets=TokenLabels(BY_COLOR, model)).train
    kv.fit(model, source, "refiner_advanced", mix_token=True, **targets, **changes)
    assert isinstance(model.loss, SmoothedCrossentropy)
    images = kv.preprocess_input(COLORS, model)
    patches = array(model(images, training=True, by_head=True)["aux_head"])
    assert (patches.argmax(-1) == BLOCKS.reshape(36, 16)).mean() > 0.95
