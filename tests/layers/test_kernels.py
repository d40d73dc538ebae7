"""The kernel of each backend equals the plain form."""

from math import erf

import keras
import numpy as np
import pytest
from harness import BACKEND, array, close, gradients, numbers, precision
from keras import ops
from plain import softmax

import keras_vitx as kv
from keras_vitx.layers import ops as layer_ops


def call(layer, x, training=False):
    """Call a layer as another one does that has its precision."""
    return layer_ops.call(layer, x, training, layer.compute_dtype)


def attend(query, key, value, training=False):
    return layer_ops.attention(query, key, value, training=training)


def dense(**arguments):
    layer = keras.layers.Dense(6, bias_initializer=keras.initializers.RandomNormal(), **arguments)
    layer.build((None, 5, 4))
    return layer


@pytest.mark.parametrize(
    "changes",
    [{}, {"use_bias": False}, {"lora_rank": 2}, {"activation": "relu"}, {"name": "quantized"}],
)
def test_dense(changes):
    layer, x = dense(**changes), ops.convert_to_tensor(numbers((2, 5, 4)))
    if "lora_rank" in changes:
        layer.lora_kernel_b.assign(numbers(layer.lora_kernel_b.shape))
    if "name" in changes:
        layer.quantize("int8")
    for training in (False, True):
        close(array(call(layer, x, training)), array(layer(x)), 1e-6)


def test_dense_keeps_its_precision():
    with precision("mixed_bfloat16"):
        layer = kv.layers.MLP()
    y = layer(ops.cast(numbers((2, 5, 4)), "bfloat16"))
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"


def test_a_layer_of_the_user_is_its_own():
    class Doubling(keras.layers.LayerNormalization):
        def call(self, x):
            return 2 * x

    layer, x = Doubling(), ops.convert_to_tensor(numbers((2, 5, 4)))
    layer.build(x.shape)
    close(array(call(layer, x)), 2 * array(x), 1e-6)


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's")
@pytest.mark.parametrize("model", [kv.CaiT_Mini, kv.RefinedViT_Mini])
def test_forward_mode_differentiation(model):
    import jax

    model = model(depth=2)
    state = [variable.value for variable in model.trainable_variables]
    rest = [variable.value for variable in model.non_trainable_variables]
    x = numbers((2, 32, 32, 3))

    def loss(state):
        y, _ = model.stateless_call(state, rest, x, training=True)
        return ops.sum(y**2)

    tangent = [jax.numpy.ones_like(value) for value in state]
    _, forward = jax.jvp(loss, (state,), (tangent,))
    backward = sum(ops.sum(one) for one in jax.grad(loss)(state))
    close(array(forward), array(backward), 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu(dtype):
    x = np.linspace(-9, 9, 181, dtype="float32")
    given = ops.cast(x, dtype)
    found = array(ops.cast(layer_ops.gelu(given), "float32"))
    x = array(ops.cast(given, "float32"))
    expected = np.array([v * (1 + erf(v / 2**0.5)) / 2 for v in x])
    close(found, expected, 1e-6 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 4, "strides": 4},
        {"kernel_size": 3, "padding": "same", "use_bias": False},
        {"kernel_size": 7, "strides": 2},
        {"kernel_size": 4, "strides": 3},
        {"kernel_size": 5, "strides": 5},
        {"kernel_size": 2, "strides": 2, "use_bias": False, "activation": "relu"},
        {"kernel_size": 2, "strides": 2, "use_bias": False},
        {"kernel_size": (2, 4), "strides": (2, 4)},
    ],
    ids=str,
)
def test_convolution(arguments):
    layer = keras.layers.Conv2D(
        6,
        bias_initializer=keras.initializers.RandomNormal(seed=0),
        data_format="channels_last",
        **arguments,
    )
    layer.build((None, 12, 16, 3))
    images = keras.Variable(numbers((2, 12, 16, 3)))
    weights = ops.convert_to_tensor(numbers(layer.compute_output_shape(images.shape), 1))
    variables = [images, *layer.trainable_variables]

    def loss(run):
        return lambda: ops.sum(run(images + 0) * weights)

    close(array(call(layer, images + 0)), array(layer(images + 0)), 1e-6)
    _, found = gradients(loss(lambda x: call(layer, x)), variables)
    _, expected = gradients(loss(lambda x: layer(x)), variables)
    for one, other in zip(found, expected, strict=True):
        close(one, other, 1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("axis", "trainable", "policy"),
    [
        (1, True, "float32"),
        (1, False, "float32"),
        (-1, True, "float32"),
        (1, True, "mixed_bfloat16"),
        (1, True, "mixed_float16"),
    ],
)
def test_batch_norm(axis, trainable, policy, training):
    ours, plain = (
        keras.layers.BatchNormalization(axis=axis, momentum=0.9, trainable=trainable, dtype=policy)
        for _ in "ab"
    )
    x = ops.cast(numbers((3, 4, 5, 2)) * 3 + 1, policy.removeprefix("mixed_"))
    for norm in (ours, plain):
        norm.build(x.shape)
        for seed, variable in enumerate(norm.variables):
            variable.assign(1 + numbers(variable.shape, seed) ** 2)
    y = call(ours, x, training)
    expected = plain(x, training=training)
    assert y.dtype == expected.dtype
    y, expected = (array(ops.cast(each, "float32")) for each in (y, expected))
    close(y, expected, 1e-6 if policy == "float32" else 8e-3)
    for one, other in zip(ours.variables, plain.variables, strict=True):
        close(array(one), array(other), 1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("keys", [5, 9])
def test_attention(keys, training):
    shapes = ((2, 5, 3, 4), (2, keys, 3, 4), (2, keys, 3, 4))
    given = [numbers(shape, seed) for seed, shape in enumerate(shapes)]
    given[0] = given[0] * 100  # Logits so large that their exponentials overflow.
    query, key, value = given
    logits = np.einsum("bqhs,bkhs->bhqk", query, key) / 2
    found = attend(*map(ops.convert_to_tensor, given), training)
    close(array(found), np.einsum("bhqk,bkhs->bqhs", softmax(logits), value), 1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_attention_in_bfloat16(training):
    given = [ops.cast(numbers((2, 5, 3, 4), seed), "bfloat16") for seed in range(3)]
    query, key, value = (array(ops.cast(part, "float32")) for part in given)
    maps = softmax(np.einsum("bqhs,bkhs->bhqk", query, key) / 2)
    found = ops.cast(attend(*given, training), "float32")
    close(array(found), np.einsum("bhqk,bkhs->bqhs", maps, value), 1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_softmax(dtype):
    logits = ops.cast(numbers((3, 40)) * 8, dtype)
    found = layer_ops.softmax(logits)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    # Exact before its result is rounded.
    rounded = array(
        ops.cast(ops.cast(softmax(array(ops.cast(logits, "float32"))), dtype), "float32")
    )
    close(array(ops.cast(found, "float32")), rounded, 1e-6 if dtype == "float32" else 4e-3)


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_attention(training):
    variables = [keras.Variable(numbers((2, 5, 3, 4), seed)) for seed in range(3)]
    weights = ops.convert_to_tensor(numbers((2, 5, 3, 4), 3))

    def loss(run):
        return lambda: ops.sum(run(*(variable + 0 for variable in variables)) * weights)

    _, found = gradients(loss(lambda *parts: attend(*parts, training)), variables)
    _, expected = gradients(loss(ops.dot_product_attention), variables)
    for one, other in zip(found, expected, strict=True):
        close(one, other, 1e-5)
