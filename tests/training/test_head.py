"""A trained head on a new set of classes."""

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, numbers, randomize

import keras_vitx as kv
from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.keras_internals import sublayers
from keras_vitx.training import prepare

pytestmark = pytest.mark.backend_free
NAMES, OTHERS = ("ant", "bee", "cat", "dog", "elk"), ("a", "b", "c", "d", "e")
IMAGES = numbers((2, 16, 16, 3))
HEADS = {
    "plain": ("CaiT", {}),
    "distilled": ("ViT", {"distillation_token": True}),
    "dense": ("RefinedViT", {"dense_head": True}),
}


def match_head(model, names):
    """Return what happens to the classifiers."""
    before = model.get_weights()
    prepare.match_head(model, names)
    pairs = list(zip(before, model.get_weights(), strict=True))
    if all(np.array_equal(old, new) for old, new in pairs):
        return "kept"
    pairs = [[np.sort(np.abs(value), -1) for value in pair] for pair in pairs]
    return "permuted" if all(np.array_equal(*pair) for pair in pairs) else "fresh"


def model_of(head="plain", names=NAMES):
    family, arguments = HEADS[head]
    model = FAMILIES[family](depth=2, **arguments)
    randomize(model)
    model.class_names = names
    return model


def predict(model):
    return array(model(IMAGES, training=False))


def is_fresh(model):
    """Whether the classifiers, which `randomize` gave large weights, have small ones."""
    heads = [x for x in sublayers(model) if isinstance(x, keras.layers.Dense) and x.units == 5]
    kernels = [np.abs(array(layer.kernel)).max() for layer in heads]
    biases = [np.abs(array(layer.bias)).max() for layer in heads]
    return 0 < max(kernels) < 0.1 and max(biases) == 0


@pytest.mark.parametrize("head", HEADS)
def test_other_names_permute_or_initialize_all_classifiers(head, caplog):
    model, order = model_of(head), [3, 1, 0, 4, 2]
    before, names = predict(model), tuple(NAMES[i] for i in order)
    assert match_head(model, names) == "permuted"
    np.testing.assert_allclose(predict(model), before[:, order], atol=1e-6)
    assert model.class_names == names
    assert "order" in caplog.text

    caplog.clear()
    assert not is_fresh(model)
    assert match_head(model, OTHERS) == "fresh"
    assert is_fresh(model) and model.class_names == OTHERS
    assert "dog" in caplog.text


@pytest.mark.parametrize(("old", "new"), [(NAMES, NAMES), (NAMES, None), (None, NAMES)])
def test_what_is_kept(old, new):
    model = model_of(names=old)
    before = predict(model)
    assert match_head(model, new) == "kept"
    np.testing.assert_array_equal(predict(model), before)
    assert model.class_names == (new or old)


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


def test_loaded_weights(tmp_path):
    """Those of 1,000 classes have ImageNet's names, all others none."""
    path = tmp_path / "m.weights.h5"

    def loaded(classes):
        FAMILIES["ViT"](depth=1, classes=classes).save_weights(path)
        return FAMILIES["ViT"](depth=1, classes=classes, weights=path)

    synsets = tuple(synset for synset, _ in imagenet_classes())
    others = tuple(f"class {i}" for i in range(1000))
    assert match_head(loaded(1000), synsets) == "kept"
    assert match_head(loaded(1000), synsets[::-1]) == "permuted"
    assert match_head(loaded(1000), others) == "fresh"
    assert match_head(FAMILIES["ViT"](depth=1, classes=1000), others) == "kept"
    assert match_head(loaded(5), NAMES) == "kept"


def test_lora_on_the_head():
    model = model_of()
    model.get_layer("head").enable_lora(5)
    model.get_layer("head").lora_kernel_b.assign(numbers((5, 5)))
    before = predict(model)
    assert match_head(model, NAMES[::-1]) == "permuted"
    np.testing.assert_allclose(predict(model), before[:, ::-1], atol=1e-6)
    match_head(model, OTHERS)
    assert is_fresh(model)


def test_models_around_a_chain():
    inner = model_of()
    outer = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Rescaling(1.0), inner])
    outer.class_names = NAMES
    assert match_head(outer, OTHERS) == "fresh"
    assert is_fresh(inner)


def test_fit_matches_the_head():
    images = np.random.default_rng(0).integers(0, 255, (20, 16, 16, 3), "uint8")
    model = model_of()
    changes = {"epochs": 1, "batch_size": 10, "warmup_epochs": 0, "learning_rate": 1e-6}
    kv.fit(model, (images, np.arange(20) % 5), **changes)
    assert np.abs(array(model.get_layer("head").kernel)).max() < 0.1
    assert model.class_names == tuple("01234")
