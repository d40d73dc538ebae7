"""A model cut from a Chain becomes a Chain again, with the same layers and weights."""

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, close, gradients, numbers
from keras import ops

import keras_vitx as kv

IMAGES = numbers((4, 16, 16, 3))
LABELS = np.array([0, 1, 2, 1])


def base(**changes):
    keras.utils.set_random_seed(0)
    return kv.ViT(
        **{
            "dim": 8,
            "depth": 4,
            "num_heads": 2,
            "patch_size": 8,
            "input_shape": (16, 16, 3),
            "classes": 3,
            **changes,
        }
    )


def loss_of(model):
    outputs = model(IMAGES, training=True)
    return ops.mean(keras.losses.sparse_categorical_crossentropy(LABELS, outputs))


def agree(one, other):
    """Check that outputs, loss and gradients of two models on the same variables agree."""
    close(array(other(IMAGES)), array(one(IMAGES)))
    variables = one.trainable_variables
    assert {id(variable) for variable in other.trainable_variables} == set(map(id, variables))
    (value, found), (expected, wanted) = (
        gradients(lambda model=model: loss_of(model), variables) for model in (other, one)
    )
    close(value, expected)
    for variable, gradient, want in zip(variables, found, wanted, strict=True):
        floor = 1e-6 * max(np.abs(w).max() for w in wanted)
        np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=floor, err_msg=variable.path)


def test_a_new_head_is_a_list_appended():
    model = base(include_top=False, pooling="token")
    model.class_names = ("a", "b", "c")
    cut = keras.Model(model.input, keras.layers.Dense(5, "softmax")(model.output))
    chain = kv.as_chain(cut, like=model)
    assert isinstance(chain, kv.models.Chain)
    assert chain.steps[:-1] == model.steps
    assert chain.steps[-1] is cut.layers[-1]
    assert (chain.family, chain.preprocessing) == (model.family, model.preprocessing)
    assert chain.class_names is None
    agree(cut, chain)


def test_a_prefix_is_a_chain():
    model = base()
    cut = keras.Model(model.input, model.get_layer("blocks_2").output)
    chain = kv.as_chain(cut)
    assert [step.name for step in chain.steps][-1] == "blocks_2"
    close(array(chain(IMAGES)), array(cut(IMAGES)))


def test_a_clone_is_a_chain_again():
    model = base()
    model.class_names = ("a", "b", "c")
    whole = kv.as_chain(keras.Model(model.input, model.output), like=model)
    assert whole.class_names == model.class_names
    clone = keras.models.clone_model(model)
    chain = kv.as_chain(clone, like=model)
    assert isinstance(chain, kv.models.Chain)
    chain.set_weights(model.get_weights())
    close(array(chain(IMAGES)), array(model(IMAGES)))


def test_a_nested_chain_is_inlined():
    model = base()
    images = keras.Input((16, 16, 3))
    nested = keras.Model(images, keras.layers.Activation("relu")(model(images)))
    chain = kv.as_chain(nested)
    assert chain.steps[:-1] == model.steps
    close(array(chain(IMAGES)), array(nested(IMAGES)))


def test_where_the_graph_branches_the_rest_follows_a_chain():
    model = base()
    features = model.get_layer("blocks_3").output
    y = keras.layers.Dense(3, "softmax")(ops.mean(features, axis=1) + features[:, 0])
    cut = keras.Model(model.input, y)
    looped = kv.as_chain(cut)
    assert not isinstance(looped, kv.models.Chain)
    assert [len(part.steps) for part in looped.layers if isinstance(part, kv.models.Chain)] == [7]
    agree(cut, looped)


def test_a_call_with_arguments_ends_the_line():
    model = base()
    x = model.get_layer("blocks_3").output
    cut = keras.Model(
        model.input, keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    )
    looped = kv.as_chain(cut)
    (chain,) = (part for part in looped.layers if isinstance(part, kv.models.Chain))
    assert chain.steps[-1].name == "blocks_3"
    close(array(looped(IMAGES)), array(cut(IMAGES)))


def test_carried_maps_are_part_of_the_line():
    model = FAMILIES["RefinedViT"]()
    cut = keras.Model(model.input, keras.layers.Activation("relu")(model.output))
    chain = kv.as_chain(cut)
    assert isinstance(chain, kv.models.Chain)
    assert chain.steps[:-1] == model.steps


def test_what_is_no_such_model():
    a, b = keras.Input((4,)), keras.Input((4,))
    with pytest.raises(ValueError, match="one input"):
        kv.as_chain(keras.Model([a, b], keras.layers.Add()([a, b])))
    with pytest.raises(ValueError, match="begins with something else"):
        kv.as_chain(keras.Model(a, a + 1))
    model = base()
    assert kv.as_chain(model) is model
