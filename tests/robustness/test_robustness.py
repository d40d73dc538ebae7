import keras
import numpy as np
import pytest
from harness import numbers, randomize
from hypothesis import given
from hypothesis import strategies as st

import keras_vitx as kv
from keras_vitx.robustness import FGSM, PERTURBATIONS, PGD, GaussianBlur, curve

LABELS = np.arange(8) % 4
SIZES = {"dim": 16, "depth": 1, "class_depth": 1, "num_heads": 2, "patch_size": 4}
SIZES |= {"layer_scale": 0.1, "input_shape": (16, 12, 3)}


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
    found = model.predict(to_inputs(model, pixels), verbose=0)
    return np.log(found[np.arange(len(found)), LABELS])


@pytest.mark.backend_free
@given(st.sampled_from([*PERTURBATIONS]), st.sampled_from([0, 1]) | st.floats(0, 1))
def test_pixels_stay_in_range_and_as_they_are_at_strength_zero(model, pixels, kind, strength):
    found = changed(PERTURBATIONS[kind](model, strength), model, pixels)
    if not strength or kind in ("fgsm", "pgd"):
        assert np.abs(found - pixels).max() < strength + 1e-6


@pytest.mark.backend_free
def test_occlusion(model, pixels):
    found = changed(PERTURBATIONS["occlude"](model, 0.25), model, pixels)
    inside = np.zeros((16, 12, 1), bool)
    inside[4:12, 3:9] = True
    np.testing.assert_allclose(found, np.where(inside, model.preprocessing.mean, pixels), atol=1e-6)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("kind", "strength", "deviation"),
    [("noise", 10, 10 / 255), ("shot_noise", 1 / 60, (0.5 / 60) ** 0.5)],
)
def test_noise_depends_on_seed_and_index(model, kind, strength, deviation):
    flat = np.full((8, 64, 64, 3), 0.5)
    found, same, later, other = (
        changed(PERTURBATIONS[kind](model, strength, seed=seed), model, flat, index)
        for seed, index in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert abs(found.mean() - 0.5) < 1e-3 and abs(found.std() / deviation - 1) < 0.02
    np.testing.assert_array_equal(found, same)
    assert np.abs(found - later).max() > 0.01 < np.abs(found - other).max()


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


@pytest.mark.backend_free  # steps of the gradient above
def test_projected_gradient_descent(model, pixels):
    attack = PGD(model, 0.02, steps=5)
    found = changed(attack, model, pixels)
    one_step = log_probability(model, changed(FGSM(model, 0.02), model, pixels)).mean()
    assert log_probability(model, found).mean() < one_step + 1e-4
    np.testing.assert_array_equal(found, changed(attack, model, pixels))


@pytest.mark.backend_free
def test_logits_are_attacked_alike(model, pixels):
    config = model.get_config()
    config["layers"][-1]["config"]["activation"] = "linear"
    logits = type(model).from_config(config)
    logits.set_weights(model.get_weights())
    logits.preprocessing = model.preprocessing
    found, expected = (changed(FGSM(each, 0.01), model, pixels) for each in (logits, model))
    assert (np.abs(found - expected) < 1e-6).mean() > 0.99


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


@pytest.mark.backend_free
def test_curve(model, pixels):
    images = (pixels * 255).astype("uint8")
    source = ((images, LABELS), (images, LABELS))
    clean = kv.evaluate(model, source, batch_size=3)["accuracy"]
    rows = curve(model, source, "fgsm", [0, 0.1], batch_size=3)
    about = {"kind": "fgsm", "strength": 0, "interval": None, "images": 8}
    assert rows[0] == {**about, "accuracy": clean} and rows[1]["accuracy"] <= clean


@pytest.mark.backend_free
def test_labels_in_another_order(tmp_path):
    """A perturbation is given the indices of the model's outputs."""
    named, seen = kv.CaiT(**{**SIZES, "input_shape": (8, 8, 3)}, classes=2), {}
    named.class_names = ("cat", "dog")
    file, images = tmp_path / "pets.npz", np.zeros((4, 8, 8, 3), "uint8")
    np.savez(file, x_train=images, y_train=[0, 1, 1, 0], class_names=["dog", "cat"])

    def keep(images, labels, index):
        seen[index] = list(labels)  # Keras looks at the first batch twice.
        return images

    kv.evaluate(named, file, perturb=keep)
    assert seen == {0: [1, 0, 0, 1]}
