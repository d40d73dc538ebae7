"""The kernels of each backend equal the layers of Keras and the plain forms."""

from math import erf

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, call, close, gradients, numbers
from keras import ops
from plain import softmax

from keras_vitx.layers import ops as layer_ops


def by_kernel(layer, x, training=False):
    """Call a layer as another one does that has its precision."""
    return layer_ops.call(layer, x, training, layer.compute_dtype)


def rounded(x):
    """The values of a tensor of any precision."""
    return array(ops.cast(x, "float32"))


class Doubling(keras.layers.LayerNormalization):
    def call(self, x):
        return 2 * x


DENSE, CONV, NORM = keras.layers.Dense, keras.layers.Conv2D, keras.layers.BatchNormalization
# The class, arguments and the shape of the input.
CASES = {
    "dense": (DENSE, {}),
    "dense/lora": (DENSE, dict(lora_rank=2)),
    "dense/relu": (DENSE, dict(activation="relu")),
    "dense/int8": (DENSE, dict(name="int8")),
    "a layer of the user": (Doubling, {}),
    "convolution/patches": (CONV, dict(kernel_size=4, strides=4)),
    "convolution/same": (CONV, dict(kernel_size=3, padding="same", use_bias=False)),
    "convolution/stem": (CONV, dict(kernel_size=7, strides=2)),
    "convolution/rest": (CONV, dict(kernel_size=5, strides=5)),
    "convolution/relu": (CONV, dict(kernel_size=2, strides=2, use_bias=False, activation="relu")),
    "convolution/rectangle": (CONV, dict(kernel_size=(2, 4), strides=(2, 4))),
    "batch norm": (NORM, dict(axis=1)),
    "batch norm/last": (NORM, dict(axis=-1)),
    "batch norm/frozen": (NORM, dict(axis=1, trainable=False)),
    "batch norm/bfloat16": (NORM, dict(axis=1, dtype="mixed_bfloat16")),
    "batch norm/float16": (NORM, dict(axis=1, dtype="mixed_float16")),
}
COMMON = {
    DENSE: ({"units": 6}, (2, 5, 4)),
    CONV: ({"filters": 6, "data_format": "channels_last"}, (2, 12, 16, 3)),
    NORM: ({}, (3, 4, 5, 2)),
    Doubling: ({}, (2, 5, 4)),
}
# The others have no kernel of the layers of Keras.
HERE = {"torch": tuple(CASES), "jax": [name for name in CASES if name[0] in "dc"]}.get(BACKEND, ())


