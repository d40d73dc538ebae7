"""Which images a model takes: what it or its first layers state, or an error that asks."""

import keras
import numpy as np
import pytest
from harness import FAMILIES, FAMILIES_HERE, array, close, gradients, randomize
from keras import layers, ops

import keras_vitx as kv
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.preprocessing import ModelInput

STATED = kv.Preprocessing((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), 0.9, "bilinear")
PIXELS = kv.Preprocessing.pixels()
MEAN, STD = 255 * np.float32(STATED.mean), 255 * np.float32(STATED.std)
PHOTOS = list(np.random.default_rng(0).integers(0, 256, (3, 50, 44, 3), "uint8"))


def network(**changes):
    model = FAMILIES["ViT"](**changes)
    model.preprocessing = STATED
    return model


def behind(*first, **images):
    """Return a function that puts layers, or functions of tensors, before a network."""

    def make(net):
        x = inputs = keras.Input((16, 16, 3), **images)
        for one in first:
            x = one(x)
        return keras.Model(inputs, net(x))

    return make


def prepared(net, **images):
    return behind(ImagePreprocessing.of(net), **images)(net)


def augmentation():
    return keras.Sequential([layers.RandomFlip(), layers.RandomRotation(0.1)])


def beside(other):
    def make(net):
        images = keras.Input((16, 16, 3))
        return keras.Model(images, layers.Average()([net(images), other()(images)]))

    return make


def chained(make):
    return lambda net: kv.as_chain(make(net), like=net)


def stating(make, preprocessing):
    def make_and_state(net):
        model = make(net)
        model.preprocessing = preprocessing
        return model

    return make_and_state


def normalization():
    return layers.Normalization(mean=MEAN, variance=STD**2)


def normalize(x):
    return ops.divide(ops.subtract(x, MEAN), STD)


def of_nothing():
    return keras.Sequential([layers.Flatten(), layers.Dense(5)])


TAKEN = {
    "nested": (behind(), STATED),
    "sequential": (lambda net: keras.Sequential([keras.Input((16, 16, 3)), net]), STATED),
    "augmented": (behind(augmentation()), STATED),
    "a pipeline": (behind(layers.Pipeline([layers.RandomFlip()])), STATED),
    "resized": (behind(layers.Resizing(16, 16), layers.Dropout(0.1)), STATED),
    "cut": (lambda net: keras.Model(net.input, layers.Dense(2)(net.output)), STATED),
    "cloned": (keras.models.clone_model, STATED),
    "features": (kv.features, STATED),
    "rescaled": (behind(layers.Rescaling(1 / 127.5, -1)), PIXELS),
    "normalized": (behind(normalization()), PIXELS),
    "augmented and normalized": (behind(augmentation(), normalization()), PIXELS),
    "ImagePreprocessing": (prepared, PIXELS),
    "bytes": (behind(lambda x: ops.cast(x, "float32"), normalize, dtype="uint8"), PIXELS),
    "a chain of it": (chained(lambda net: prepared(net, dtype="uint8")), PIXELS),
    "a chain of it that is given another": (stating(chained(prepared), STATED), PIXELS),
    "operations": (behind(normalize), "subtract"),
    "a function": (behind(layers.Lambda(normalize)), "lambda"),
    "0..1": (behind(layers.Rescaling(2, -1)), "rescaling"),
    "other ones": (beside(lambda: FAMILIES["ViT"](name="two")), "'two'"),
    "one that states nothing": (beside(of_nothing), "flatten"),
    "stated": (stating(behind(normalize), PIXELS), PIXELS),
    "stated twice": (stating(prepared, STATED), "`ImagePreprocessing` inside"),
}


@pytest.mark.backend_free
@pytest.mark.parametrize("case", TAKEN)
def test_what_a_model_takes_is_stated_or_asked_for(case, tmp_path):
    make, taken = TAKEN[case]
    model = make(network())
    models = [model]
    if "function" not in case and "stated" not in case:
        model.save(tmp_path / "model.keras")
        models += [keras.saving.load_model(tmp_path / "model.keras")]
    for one in models:
        if isinstance(taken, str):
            with pytest.raises(ValueError, match=rf"model\.preprocessing.*{taken}"):
                kv.preprocess_input(PHOTOS, one)
        else:
            found = ModelInput.of(one).preprocessing
            assert (found.mean, found.std) == (taken.mean, taken.std)
            assert found.crop_ratio == (0.9 if taken is STATED else 1)


@pytest.mark.parametrize("case", ["augmented", "augmented and normalized", "a chain of it"])
def test_a_predictor_answers_as_predict(case):
    make, taken = TAKEN[case]
    net = network(classes=2)
    randomize(net)
    model = make(net)
    images = np.stack([photo[:16, :16] for photo in PHOTOS])
    # One crop of the size is left in front of a model of pixels: all of it.
    right = images if taken is PIXELS else kv.preprocess_input(images, net)
    rows = kv.predictor(model, batch_sizes=(3,))(images)
    found = [[p for *_, p in sorted(row, key=lambda one: one[1])] for row in rows]
    close(found, model.predict(right, verbose=0))


@pytest.mark.parametrize("family", FAMILIES_HERE)
def test_a_model_with_preprocessing_inside(family, tmp_path):
    """It gives the same for pixels, and its files load into both kinds, as those of the other."""
    plain = FAMILIES[family]()
    randomize(plain)
    plain.preprocessing = STATED
    kv.save(plain, tmp_path / "plain")
    model = FAMILIES[family](weights=tmp_path / "plain", include_preprocessing=True)
    kv.save(model, tmp_path / "pixels")
    model.save(tmp_path / "pixels.keras")
    again = [FAMILIES[family](weights=tmp_path / "pixels", include_preprocessing=i) for i in (0, 1)]
    loaded = kv.load(tmp_path / "pixels"), keras.saving.load_model(tmp_path / "pixels.keras")
    pairs = [(plain, one) for one in (model, *loaded, *again)]
    if family != "Mixer":
        pairs.append((plain.at_size((32, 32)), model.at_size((32, 32))))
    for one, other in pairs:
        inputs = kv.preprocess_input(PHOTOS, other)
        assert inputs.min() >= 0 or other is again[0]
        close(array(other(inputs)), array(one(kv.preprocess_input(PHOTOS, one))))
    assert ModelInput.of(keras.models.clone_model(model)) == ModelInput.of(model)
    images = keras.Variable(kv.preprocess_input(PHOTOS, model))
    _, (gradient,) = gradients(lambda: ops.sum(model(images.value)[:, 0]), [images])
    assert np.abs(gradient).max() > 0
