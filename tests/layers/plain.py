"""Building blocks of the papers' formulas, in plain NumPy."""

from itertools import product
from math import erf

import numpy as np
from harness import array, numbers, randomize

X = numbers((3, 5, 8))


def built(layer, x=X, shape=None):
    """Build a layer for `x`, or for `shape`, and give it random weights."""
    layer.build(x.shape if shape is None else shape)
    randomize(layer)
    return layer


def dense(x, layer):
    return x @ array(layer.kernel.value) + (array(layer.bias.value) if layer.use_bias else 0)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def mix(maps, layer):
    kernel = array(layer.kernel.value)
    batch, _, queries, keys = maps.shape
    mixed = np.zeros((batch, len(kernel), queries, keys), maps.dtype)
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[1]):
            mixed[:, i] += kernel[i, j] * maps[:, j]
        if layer.use_bias:
            mixed[:, i] += array(layer.bias.value)[i]
    return mixed


def convolve(maps, kernel):
    """Convolve each map with its kernel, `(heads, height, width)`, with zero padding."""
    _, _, queries, keys = maps.shape
    _, height, width = kernel.shape
    convolved = np.zeros_like(maps)
    for i, j, a, b in product(range(queries), range(keys), range(height), range(width)):
        row, column = i + a - height // 2, j + b - width // 2
        if 0 <= row < queries and 0 <= column < keys:
            convolved[:, :, i, j] += kernel[:, a, b] * maps[:, :, row, column]
    return convolved


def batch_norm(x, layer, training=False, axis=1):
    x = np.moveaxis(x, axis, -1)
    others = tuple(range(x.ndim - 1))
    mean, variance = array(layer.moving_mean.value), array(layer.moving_variance.value)
    if training:
        mean, variance = x.mean(others), x.var(others)
    y = (x - mean) / np.sqrt(variance + 1e-5)
    return np.moveaxis(y * array(layer.gamma.value) + array(layer.beta.value), -1, axis)


def split_heads(x, heads):
    """Reshape `(batch, tokens, heads * size)` to `(batch, heads, tokens, size)`."""
    return np.stack(np.split(x, heads, axis=-1), axis=1)


def aggregate(maps, value):
    """Multiply `(batch, tokens, heads * size)` by the maps, per head."""
    parts = split_heads(value, maps.shape[1])
    return np.concatenate([maps[:, h] @ parts[:, h] for h in range(maps.shape[1])], axis=-1)


def logits(query, key, heads):
    query, key = split_heads(query, heads), split_heads(key, heads)
    return query @ key.swapaxes(2, 3) / np.sqrt(query.shape[-1])


def attention(q, k, v, layer):
    """Return (output before the projection, maps), computed per head."""
    maps = logits(q, k, layer.num_heads)
    for part in layer.on_logits:
        maps = mix(maps, part)
    maps = softmax(maps)
    for part in layer.on_weights:
        maps = mix(maps, part)
    return aggregate(maps, v), maps


def norm(x, layer, epsilon=None):
    epsilon = layer.epsilon if epsilon is None else epsilon
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return x * array(layer.gamma.value) + array(layer.beta.value)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def mlp(x, layer):
    return dense(gelu(dense(x, layer.fc1)), layer.fc2)
