from pathlib import Path

import keras
import numpy as np
import pytest
from harness import numbers, randomize

import keras_vitx as kv
from keras_vitx.robustness import (
    FGSM,
    PGD,
    GaussianBlur,
    GaussianNoise,
    Occlusion,
    ShotNoise,
    curve,
)
from keras_vitx.robustness.curve import PERTURBATIONS

LABELS = np.arange(8) % 4
SIZES = dict(
    dim=16, depth=1, class_depth=1, num_heads=2, patch_size=4, layer_scale=0.1,
    input_shape=(16, 12, 3),
)  # fmt: skip


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    model = kv.CaiT(**SIZES, classes=4)
    randomize(model)
    return model


@pytest.fixture(scope="module")
def pixels():
    return (numbers((8, 16, 12, 3)) * 0.2 + 0.5).clip(0, 1)


def to_inputs(model, pixels):
    preprocessing = model.preprocessing
    return ((pixels - preprocessing.mean) / preprocessing.std).astype("float32")


def changed(perturbation, model, pixels, index=0):
    images = perturbation(to_inputs(model, pixels), LABELS, index)
    assert images.dtype == "float32"
    found = images * np.array(model.preprocessing.std) + model.preprocessing.mean
    assert found.min() > -1e-6 and found.max() < 1 + 1e-6
    return found


def log_probability(model, pixels):
    found = keras.ops.convert_to_numpy(model(to_inputs(model, pixels), training=False))
    return np.log(found[np.arange(len(found)), LABELS])


@pytest.mark.backend_free
def test_occlusion(model, pixels):
    found = changed(Occlusion(model, 0.25), model, pixels)
    inside = np.zeros((16, 12, 1), bool)
    inside[4:12, 3:9] = True
    np.testing.assert_allclose(found, np.where(inside, model.preprocessing.mean, pixels), atol=1e-6)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("make", "deviation"),
    [
        (lambda m, seed=0: GaussianNoise(m, 10, seed), 10 / 255),
        (lambda m, seed=0: ShotNoise(m, 1 / 60, seed), (0.5 / 60) ** 0.5),
    ],
)
def test_noise(model, make, deviation):
    flat = np.full((8, 64, 64, 3), 0.5)
    found = changed(make(model), model, flat)
    assert abs(found.mean() - 0.5) < 1e-3
    assert abs(found.std() / deviation - 1) < 0.02
    np.testing.assert_array_equal(found, changed(make(model), model, flat))
    for other in (changed(make(model), model, flat, index=1), changed(make(model, 1), model, flat)):
        assert np.abs(found - other).max() > 0.01


def test_blur(model):
    spot = np.zeros((1, 33, 33, 3))
    spot[0, 16, 16] = 1
    perturbation = GaussianBlur(model, 2.0)
    found = changed(perturbation, model, spot)
    line = np.exp(-(np.arange(-8, 9) ** 2) / 8)
    kernel = np.outer(line, line) / line.sum() ** 2
    np.testing.assert_allclose(found[0, 8:25, 8:25, 1], kernel, atol=1e-6)
    # A constant stays so, up to the border.
    flat = np.full((1, 10, 12, 3), 0.3)
    np.testing.assert_allclose(changed(perturbation, model, flat), flat, atol=1e-5)


@pytest.mark.backend_free
def test_fast_gradient_sign(model, pixels):
    """Against finite differences of the loss along single pixels."""
    found = changed(FGSM(model, 0.01), model, pixels)
    np.testing.assert_allclose(np.abs(found - pixels).max(), 0.01, atol=1e-6)
    before = log_probability(model, pixels)
    assert (log_probability(model, found) < before).all()
    for place in ((3, 4, 0), (9, 7, 2), (14, 1, 1)):
        moved = pixels.copy()
        moved[(slice(None), *place)] += 0.02
        slope = log_probability(model, moved) - before
        sure = np.abs(slope) > 1e-5
        assert sure.any()
        step = (found - pixels)[(slice(None), *place)]
        assert (np.sign(step) == -np.sign(slope))[sure].all()


@pytest.mark.backend_free
def test_projected_gradient_descent(model, pixels):
    attack = PGD(model, 0.02, steps=5)
    found = changed(attack, model, pixels)
    assert np.abs(found - pixels).max() < 0.02 + 1e-6
    one_step = log_probability(model, changed(FGSM(model, 0.02), model, pixels)).mean()
    assert log_probability(model, found).mean() < one_step + 1e-4
    np.testing.assert_array_equal(found, changed(attack, model, pixels))


def test_logits_are_attacked_alike(model, pixels):
    config = model.get_config()
    config["layers"][-1]["config"]["activation"] = "linear"
    logits = type(model).from_config(config)
    logits.set_weights(model.get_weights())
    logits.preprocessing = model.preprocessing
    found, expected = (changed(FGSM(each, 0.01), model, pixels) for each in (logits, model))
    assert (np.abs(found - expected) < 1e-6).mean() > 0.99


