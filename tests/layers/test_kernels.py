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
    "changes", [{}, {"use_bias": False}, {"lora_rank": 2}, {"activation": "relu"}]
)
def test_dense(changes):
    layer, x = dense(**changes), ops.convert_to_tensor(numbers((2, 5, 4)))
    if "lora_rank" in changes:
        layer.lora_kernel_b.assign(numbers(layer.lora_kernel_b.shape))
    for training in (False, True):
        close(array(call(layer, x, training)), array(layer(x)), 1e-6)


def test_a_quantized_dense():
    layer, x = dense(), ops.convert_to_tensor(numbers((2, 5, 4)))
    layer.quantize("int8")
    close(array(call(layer, x)), array(layer(x)), 1e-6)


def test_dense_keeps_its_precision():
    with precision("mixed_bfloat16"):
        layer = kv.layers.MLP()
    y = layer(ops.cast(numbers((2, 5, 4)), "bfloat16"))
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"


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


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("rows", [3, 5])
def test_mix_heads(biased, rows):
    kernel, maps, bias = numbers((rows, 4)), numbers((2, 4, 3, 5), 1), numbers((rows,), 2)
    given = (kernel, maps, bias if biased else None)
    given = [ops.convert_to_tensor(part) if part is not None else None for part in given]
    expected = np.einsum("ij,bjqk->biqk", kernel, maps) + biased * bias[:, None, None]
    found = layer_ops.mix_heads(*given)
    close(array(found), expected, 1e-6)
    # An expansion may have left the heads last in memory.
    again = layer_ops.mix_heads(ops.transpose(given[0]), found)
    close(array(again), np.einsum("ij,biqk->bjqk", kernel, expected), 1e-6)


def test_convolve_maps():
    maps, kernel = numbers((2, 3, 4, 5)), numbers((3, 1, 3, 5), 1)
    found = array(layer_ops.convolve_maps(*map(ops.convert_to_tensor, (maps, kernel))))
    padded = np.pad(maps, ((0, 0), (0, 0), (1, 1), (2, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 5), axis=(2, 3))
    close(found, np.einsum("bhqkij,hij->bhqk", windows, kernel[:, 0]), 1e-5)


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
    ("trainable", "policy"),
    [
        (True, "float32"),
        (False, "float32"),
        (True, "mixed_bfloat16"),
        (True, "mixed_float16"),
    ],
)
def test_batch_norm(trainable, policy, training):
    ours, plain = (
        keras.layers.BatchNormalization(axis=1, momentum=0.9, trainable=trainable, dtype=policy)
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


def test_batch_norm_of_the_last_axis():
    ours, plain = (keras.layers.BatchNormalization(epsilon=1e-5) for _ in "ab")
    x = numbers((3, 4, 5, 2)) * 3 + 1
    for norm in (ours, plain):
        norm.build(x.shape)
    y = call(ours, ops.convert_to_tensor(x), True)
    close(array(y), array(plain(x, training=True)), 1e-6)
    for one, other in zip(ours.variables, plain.variables, strict=True):
        close(array(one), array(other), 1e-6)


@pytest.mark.skipif(BACKEND != "torch", reason="the others call every layer")
def test_layers_that_are_called_directly():
    from keras_vitx.layers.kernels.torch import is_direct

    x = ops.convert_to_tensor(numbers((2, 5, 4)))

    def direct(layer, x=x, dtype="float32", build=True):
        if build:
            layer.build(x.shape)
        return is_direct(layer, x, dtype)

    class Own(keras.layers.LayerNormalization):
        """A user-defined layer."""

    assert direct(keras.layers.LayerNormalization())
    quantized = dense()
    quantized.quantize("int8")
    assert not direct(quantized, build=False)
    assert not direct(Own()), "a user's own"
    assert not direct(keras.layers.LayerNormalization(), build=False), "not built"
    assert not direct(keras.layers.LayerNormalization(), dtype="bfloat16"), "a cast"
    assert not direct(keras.layers.LayerNormalization(activity_regularizer="l2"))
    with keras.RematScope(mode="full"):
        assert not direct(keras.layers.LayerNormalization())
    assert not direct(keras.layers.LayerNormalization(), keras.KerasTensor((2, 5, 4)))


@pytest.mark.skipif(BACKEND != "torch", reason="the others call every layer")
def test_layers_called_directly_give_what_keras_gives(monkeypatch):
    from keras_vitx.layers.kernels import torch as kernels

    block = kv.layers.Block(
        kv.layers.TalkingHeadsAttention(2, dropout=0.0),
        kv.layers.MLP(on_hidden=[kv.layers.ContextBroadcasting()]),
        layer_scale=0.5,
    )
    x = ops.convert_to_tensor(numbers((2, 5, 8)))
    block.build(x.shape)
    for training in (True, False):
        direct = array(block(x, training=training))
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "is_direct", lambda *_: False)
            close(direct, array(block(x, training=training)), 1e-6)


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


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's")
def test_maps_are_not_computed_again():
    import jax

    query = jax.numpy.asarray(numbers((2, 5, 3, 4)))
    step = layer_ops.save_products(lambda query: attend(query, query, query, True))
    program = str(jax.make_jaxpr(jax.grad(lambda query: step(query).sum()))(query))
    assert program.count(" exp ") == 1


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
