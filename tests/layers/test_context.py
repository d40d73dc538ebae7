"""Context Broadcasting, and Squeeze and Excitation."""

import keras
import numpy as np
import pytest
from harness import array, close, numbers
from plain import X, built, dense, gelu, sigmoid

from keras_vitx.layers import (
    MLP,
    Attention,
    ContextBroadcasting,
    LayerScale,
    SqueezeExcitation,
)

MEAN, CLASS = X.mean(1, keepdims=True), X[:, :1]
CONTEXTS = {
    "mean": MEAN,
    "max": X.max(1, keepdims=True),
    "class": CLASS,
    "class_and_mean": (CLASS + MEAN) / 2,
}


def broadcast(x):
    return (x + x.mean(1, keepdims=True)) / 2


@pytest.mark.parametrize("context", CONTEXTS)
def test_context_broadcasting(context):
    close(array(ContextBroadcasting(context)(X)), (X + CONTEXTS[context]) / 2)
    close(array(ContextBroadcasting(context, halve=False)(X)), X + CONTEXTS[context])


def test_context_broadcasting_has_no_parameters():
    close(array(ContextBroadcasting()(X)), broadcast(X))
    assert built(ContextBroadcasting()).count_params() == 0


@pytest.mark.parametrize("context", CONTEXTS)
def test_dimension_scaling(context):
    for halve in (None, False, True):
        layer = built(ContextBroadcasting(context, scale=0.1, halve=halve))
        assert layer.scaling.shape == (8,)
        y = X + array(layer.scaling.value) * CONTEXTS[context]
        close(array(layer(X)), y / 2 if halve else y)


def test_start_of_the_scaling():
    layer = ContextBroadcasting(scale=0.1)
    layer.build(X.shape)
    close(array(layer.scaling.value), np.full(8, 0.1))
    start = keras.initializers.RandomUniform(0.0, 1.0)
    one, other = ContextBroadcasting(scale=start), ContextBroadcasting(scale=start)
    one.build(X.shape)
    other.build(X.shape)
    assert np.abs(array(one.scaling.value) - array(other.scaling.value)).max() > 1e-3
    # With an initial value of zero it is the identity.
    np.testing.assert_array_equal(array(ContextBroadcasting(scale=0.0)(X)), X)


def test_class_product():
    y = array(ContextBroadcasting("class_product")(X))
    np.testing.assert_array_equal(y[:, 0], X[:, 0])
    close(y[:, 1:], X[:, 1:] * CLASS)


def test_context_broadcasting_twice():
    layer = ContextBroadcasting()
    close(array(layer(layer(X))), X / 4 + 3 * MEAN / 4)
    close(array(layer(X)).mean(1), X.mean(1))


def test_squeeze_excitation():
    layer = built(SqueezeExcitation(ratio=2))
    assert layer.fc1.units == 4
    weights = sigmoid(dense(np.maximum(dense(MEAN, layer.fc1), 0), layer.fc2))
    close(array(layer(X)), X * weights)
    wide = built(SqueezeExcitation(), numbers((1, 2, 32)))
    assert wide.fc1.units == 2


def test_a_narrow_squeeze_keeps_a_unit():
    assert built(SqueezeExcitation(ratio=16)).fc1.units == 1


def test_places_in_an_mlp():
    """At the front, in the middle after the activation, and at the end."""
    front = built(MLP(2, on_input=[ContextBroadcasting()]))
    close(array(front(X)), dense(gelu(dense(broadcast(X), front.fc1)), front.fc2))
    middle = built(MLP(2, on_hidden=[ContextBroadcasting(scale=1.0)]))
    (layer,) = middle.on_hidden
    assert layer.scaling.shape == (16,)
    hidden = gelu(dense(X, middle.fc1))
    hidden = hidden + array(layer.scaling.value) * hidden.mean(1, keepdims=True)
    close(array(middle(X)), dense(hidden, middle.fc2))
    end = built(MLP(2, on_output=[ContextBroadcasting()]))
    close(array(end(X)), broadcast(dense(gelu(dense(X, end.fc1)), end.fc2)))


def test_places_in_an_attention():
    plain = built(Attention(2))
    front = built(Attention(2, on_input=[ContextBroadcasting()]))
    close(array(front(X)), array(plain(broadcast(X))))
    end = built(Attention(2, on_output=[ContextBroadcasting()]))
    close(array(end(X)), broadcast(array(plain(X))))


def test_layer_scale_of_one_is_none():
    np.testing.assert_array_equal(array(LayerScale(1.0)(X)), X)
    scaled = built(MLP(2, on_output=[LayerScale(1.0)]))
    scaled.on_output[0].gamma.assign(np.ones(8))
    plain = built(MLP(2))
    plain.set_weights(scaled.get_weights()[1:])  # all weights but those of one
    np.testing.assert_array_equal(array(scaled(X)), array(plain(X)))