def test_attacks_agree_between_backends(model, pixels):
    """Against attacks.npz, written under JAX by the lines that are compared here."""
    inputs = to_inputs(model, pixels)
    found = {"gradient": FGSM(model, 0.01).gradient(inputs, LABELS)}
    found |= {"fgsm": changed(FGSM(model, 0.01), model, pixels)}
    found |= {"pgd": changed(PGD(model, 0.02, steps=3), model, pixels)}
    expected = np.load(Path(__file__).with_name("attacks.npz"))
    scale = np.abs(expected["gradient"]).max()
    np.testing.assert_allclose(found["gradient"], expected["gradient"], atol=1e-5 * scale)
    # A sign may differ only where the gradient is that close to zero.
    clear = np.abs(expected["gradient"]) > 1e-5 * scale
    assert clear.mean() > 0.99
    np.testing.assert_allclose(found["fgsm"][clear], expected["fgsm"][clear], atol=1e-5)
    assert (np.abs(found["pgd"] - expected["pgd"]) < 1e-5).mean() > 0.999


@pytest.mark.backend_free
def test_curve_of_another_measure(model):
    """Table 12: the mean IoU of several runs, and its interval as `scipy.stats.t` has it."""
    seen = []

    def mean_iou(model, source, perturb, batch_size):
        seen.append((source, perturb.seed, batch_size))
        return {"mean_iou": 0.2 + 0.1 * perturb.seed, "images": 3}

    settings = {"runs": 5, "evaluate": mean_iou, "batch_size": 2}
    (row,) = curve(model, "masks", "noise", [5.0], measure="mean_iou", **settings)
    assert seen == [("masks", seed, 2) for seed in range(5)]
    assert row["mean_iou"] == pytest.approx(0.4) and row["images"] == 3
    expected = 2.776445 * np.std([0.2, 0.3, 0.4, 0.5, 0.6], ddof=1) / 5**0.5
    assert row["interval"] == pytest.approx(expected, rel=1e-3)
    with pytest.raises(ValueError, match=r"`measure` must be one of mean_iou, images.*'accuracy'"):
        curve(model, "masks", "noise", [5.0], **settings)


@pytest.mark.backend_free
def test_curve(model, pixels):
    images = (pixels * 255).astype("uint8")
    source = ((images, LABELS), (images, LABELS))
    clean = kv.evaluate(model, source, batch_size=3)["accuracy"]
    rows = curve(model, source, "fgsm", [0, 0.1], batch_size=3)
    assert rows[0] == {
        "kind": "fgsm", "strength": 0, "accuracy": clean, "interval": None, "images": 8
    }  # fmt: skip
    assert rows[1]["accuracy"] <= clean
    (row,) = curve(model, source, "noise", [50.0], runs=3)
    assert row["interval"] >= 0


@pytest.mark.backend_free
def test_labels_in_another_order(tmp_path):
    """A perturbation is given the indices of the model's outputs."""
    named, seen = kv.CaiT(**{**SIZES, "input_shape": (8, 8, 3)}, classes=2), {}
    named.class_names = ("cat", "dog")
    images, labels = np.zeros((4, 8, 8, 3), "uint8"), np.array([0, 1, 1, 0])
    file = tmp_path / "pets.npz"
    np.savez(file, x_train=images, y_train=labels, class_names=np.array(["dog", "cat"]))

    def keep(images, labels, index):
        seen[index] = list(labels)  # Keras looks at the first batch twice.
        return images

    kv.evaluate(named, file, validation_split=0, perturb=keep)
    assert seen == {0: [1, 0, 0, 1]}


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m: Occlusion(m, 1.5), "`fraction` must be a number of at least 0 and at most 1"),
        (lambda m: GaussianNoise(m, -1), "`sigma`"),
        (lambda m: FGSM(m, "1/255"), "`epsilon`.*'1/255'"),
        (lambda m: PGD(m, 0.1, steps=0), "`steps`"),
        (lambda m: FGSM(keras.Sequential([keras.Input((4,))]), 0.1), "input of shape"),
        (lambda m: FGSM(kv.CaiT(**SIZES, classifier_activation="sigmoid"), 0.1), "sigmoid"),
        (lambda m: curve(m, None, "fsgm", [0]), "fgsm, .* Received: 'fsgm'"),
        (lambda m: curve(m, None, "noise", [1], runs=11), "`runs`"),
        (lambda m: curve(m, None, "noise", 1), "`strengths` must be a list"),
        (lambda m: kv.evaluate(m, iter([]), perturb=lambda *_: _), "source"),
    ],
)  # fmt: skip
def test_bad_input(model, make, words):
    with pytest.raises(ValueError, match=words):
        make(model)


@pytest.mark.backend_free
def test_every_kind_changes_nothing_at_strength_zero(model, pixels):
    for kind in PERTURBATIONS.values():
        np.testing.assert_allclose(changed(kind(model, 0), model, pixels), pixels, atol=1e-6)
