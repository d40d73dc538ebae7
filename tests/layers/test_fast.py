"""The fast form on each backend equals the plain form."""

import platform
from math import erf
from pathlib import Path

import keras
import numpy as np
import pytest
from harness import BACKEND, array, close, gradients, numbers, precision, randomize, run_python
from keras import ops
from plain import softmax

import keras_vitx as kv
from keras_vitx.layers import MLP, Attention, Block, ClassAttention, ClassBlock, fast


def dense(**arguments):
    layer = keras.layers.Dense(6, bias_initializer=keras.initializers.RandomNormal(), **arguments)
    layer.build((None, 5, 4))
    return layer


@pytest.mark.parametrize("changes", [{}, {"use_bias": False}, {"lora_rank": 2}])
def test_linear(changes):
    layer, x = dense(**changes), ops.convert_to_tensor(numbers((2, 5, 4)))
    if "lora_rank" in changes:
        layer.lora_kernel_b.assign(numbers(layer.lora_kernel_b.shape))
    close(array(fast.linear(layer, x)), array(layer(x)), 1e-6)


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's")
@pytest.mark.parametrize("units", [2, 4, 6])
def test_gradients_of_linear_in_training(units, monkeypatch):
    import jax

    layer = keras.layers.Dense(units, bias_initializer=keras.initializers.RandomNormal())
    layer.build((None, 5, 4))
    x, weights = numbers((2, 5, 4)), numbers((2, 5, units))

    def loss(x, kernel, bias, training):
        mapping = [(layer.kernel, kernel), (layer.bias, bias)]
        with keras.StatelessScope(state_mapping=mapping):
            return ops.sum(fast.linear(layer, x, training) ** 2 * weights)

    values = x, layer.kernel.value, layer.bias.value
    expected = jax.value_and_grad(loss, (0, 1, 2))(*values, False)
    with monkeypatch.context() as without:
        without.setattr(keras.layers.Dense, "__call__", None)
        found = jax.jit(jax.value_and_grad(loss, (0, 1, 2)), static_argnums=3)(*values, True)
    for one, other in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        close(array(one), array(other), 1e-6)


def test_linear_of_a_quantized_layer():
    layer, x = dense(), ops.convert_to_tensor(numbers((2, 5, 4)))
    layer.quantize("int8")
    close(array(fast.linear(layer, x)), array(layer(x)), 1e-6)


def test_linear_keeps_the_layers_precision():
    with precision("mixed_bfloat16"):
        layer = dense()
    y = fast.linear(layer, ops.convert_to_tensor(numbers((2, 5, 4))))
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("heads_last", [True, False])
def test_mix(biased, heads_last):
    kernel, x, bias = numbers((3, 4)), numbers((2, 4, 7), 1), numbers((3,), 2)
    given = (kernel, x, bias if biased else None)
    given = [ops.convert_to_tensor(part) if part is not None else None for part in given]
    expected = np.einsum("ij,bjc->bic", kernel, x) + biased * bias[:, None]
    found = fast.mix(*given, heads_last)
    close(array(found), expected, 1e-6)
    # Again, with the heads last in memory.
    again = fast.mix(ops.transpose(given[0]), found)
    close(array(again), np.einsum("ij,bic->bjc", kernel, expected), 1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu(dtype, training):
    x = np.concatenate([numbers((200,)) * 4, [-30, -6, -5.2, 0, 5.2, 6, 30]]).astype("float32")
    given = ops.cast(ops.convert_to_tensor(x), dtype)
    exact = array(keras.activations.gelu(ops.cast(given, "float32"), approximate=False))
    found = array(ops.cast(fast.gelu(given, training), "float32"))
    close(found, exact, 1e-6 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("training", [True, False])
def test_gradient_of_gelu(training):
    x = np.array([-6, -2, -1e-3, 0, 1e-3, 2, 6], "float32")
    variable = keras.Variable(x)
    _, (found,) = gradients(lambda: ops.sum(fast.gelu(variable + 0, training)), [variable])
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    share = np.array([(1 + erf(v / 2**0.5)) / 2 for v in x])
    close(found, share + x * density, 1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 4, "strides": 4},
        {"kernel_size": 3, "padding": "same", "use_bias": False},
        {"kernel_size": 7, "strides": 2},
        {"kernel_size": 4, "strides": 3},
        {"kernel_size": 5, "strides": 5},
        {"kernel_size": (2, 4), "strides": (2, 4)},
    ],
    ids=str,
)
def test_convolution(arguments, training):
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

    close(array(fast.convolution(layer, images + 0, training)), array(layer(images + 0)), 1e-6)
    _, found = gradients(loss(lambda x: fast.convolution(layer, x, training)), variables)
    _, expected = gradients(loss(layer), variables)
    for one, other in zip(found, expected, strict=True):
        close(one, other, 1e-5)


def test_relu6():
    x = numbers((4, 50)) * 8
    close(array(fast.relu6(ops.convert_to_tensor(x.copy()))), np.clip(x, 0, 6), 0)


