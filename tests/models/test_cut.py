"""A model cut from a Chain becomes a Chain again, with the same layers and weights."""

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, close, gradients, numbers
from keras import layers, ops

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
    before = make(model)
    after = kv.as_chain(before)
    kept += family == "RefinedViT"
    assert after.layers[:kept] == model.layers[:kept] and len(after.layers) == kept + 1
    close(array(after(IMAGES)), array(before(IMAGES)))
    variables = before.trainable_variables
    assert {id(v) for v in after.trainable_variables} == set(map(id, variables))
    found, wanted = (
        gradients(
            lambda one=one: ops.mean(ops.reshape(one(IMAGES, training=True), (4, -1))[:, 0] ** 2),
            variables,
        )
        for one in (after, before)
    )
    close(found[0], wanted[0])
    floor = 1e-6 * max(np.abs(gradient).max() for gradient in wanted[1])
    for variable, gradient, want in zip(variables, found[1], wanted[1], strict=True):
        np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=floor, err_msg=variable.path)


def test_the_whole_model_and_its_clone():
    model = FAMILIES["ViT"]()
    assert kv.as_chain(model) is model
    chain = kv.as_chain(keras.models.clone_model(model))
    assert isinstance(chain, kv.models.Chain)
    chain.set_weights(model.get_weights())
    close(array(chain(IMAGES)), array(model(IMAGES)))
