"""A trained head on a new set of classes."""

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, numbers, randomize

import keras_vitx as kv
from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.training.head import classifiers, match_head

NAMES = ("ant", "bee", "cat", "dog", "elk")
OTHERS = ("a", "b", "c", "d", "e")
IMAGES = numbers((2, 16, 16, 3))
HEADS = {
    "plain": ("CaiT", {}, 1),
    "distilled": ("ViT", {"distillation_token": True}, 2),
    "dense": ("RefinedViT", {"dense_head": True}, 2),
}


def model_of(head="plain", names=NAMES):
    family, arguments, _ = HEADS[head]
    model = FAMILIES[family](depth=2, **arguments)
    randomize(model)
    model.class_names = names
    return model


@pytest.mark.parametrize("head", HEADS)
def test_other_names_permute_or_initialize_all_classifiers(head, caplog):
    model = model_of(head)
    assert len(classifiers(model)) == HEADS[head][-1]
    before = array(model(IMAGES, training=False))
    order = [3, 1, 0, 4, 2]
    names = [NAMES[i] for i in order]
    assert match_head(model, names) == "permuted"
    np.testing.assert_allclose(array(model(IMAGES, training=False)), before[:, order], atol=1e-6)
    assert model.class_names == tuple(names)
    assert "order" in caplog.text

    caplog.clear()
    body = array(model.steps[1].weights[0].value)
    old = [array(layer.kernel) for layer in classifiers(model)]
    assert match_head(model, OTHERS) == "fresh"
    assert model.class_names == OTHERS
    for layer, kernel in zip(classifiers(model), old, strict=True):
        assert 0 < np.abs(array(layer.kernel)).max() < 0.1 < np.abs(kernel).max()
        assert np.abs(array(layer.bias)).max() == 0
    np.testing.assert_array_equal(array(model.steps[1].weights[0].value), body)
    assert len(caplog.records) == 1
    assert 'head="keep"' in caplog.text and "dog" in caplog.text


@pytest.mark.parametrize(
    ("old", "new"), [(NAMES, NAMES), (NAMES, None), (None, NAMES), (None, None)]
)
def test_nothing_to_compare_keeps(old, new, caplog):
    model = model_of(names=old)
    before = array(model(IMAGES, training=False))
    assert match_head(model, new) == "kept"
    np.testing.assert_array_equal(array(model(IMAGES, training=False)), before)
    assert model.class_names == (new or old)
    # Random weights have no class names: nothing is lost, so nothing is logged.
    assert ("unknown" in caplog.text) == ((old, new) == (NAMES, None))


def test_an_argument_overrides():
    model = model_of()
    before = array(model(IMAGES, training=False))
    assert match_head(model, OTHERS, "keep") == "kept"
    np.testing.assert_array_equal(array(model(IMAGES, training=False)), before)
    assert match_head(model, model.class_names, "fresh") == "fresh"
    assert np.abs(array(classifiers(model)[0].kernel)).max() < 0.1
    with pytest.raises(ValueError, match="'kept'"):
        match_head(model, NAMES, "kept")


def test_one_output_of_two_classes():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    randomize(model)
    x = numbers((4, 3))
    before = array(model(x))
    assert match_head(model, ("cat", "dog")) == "kept"
    assert model.class_names == ("cat", "dog")
    decoded = kv.decode_predictions(before, top=1, model=model)
    for [(_, name, probability)], p in zip(decoded, before[:, 0], strict=True):
        assert name == ("dog" if p > 0.5 else "cat")
        assert probability == pytest.approx(max(p, 1 - p), rel=1e-5)
    assert match_head(model, ("dog", "cat")) == "permuted"
    np.testing.assert_allclose(array(model(x)), 1 - before, atol=1e-6)


def test_loaded_weights(tmp_path, caplog):
    """Those of 1,000 classes have ImageNet's names, all others none."""
    path = str(tmp_path / "m.weights.h5")

    def loaded(classes):
        FAMILIES["ViT"](depth=1, classes=classes).save_weights(path)
        return FAMILIES["ViT"](depth=1, classes=classes, weights=path)

    synsets = tuple(synset for synset, _ in imagenet_classes())
    others = tuple(f"class {i}" for i in range(1000))
    assert match_head(loaded(1000), synsets) == "kept"
    assert match_head(loaded(1000), synsets[::-1]) == "permuted"
    assert match_head(loaded(1000), others) == "fresh"
    assert match_head(FAMILIES["ViT"](depth=1, classes=1000), others) == "kept"
    assert "unknown" not in caplog.text
    assert match_head(loaded(5), NAMES) == "kept"
    assert "unknown" in caplog.text


def test_lora_on_the_head():
    model = model_of()
    model.layers[-1].enable_lora(5)
    model.layers[-1].lora_kernel_b.assign(numbers((5, 5)))
    before = array(model(IMAGES, training=False))
    assert match_head(model, NAMES[::-1]) == "permuted"
    np.testing.assert_allclose(array(model(IMAGES, training=False)), before[:, ::-1], atol=1e-6)
    match_head(model, OTHERS)
    assert np.abs(array(model.layers[-1].kernel)).max() < 0.1


def test_models_around_a_chain():
    inner = model_of()
    outer = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Rescaling(1.0), inner])
    outer.class_names = NAMES
    assert match_head(outer, OTHERS) == "fresh"
    assert classifiers(outer) == [inner.layers[-1]]
    inputs = keras.Input((16, 16, 3))
    ends_otherwise = keras.Model(inputs, keras.layers.Activation("softmax")(inner(inputs)))
    with pytest.raises(ValueError, match="head='keep'"):
        match_head(ends_otherwise, NAMES, "fresh")


def test_fit_matches_the_head():
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 255, (20, 16, 16, 3), "uint8"), np.arange(20) % 5
    short = {"epochs": 1, "batch_size": 10, "warmup_epochs": 0, "learning_rate": 1e-6, "verbose": 0}
    model = model_of()
    kv.fit(model, (images, labels), **short)
    assert np.abs(array(model.layers[-1].kernel)).max() < 0.1
    assert model.class_names == ("0", "1", "2", "3", "4")
    kept = model_of()
    kv.fit(kept, (images, labels), head="keep", **short)
    assert np.abs(array(kept.layers[-1].kernel)).max() > 0.1
    with pytest.raises(ValueError, match="`head`"):
        kv.fit(kept, (images, labels), head="best", **short)
