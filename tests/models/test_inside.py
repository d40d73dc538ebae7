"""A model of the zoo inside another model gives what it gives alone."""

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, FAMILIES_HERE, MIXED, array, close, numbers, precision

import keras_vitx as kv

IMAGES = numbers((4, 16, 16, 3))
LABELS = np.array([0, 1, 2, 3])


class Subclass(keras.Model):
    def __init__(self, base):
        super().__init__()
        self.base = base

    def call(self, images, training=None):
        return self.base(images, training=training)


def functional(base):
    inputs = keras.Input(base.input_shape[1:])
    return keras.Model(inputs, keras.layers.Activation("linear", dtype="float32")(base(inputs)))


AROUND = {
    "functional": functional,
    "sequential": lambda base: keras.Sequential([keras.Input(base.input_shape[1:]), base]),
    "subclass": Subclass,
}
# The forms differ in Keras's own code, which is the same on all backends.
FORMS = AROUND if BACKEND == "torch" else ("functional",)
POLICIES = ("float32", *MIXED) if BACKEND == "torch" else ("mixed_bfloat16",)


def losses(model):
    keras.utils.set_random_seed(0)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    history = model.fit(IMAGES, LABELS, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", FAMILIES_HERE)
def test_as_alone(family, policy):
    residual = {"residual_dtype": "float32"} if family == "CaiT" else {}
    # `Chain` trains several heads by their own losses; inside a model, the combined prediction.
    with precision(policy):
        base = FAMILIES[family](drop_path=0.0, **residual)
        weights = base.get_weights()
        expected = base.predict(IMAGES, verbose=0)
        wanted = losses(base)
        for form in FORMS:
            base.set_weights(weights)
            model = AROUND[form](base)
            np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), expected)
            # Alone, a loss is that of logits.
            close(losses(model), wanted, 1e-5 if policy == "float32" else 2e-3)


@pytest.mark.parametrize("policy", POLICIES)
def test_features_inside(policy):
    with precision(policy):
        backbone = kv.features(FAMILIES["ViT"](), [0, -1])
        inputs = keras.Input((16, 16, 3))
        model = keras.Model(inputs, backbone(inputs))
    pairs = zip(model.predict(IMAGES, verbose=0), backbone.predict(IMAGES, verbose=0), strict=True)
    for found, expected in pairs:
        np.testing.assert_array_equal(array(found), array(expected))


@pytest.mark.backend_free
def test_the_input_is_kept():
    inputs = keras.Input((16, 16, 3), name="pixels", batch_size=2, dtype="float16")
    model = FAMILIES["ViT"](input_tensor=inputs)
    twin = type(model).from_config(model.get_config()).inputs[0]
    assert (twin.name, twin.shape, twin.dtype) == ("pixels", (2, 16, 16, 3), "float16")
    small = model.at_size((24, 16)).inputs[0]
    assert (small.name, small.shape, small.dtype) == ("pixels", (2, 24, 16, 3), "float16")


@pytest.mark.backend_free
def test_dtype_is_that_of_all_layers():
    before = keras.config.dtype_policy().name
    model = FAMILIES["CaiT"](dtype="mixed_bfloat16")
    assert keras.config.dtype_policy().name == before
    assert {layer.dtype_policy.name for layer in model.layers} == {"mixed_bfloat16", "float32"}
    assert model.dtype_policy.name == "mixed_bfloat16"
    with pytest.raises(ValueError, match=r"`dtype` must be .* Received: 'half'"):
        FAMILIES["CaiT"](dtype="half")


@pytest.mark.backend_free
def test_a_head_obeys_its_activation():
    for arguments in ({}, {"distillation_token": True}):
        model = FAMILIES["ViT"](**arguments)
        assert array(model(IMAGES)).sum(-1) == pytest.approx(1)
        model.layers[-1].activation = keras.activations.linear
        logits = array(model(IMAGES))
        assert np.abs(logits.sum(-1) - 1).max() > 1e-3
        twin = type(model).from_config(model.get_config())
        twin.set_weights(model.get_weights())
        close(array(twin(IMAGES)), logits)