@pytest.mark.parametrize("scale", [1, 0.3])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("trainable", "policy"), [(True, "float32"), (False, "float32"), (True, "mixed_bfloat16")]
)
def test_batch_norm(trainable, policy, training, scale):
    fast_one, plain = (
        keras.layers.BatchNormalization(axis=1, momentum=0.9, trainable=trainable, dtype=policy)
        for _ in "ab"
    )
    x = ops.cast(numbers((3, 4, 5, 2)) * 3 + 1, policy.removeprefix("mixed_"))
    for norm in (fast_one, plain):
        norm.build(x.shape)
        for seed, variable in enumerate(norm.variables):
            variable.assign(1 + numbers(variable.shape, seed) ** 2)
    y = fast.batch_norm(fast_one, x, training, scale=scale)
    expected = scale * plain(x, training=training)
    assert y.dtype == expected.dtype
    y, expected = (array(ops.cast(each, "float32")) for each in (y, expected))
    close(y, expected, 1e-6 if policy == "float32" else 8e-3)
    for one, other in zip(fast_one.variables, plain.variables, strict=True):
        close(array(one), array(other), 1e-6)


def test_batch_norm_of_the_last_axis():
    fast_one, plain = (keras.layers.BatchNormalization(epsilon=1e-5) for _ in "ab")
    x = numbers((3, 4, 5, 2)) * 3 + 1
    for norm in (fast_one, plain):
        norm.build(x.shape)
    y = fast.batch_norm(fast_one, ops.convert_to_tensor(x))
    close(array(y), array(plain(x, training=True)), 1e-6)
    for one, other in zip(fast_one.variables, plain.variables, strict=True):
        close(array(one), array(other), 1e-6)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's")
@pytest.mark.parametrize("channels", [6, 16])
def test_batch_norm_relu6(channels, monkeypatch):
    import torch

    monkeypatch.setattr(fast, "ROWS", 4 * channels * 7)  # Seven rows of 24.
    fast_one, plain = (keras.layers.BatchNormalization(axis=1, momentum=0.9) for _ in "ab")
    for norm in (fast_one, plain):
        norm.build((3, channels, 4, 2))
        for seed, variable in enumerate(norm.variables):
            variable.assign(1 + 2 * numbers(variable.shape, seed) ** 2)
    x = torch.from_numpy(numbers((3, 4, 2, channels)) * 3 + 9).permute(0, 3, 1, 2)
    weights = torch.from_numpy(numbers((3, channels, 4, 2), 1))

    def found(norm, form):
        given = x.clone().requires_grad_()
        y = form(norm, given)
        inputs = given, norm.gamma.value, norm.beta.value
        first = torch.autograd.grad((y * weights).sum(), inputs, create_graph=True)
        eager = torch.autograd.grad((form(norm, given) * weights).sum(), inputs)
        second = torch.autograd.grad((first[0] ** 2).sum(), inputs[:2])
        return y, *first, *eager, *second

    def in_two(norm, x):
        return torch.nn.functional.relu6(norm(x, training=True))

    one, other = found(fast_one, fast.batch_norm_relu6), found(plain, in_two)
    assert (other[0] == 0).any() and (other[0] == 6).any()
    for ours, theirs in zip(one, other, strict=True):
        close(array(ours.detach()), array(theirs.detach()), 1e-5)
    for ours, theirs in zip(fast_one.variables, plain.variables, strict=True):
        close(array(ours), array(theirs), 1e-6)


def test_in_pieces(monkeypatch):
    monkeypatch.setattr(fast, "PIECE", 2 * 3 * 4 * 4 * 4)  # Two images.
    maps, sizes = ops.convert_to_tensor(numbers((5, 3, 4, 4))), []

    def double(piece):
        sizes.append(piece.shape[0])
        return piece * 2

    close(array(fast.in_pieces(double, maps)), 2 * array(maps), 0)
    assert sizes == ([2, 2, 1] if BACKEND == "torch" else [5])
    assert fast.in_pieces(double, maps[:0]).shape == (0, 3, 4, 4)


@keras.saving.register_keras_serializable(package="keras_vitx_tests")
class Own(keras.layers.LayerNormalization):
    """A user-defined layer."""


def test_what_runs_straight():
    x = ops.convert_to_tensor(numbers((2, 5, 4)))

    def straight(layer, x=x, dtype="float32", build=True):
        if build:
            layer.build(x.shape)
        return fast.runs_straight(layer, x, dtype)

    assert straight(keras.layers.LayerNormalization()) == (BACKEND == "torch")
    quantized = dense()
    quantized.quantize("int8")
    assert not straight(quantized, build=False)
    assert not straight(Own()), "a user's own"
    assert not straight(keras.layers.LayerNormalization(), build=False), "not built"
    assert not straight(keras.layers.LayerNormalization(), dtype="bfloat16"), "a cast"
    assert not straight(keras.layers.LayerNormalization(activity_regularizer="l2"))
    with keras.RematScope(mode="full"):
        assert not straight(keras.layers.LayerNormalization())
    assert not straight(keras.layers.LayerNormalization(), keras.KerasTensor((2, 5, 4)))


