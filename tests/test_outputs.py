import keras
import pytest
from harness import FAMILIES

from keras_vitx.outputs import Outputs, kind_of, outputs_of

layers = keras.layers
pytestmark = pytest.mark.backend_free

ACTIVATIONS = [
    *((None, "logits"), ("linear", "logits"), (keras.activations.linear, "logits")),
    *(("softmax", "softmax"), (keras.activations.softmax, "softmax")),
    *((keras.ops.softmax, "softmax"), (layers.Softmax(), "softmax")),
    *(("sigmoid", "sigmoid"), (keras.activations.sigmoid, "sigmoid")),
    (layers.Activation("sigmoid"), "sigmoid"),
    *(("relu", None), (keras.activations.log_softmax, None)),
    *((layers.Softmax(axis=0), None), (lambda x: x, None)),
]
HEADS = {
    "plain": ("ViT", {}),
    "pooled": ("ViT", {"pooling": "avg"}),
    "distilled": ("ViT", {"distillation_token": True}),
    "dense": ("RefinedViT", {"dense_head": True}),
}


def model_of(head, activation):
    family, arguments = HEADS[head]
    return FAMILIES[family](classifier_activation=activation, depth=2, **arguments)


@pytest.mark.parametrize(("activation", "kind"), ACTIVATIONS, ids=str)
def test_activations(activation, kind):
    assert kind_of(activation) == kind


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("activation", (None, "softmax", "sigmoid", keras.activations.softmax))
def test_heads(head, activation):
    assert outputs_of(model_of(head, activation)) == Outputs(kind_of(activation), 5)


def around(*last):
    """Models that end in `last`, on features of width 4."""
    x = inputs = keras.Input((4,))
    for layer in last:
        x = layer(x)
    return keras.Model(inputs, x)


ENDS = {
    "activation": (lambda: around(layers.Dense(3), layers.Activation("sigmoid")), ("sigmoid", 3)),
    "in float32": (
        lambda: around(layers.Dense(3, "softmax"), layers.Activation("linear", dtype="float32")),
        ("softmax", 3),
    ),
    "sequential": (
        lambda: keras.Sequential([keras.Input((4,)), layers.Dense(2), layers.Softmax()]),
        ("softmax", 2),
    ),
    "nested": (lambda: around(layers.Dense(4), around(layers.Dense(3, "sigmoid"))), ("sigmoid", 3)),
    "a Chain last": (
        lambda: keras.Sequential(
            [keras.Input((16, 16, 3)), layers.Rescaling(2.0), model_of("distilled", "softmax")]
        ),
        ("softmax", 5),
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_models_from_elsewhere(end):
    make, expected = ENDS[end]
    assert outputs_of(make()) == expected
