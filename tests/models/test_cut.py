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


def branched(model):
    x = model.get_layer("norm").output
    y = layers.Dense(3, "softmax")(ops.mean(x, axis=1) + x[:, 0])
    return keras.Model(model.input, y)


def with_a_mask(model):
    x = model.get_layer("norm").output
    y = layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    return keras.Model(model.input, layers.Softmax()(y[:, 0]))


# How a model is cut, the number of layers in the line that is left, and of those that follow it.
CUTS = {
    "prefix": (lambda m: keras.Model(m.input, layers.Softmax()(m.get_layer("norm").output)), 5, 1),
    "new head": (lambda m: keras.Model(m.input, layers.Dense(5, "softmax")(m.output)), 7, 1),
    "nested": (nested, 7, 1),
    "branches": (branched, 5, 0),
    "a call with arguments": (with_a_mask, 5, 0),
}


# The second family has blocks that share maps.
@pytest.mark.parametrize(
    ("family", "cut"),
    [*(("ViT", cut) for cut in CUTS), ("RefinedViT", "prefix"), ("RefinedViT", "nested")],
)
def test_a_line_of_layers_becomes_a_chain(family, cut):
    model = FAMILIES[family](drop_path=0.0, depth=2 if family == "RefinedViT" else 1)
    model.class_names = list("abcde")
    make, kept, added = CUTS[cut]
    before = make(model)
    after = kv.as_chain(before, like=model)
    if added:
        chain = after
        assert chain.family == model.family
        assert chain.class_names is None
    else:
        (chain,) = (part for part in after.layers if isinstance(part, kv.models.Chain))
    kept += family == "RefinedViT"
    assert chain.layers[:kept] == model.layers[:kept]
    assert len(chain.layers) == kept + added

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
    model.class_names = list("abcde")
    assert kv.as_chain(model) is model
    whole = kv.as_chain(keras.Model(model.input, model.output), like=model)
    assert whole.class_names == tuple(model.class_names)
    chain = kv.as_chain(keras.models.clone_model(model), like=model)
    assert isinstance(chain, kv.models.Chain)
    chain.set_weights(model.get_weights())
    close(array(chain(IMAGES)), array(model(IMAGES)))
