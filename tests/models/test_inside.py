"""A model of the zoo inside another model gives what it gives alone."""

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, close, numbers, precision, trained
from keras import layers

IMAGES = numbers((4, 16, 16, 3))


class Subclass(keras.Model):
    def __init__(self, base):
        super().__init__()
        self.base = base

    def call(self, images, training=None):
        return self.base(images, training=training)

    def compute_output_shape(self, shape):
        return shape[0], 5


def functional(base, *around):
    x = inputs = keras.Input((16, 16, 3))
    for layer in around or (base,):
        x = layer(x)
    return keras.Model(inputs, layers.Activation("linear", dtype="float32")(x))


def over_time(base):
    """Each image as a film of one (keras-team/keras#19792)."""
    film, last = ((1, 16, 16, 3), (5,))
    first, last = (layers.Reshape(shape, dtype="float32") for shape in (film, last))
    return functional(base, first, layers.TimeDistributed(base), last)


AROUND = {
    "functional": functional,
    "sequential": lambda base: keras.Sequential([keras.Input((16, 16, 3)), base]),
    "subclass": Subclass,
    "over time": over_time,
}


def check(family, policy, forms):
    """Check each form, which is a list of wrappers from the inside out."""
    residual = {"residual_dtype": "float32"} if family == "CaiT" else {}
    # `Chain` trains several heads by their own losses; inside a model, the combined prediction.
    with precision(policy):
        base, alone = (FAMILIES[family](drop_path=0.0, **residual) for _ in "ab")
        weights = base.get_weights()
        alone.set_weights(weights)
        expected = alone.predict(IMAGES, verbose=0)
        # Under `TimeDistributed`, Keras reports the metrics of a compiled model as its own.
        wanted = trained(alone)
        for wrappers in forms:
            base.set_weights(weights)
            model = base
            for wrapper in wrappers:
                model = AROUND[wrapper](model)
            np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), expected)
            # Alone, a loss is that of logits.
            close(trained(model), wanted, 1e-5 if policy == "float32" else 2e-3)


# The forms differ in Keras's own code, which is the same on all backends.
@pytest.mark.parametrize("family", ("CaiT", "RefinedViT")[: 2 if BACKEND == "torch" else 1])
def test_as_alone(family):
    nests = [["over time", "sequential"], ["subclass", "functional", "over time"]]
    if BACKEND == "torch":
        check(family, "float32", [*([wrapper] for wrapper in AROUND), *nests])
    check(family, "mixed_bfloat16", [["functional"]])


@pytest.mark.backend_free
def test_the_input_is_kept():
    inputs = keras.Input((16, 16, 3), name="pixels", batch_size=2, dtype="float16")
    model = FAMILIES["ViT"](input_tensor=inputs)
    for one, height in (
        (type(model).from_config(model.get_config()), 16),
        (model.at_size((24, 16)), 24),
    ):
        (found,) = one.inputs
        assert (found.name, found.shape, found.dtype) == ("pixels", (2, height, 16, 3), "float16")


@pytest.mark.backend_free
def test_dtype_is_that_of_all_layers():
    before = keras.config.dtype_policy().name
    model = FAMILIES["CaiT"](dtype="mixed_bfloat16")
    assert keras.config.dtype_policy().name == before
    assert {layer.dtype_policy.name for layer in model.layers} == {"mixed_bfloat16", "float32"}
    assert model.dtype_policy.name == "mixed_bfloat16"
