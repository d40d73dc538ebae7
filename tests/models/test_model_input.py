"""Which images a model takes: what it states, or an error that asks."""

import warnings

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, close, gradients, randomize
from keras import ops

import keras_vitx as kv
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.preprocessing import ModelInput

# The layers of preprocessing are compared on each backend (tests/data/test_photographs.py).
pytestmark = pytest.mark.backend_free
STATED = kv.Preprocessing((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), 0.9, "bilinear")
PIXELS = kv.Preprocessing.pixels()
PHOTOS = list(np.random.default_rng(0).integers(0, 256, (3, 50, 44, 3), "uint8"))


def network(**changes):
    model = FAMILIES["ViT"](**changes)
    model.preprocessing = STATED
    return model


def around(*layers):
    x = inputs = keras.Input((16, 16, 3))
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x)


def prepared(net):
    return around(ImagePreprocessing.of(net), net)


def test_what_a_model_takes_is_stated_or_asked_for():
    net = network()
    assert ModelInput.of(kv.features(net)).preprocessing == STATED
    for one in (around(net), prepared(net), keras.models.clone_model(net)):
        with pytest.raises(ValueError, match=r"`model\.preprocessing` must be set"):
            kv.preprocess_input(PHOTOS, one)
        one.preprocessing = STATED
        assert ModelInput.of(one).preprocessing == STATED
    chain = kv.as_chain(prepared(net))
    for given in (None, STATED):
        chain.preprocessing = given
        found = ModelInput.of(chain).preprocessing
        assert (found.mean, found.std, found.crop_ratio) == (PIXELS.mean, PIXELS.std, 1)


def test_a_predictor_of_a_model_of_pixels_answers_as_predict():
    net = network(classes=2)
    randomize(net)
    model = prepared(net)
    model.preprocessing = PIXELS
    images = np.stack([photo[:16, :16] for photo in PHOTOS])
    rows = kv.predictor(model, batch_sizes=(3,))(images)
    found = [[p for *_, p in sorted(row, key=lambda one: one[1])] for row in rows]
    close(found, model.predict(images, verbose=0))


def test_pixels_for_a_network_of_normalized_images_warn():
    pixels = np.zeros((1, 16, 16, 3), "uint8")
    for model, warned in ((network(), 1), (prepared(network()), 0)):
        model = kv.as_chain(model)
        model.preprocessing = STATED
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            model.predict(pixels, verbose=0)
        assert sum("should be normalized" in str(one.message) for one in found) == warned


# One with a grid of patches, one with stages; the first layer of all is the same.
@pytest.mark.parametrize("family", ("ConViT", "PiT"))
def test_a_model_with_preprocessing_inside(family, tmp_path):
    """It gives the same for pixels, and its files load into both kinds, as those of the other."""
    plain = FAMILIES[family]()
    randomize(plain)
    plain.preprocessing = STATED
    kv.weights.save_safetensors(plain, tmp_path / "m.safetensors")
    model = FAMILIES[family](weights=tmp_path / "m.safetensors", include_preprocessing=True)
    model.save(tmp_path / "pixels.keras")
    path = tmp_path / "pixels.keras"
    again = [FAMILIES[family](weights=path, include_preprocessing=i) for i in (0, 1)]
    pairs = [(plain, one) for one in (model, keras.saving.load_model(path), *again)]
    pairs.append((plain.at_size((32, 32)), model.at_size((32, 32))))
    for one, other in pairs:
        inputs = kv.preprocess_input(PHOTOS, other)
        assert inputs.min() >= 0 or other is again[0]
        close(array(other(inputs)), array(one(kv.preprocess_input(PHOTOS, one))))
    images = keras.Variable(kv.preprocess_input(PHOTOS, model))
    _, (gradient,) = gradients(lambda: ops.sum(model(images.value)[:, 0]), [images])
    assert np.abs(gradient).max() > 0
