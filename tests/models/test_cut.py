"""A model cut from a Chain becomes a Chain again, with the same layers and weights."""

import keras
import pytest
from harness import FAMILIES, array, close, numbers
from keras import layers

import keras_vitx as kv

pytestmark = pytest.mark.backend_free
IMAGES = numbers((4, 16, 16, 3))


def nested(model):
    images = keras.Input((16, 16, 3))
    return keras.Model(images, layers.Activation("softmax")(model(images)))


# How a model is cut, and the number of its own layers that are left.
CUTS = {
    "prefix": (lambda m: keras.Model(m.input, layers.Softmax()(m.get_layer("norm").output)), 5),
    "new head": (lambda m: keras.Model(m.input, layers.Dense(5, "softmax")(m.output)), 8),
    "nested": (nested, 8),
}


# The second family has blocks that share maps.
@pytest.mark.parametrize("family", ["ViT", "RefinedViT"])
@pytest.mark.parametrize("cut", CUTS)
def test_a_line_of_layers_becomes_a_chain(family, cut):
    model = FAMILIES[family](drop_path=0.0, depth=2 if family == "RefinedViT" else 1)
    make, kept = CUTS[cut]
    assert kv.as_chain(model) is model
    before = make(model)
    after = kv.as_chain(before)
    kept += family == "RefinedViT"
    assert after.layers[:kept] == model.layers[:kept] and len(after.layers) == kept + 1
    close(array(after(IMAGES)), array(before(IMAGES)))
    close(*(array(one(IMAGES, training=True)) for one in (after, before)))
    trained, wanted = ({id(v) for v in one.trainable_variables} for one in (after, before))
    assert trained == wanted