# Only normalization differs in training.
@pytest.mark.parametrize(
    ("name", "training"),
    [*((name, True) for name in HERE), *((name, False) for name in HERE if CASES[name][0] is NORM)],
)
def test_layers_of_keras(name, training):
    """The output, its gradients, and the statistics."""
    make, arguments = CASES[name]
    common, shape = COMMON[make]
    ours, theirs = (make(**common, **arguments) for _ in range(2))
    for layer in (ours, theirs):
        layer.build(shape)
        for seed, variable in enumerate(layer.variables):
            variable.assign(1 + numbers(variable.shape, seed) ** 2)
        if layer.name == "int8":
            layer.quantize("int8")
    x = keras.Variable(numbers(shape) * 3 + 1)
    weights = ops.convert_to_tensor(numbers(ours.compute_output_shape(shape), 1))
    exact = ours.compute_dtype == "float32"

    def loss(run, layer):
        y = run(layer, ops.cast(x + 0, ours.compute_dtype), training)
        return ops.sum(ops.cast(y, "float32") * weights)

    given = ops.cast(x + 0, ours.compute_dtype)
    y, expected = by_kernel(ours, given, training), call(theirs, given, training)
    assert y.dtype == expected.dtype
    close(rounded(y), rounded(expected), 1e-6 if exact else 8e-3)
    for one, other in zip(ours.variables, theirs.variables, strict=True):
        close(array(one), array(other), 1e-6)
    if exact and ours.name != "int8":
        _, found = gradients(lambda: loss(by_kernel, ours), [x, *ours.trainable_variables])
        _, wanted = gradients(lambda: loss(call, theirs), [x, *theirs.trainable_variables])
        for one, other in zip(found, wanted, strict=True):
            close(one, other, 1e-5)


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's")
def test_forward_mode_differentiation():
    import jax

    model = FAMILIES["RefinedViT"](depth=2)
    state = [variable.value for variable in model.trainable_variables]
    rest = [variable.value for variable in model.non_trainable_variables]
    x = numbers((2, 16, 16, 3))

    def loss(state):
        y, _ = model.stateless_call(state, rest, x, training=True)
        return ops.sum(y**2)

    tangent = [jax.numpy.ones_like(value) for value in state]
    _, forward = jax.jit(lambda *each: jax.jvp(loss, each[:1], each[1:]))(state, tangent)
    backward = sum(array(one).sum() for one in jax.jit(jax.grad(loss))(state))
    close(array(forward), backward, 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu(dtype):
    x = ops.cast(np.linspace(-9, 9, 181, dtype="float32"), dtype)
    expected = [v * (1 + erf(v / 2**0.5)) / 2 for v in rounded(x)]
    close(rounded(layer_ops.gelu(x)), expected, 1e-6 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_softmax(dtype):
    logits = ops.cast(numbers((3, 40)) * 8, dtype)
    found = layer_ops.softmax(logits)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    # Exact before its result is rounded.
    expected = ops.cast(softmax(rounded(logits)), dtype)
    close(rounded(found), rounded(expected), 1e-6 if dtype == "float32" else 4e-3)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("keys", "dtype", "scale"),
    # Logits so large that their exponentials overflow.
    [(5, "float32", 100), (9, "float32", 100), (5, "float32", 1), (5, "bfloat16", 1)],
)
def test_attention(keys, dtype, scale, training):
    shapes = ((2, 5, 3, 4), (2, keys, 3, 4), (2, keys, 3, 4))
    given = [ops.cast(numbers(shape, seed), dtype) for seed, shape in enumerate(shapes)]
    given[0] = given[0] * scale
    query, key, value = map(rounded, given)
    maps = softmax(np.einsum("bqhs,bkhs->bhqk", query, key) / 2)
    found = rounded(layer_ops.attention(*given, training=training))
    exact = dtype == "float32"
    close(found, np.einsum("bhqk,bkhs->bqhs", maps, value), 1e-5 if exact else 1e-2)
    if not exact or scale > 1:
        return
    variables, weights = list(map(keras.Variable, given)), ops.convert_to_tensor(numbers(shapes[0]))

    def loss(run, **arguments):
        return lambda: ops.sum(run(*(v + 0 for v in variables), **arguments) * weights)

    _, found = gradients(loss(layer_ops.attention, training=training), variables)
    _, expected = gradients(loss(ops.dot_product_attention), variables)
    for one, other in zip(found, expected, strict=True):
        close(one, other, 1e-5)


@pytest.mark.skipif(BACKEND != "jax", reason="a kernel of JAX")
def test_mixes_of_heads_on_a_tpu(monkeypatch):
    import jax

    kernel, maps, bias = numbers((3, 3), 1), numbers((2, 3, 5, 6), 2), numbers((3,), 3)
    expected = np.einsum("ij,bjqk->biqk", kernel, maps) + bias[:, None, None]
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    close(array(layer_ops.mix_heads(kernel, maps, bias)), expected, 1e-6)

    def total(kernel, maps, mix):
        return ops.sum(mix(kernel, maps) ** 3)

    found, plain = (
        jax.grad(total, (0, 1))(kernel, maps, mix)
        for mix in (layer_ops.mix_heads, lambda *two: ops.einsum("ij,bjqk->biqk", *two))
    )
    for one, other in zip(found, plain, strict=True):
        close(array(one), array(other), 1e-5)


@pytest.mark.skipif(BACKEND != "torch", reason="a kernel of PyTorch")
@pytest.mark.parametrize("family", ["CaiT", "DeepViT", "RefinedViT"])
def test_attention_by_images_is_that_of_the_batch(family, monkeypatch):
    import torch

    from keras_vitx.layers.kernels import torch as kernels

    model, images = FAMILIES[family](), numbers((5, 16, 16, 3))
    with torch.no_grad():
        found = []
        for limit in (0, 10**9):
            monkeypatch.setattr(kernels, "BYTES_OF_MAPS", limit)
            found.append(array(model(images, training=False)))
    close(*found, 1e-6)