@pytest.mark.skipif(BACKEND != "torch", reason="elsewhere all children are called by Keras")
def test_children_that_run_straight_give_what_keras_gives(monkeypatch):
    block = kv.layers.Block(
        kv.layers.TalkingHeadsAttention(2, dropout=0.0),
        kv.layers.MLP(on_hidden=[kv.layers.ContextBroadcasting()]),
        layer_scale=0.5,
    )
    x = ops.convert_to_tensor(numbers((2, 5, 8)))
    block.build(x.shape)
    for training in (True, False):
        straight = array(block(x, training=training))
        with monkeypatch.context() as patch:
            patch.setattr("keras_vitx.layers.base.runs_straight", lambda *_: False)
            close(straight, array(block(x, training=training)), 0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("keys", [5, 9])
def test_attention(keys, training):
    shapes = ((2, 5, 3, 4), (2, keys, 3, 4), (2, keys, 3, 4))
    given = [numbers(shape, seed) for seed, shape in enumerate(shapes)]
    given[0] = given[0] * 100  # Logits so large that their exponentials overflow.
    query, key, value = given
    logits = np.einsum("bqhs,bkhs->bhqk", query, key) / 2
    found = fast.attention(*map(ops.convert_to_tensor, given), training)
    close(array(found), np.einsum("bhqk,bkhs->bqhs", softmax(logits), value), 1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_attention_in_bfloat16(training):
    given = [ops.cast(numbers((2, 5, 3, 4), seed), "bfloat16") for seed in range(3)]
    query, key, value = (array(ops.cast(part, "float32")) for part in given)
    maps = softmax(np.einsum("bqhs,bkhs->bhqk", query, key) / 2)
    found = ops.cast(fast.attention(*given, training), "float32")
    close(array(found), np.einsum("bhqk,bkhs->bqhs", maps, value), 1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_softmax(dtype):
    logits = ops.cast(numbers((3, 40)) * 8, dtype)
    found = fast.softmax(logits)
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
    step = fast.keep_products(lambda query: fast.attention(query, query, query, True))
    program = str(jax.make_jaxpr(jax.grad(lambda query: step(query).sum()))(query))
    assert program.count(" exp ") == 1


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_attention(training):
    variables = [keras.Variable(numbers((2, 5, 3, 4), seed)) for seed in range(3)]
    weights = ops.convert_to_tensor(numbers((2, 5, 3, 4), 3))

    def loss(run):
        return lambda: ops.sum(run(*(variable + 0 for variable in variables)) * weights)

    _, found = gradients(loss(lambda *parts: fast.attention(*parts, training)), variables)
    _, expected = gradients(loss(ops.dot_product_attention), variables)
    for one, other in zip(found, expected, strict=True):
        close(one, other, 1e-5)


# With the C library itself: other live objects may keep memory from being returned.
FAULTS = """
import ctypes, resource
import keras_vitx
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.memset.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
library.free.argtypes = [ctypes.c_void_p]
size = 40 << 20
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    blocks = [library.malloc(size) for _ in range(8)]
    for block in blocks:
        library.memset(block, 1, size)
    for block in blocks:
        library.free(block)
def measured():
    for _ in range(5):
        use()
    before = faults()
    for _ in range(10):
        use()
    return faults() - before
given_back = measured()
assert keras_vitx.keep_memory()
kept = measured()
def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
before = held()
keras_vitx.backend.return_memory()
assert held() < before - 7 * size
print(given_back, kept)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="changes glibc only")
def test_memory_of_a_gpu_is_left_alone(monkeypatch):
    monkeypatch.setattr(kv.backend, "ACCELERATORS", ("null",))
    assert not kv.backend.keep_memory()
    monkeypatch.setattr(kv.backend, "ACCELERATORS", ())
    assert kv.backend.keep_memory()


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc"
    or any(Path("/dev", device).exists() for device in kv.backend.ACCELERATORS),
    reason="changes glibc only, and not beside a GPU",
)
def test_freed_memory_is_kept(monkeypatch):
    given_back, kept = map(int, run_python(FAULTS).stdout.split())
    assert kept < given_back / 4
    monkeypatch.setenv("KERAS_VITX_KEEP_MEMORY", "0")
    assert not kv.keep_memory()


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's products")
@pytest.mark.parametrize(
    "made",
    [
        lambda: Block(Attention(2, qkv_bias=False), MLP(), layer_scale=0.5),
        lambda: ClassBlock(ClassAttention(2), MLP(), layer_scale=0.5),
        lambda: Block(Attention(2), MLP(activation="relu"), residual_scale=0.5),
    ],
)
def test_products_without_gradients(made, monkeypatch):
    """At inference on a CPU, oneDNN multiplies, and applies the GELU."""
    import torch

    block = made()
    x = numbers((3, 5, 8))
    block(x)
    randomize(block)
    monkeypatch.setattr(fast, "LARGE", 0)
    ran, choose = [], fast._runs_onednn
    monkeypatch.setattr(fast, "_runs_onednn", lambda x: ran.append(choose(x)) or ran[-1])
    expected = array(block(x))
    assert ran and not any(ran)
    ran.clear()
    with torch.no_grad():
        close(array(block(x)), expected, 1e-6)
    assert all(ran) == (fast.ONEDNN is not None)
