"""What is faster on a backend is equal to its plain form."""

import keras
import numpy as np
import pytest
from harness import BACKEND, array, close, numbers, precision, run_python
from keras import ops

from keras_vitx.layers import fast


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
def test_mix(biased):
    kernel, x, bias = numbers((3, 4)), numbers((2, 4, 7), 1), numbers((3,), 2)
    given = (kernel, x, bias if biased else None)
    found = fast.mix(*(ops.convert_to_tensor(part) if part is not None else None for part in given))
    expected = np.einsum("ij,bjc->bic", kernel, x) + biased * bias[:, None]
    close(array(found), expected, 1e-6)


@pytest.mark.parametrize("keys", [5, 9])
def test_attention(keys):
    shapes = ((2, 5, 3, 4), (2, keys, 3, 4), (2, keys, 3, 4))
    given = [numbers(shape, seed) for seed, shape in enumerate(shapes)]
    query, key, value = given
    logits = np.einsum("bqhs,bkhs->bhqk", query, key) / 2
    maps = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    found = fast.attention(*map(ops.convert_to_tensor, given))
    close(array(found), np.einsum("bhqk,bkhs->bqhs", maps, value), 1e-6)


FAULTS = """
import resource
import keras_vitx, torch
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def some():
    return [torch.ones(2_000_000) for _ in range(8)]
some()
before = faults()
for _ in range(10):
    some()
print(faults() - before)
"""


@pytest.mark.skipif(BACKEND != "torch", reason="changes PyTorch's memory only")
def test_freed_memory_is_kept(monkeypatch):
    kept = int(run_python(FAULTS).stdout)
    monkeypatch.setenv("KERAS_VITX_KEEP_MEMORY", "0")
    given_back = int(run_python(FAULTS).stdout)
    assert kept < given_back / 10
