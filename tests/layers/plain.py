"""Every layer in plain NumPy, written from the papers' formulas: `plain(layer, x)`.

For an attention, `attend(layer, x)` returns its output and its maps.
"""

from functools import singledispatch
from itertools import product
from math import erf

import keras
import numpy as np
import pytest
from cases import LAYERS
from harness import array, numbers, randomize

from keras_vitx import layers as kvl
from keras_vitx.layers.tokens import TokenDownsampling

X = numbers((3, 5, 8))


def built(layer, x=X, shape=None):
    """Build a layer for `x`, or for `shape`, and give it random weights."""
    layer.build(x.shape if shape is None else shape)
    randomize(layer)
    return layer


def made(name, random=True):
    """Return a built layer of the table, with random weights or as it starts, and its input."""
    case = LAYERS[name]
    layer = case.make()
    layer.build(case.inputs(lambda shape: (None, *shape)))
    if random:
        randomize(layer)
    return layer, case.values(3)


def draws(layer):
    """Whether training draws random numbers in a built layer."""
    return any("seed_generator" in variable.path for variable in layer.variables)


def value(variable):
    return array(variable.value).astype("float64")


def softmax(x, mask=True):
    """Softmax over the allowed entries; 0 at the others."""
    exponents = np.where(mask, np.exp(x - x.max(-1, keepdims=True)), 0)
    sums = exponents.sum(-1, keepdims=True)
    return np.divide(exponents, sums, out=np.zeros_like(exponents), where=sums > 0)


def bisected(total):
    """Return the argument at which a decreasing function is 1, row by row; between -1e4 and 1e4."""
    low, high = -1e4, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        above = total(middle) > 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return low


def normalize(name, x, mask=True):
    """Maps of logits over the allowed keys, 0 at the others."""
    allowed, keys = np.broadcast_to(mask, x.shape), x.shape[-1]
    if name == "softmax":
        return softmax(x, mask)
    if name in ("sparsemax", "entmax15"):
        power = {"sparsemax": 1, "entmax15": 2}[name]

        def maps_at(threshold):
            return np.where(allowed, np.maximum(x / power - threshold, 0) ** power, 0)

        maps = maps_at(bisected(lambda t: maps_at(t).sum(-1, keepdims=True)))
        return np.where(allowed.any(-1, keepdims=True), maps, 0)
    powers = np.where(allowed, np.exp(np.where(allowed, x, 0)), 0)
    maps = {
        "off_by_one": lambda: powers / (1 + powers.sum(-1, keepdims=True)),
        "sigmoid": lambda: 1 / (1 + keys * np.exp(-x)),
        "relu": lambda: np.maximum(x, 0) / keys,
        "softpick": lambda: (
            np.maximum(powers - 1, 0)
            / (np.abs(np.where(allowed, powers - 1, 0)).sum(-1, keepdims=True) + 1e-8)
        ),
    }[name]()
    return np.where(allowed, maps, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def norm(x, layer, epsilon=None):
    """Layer normalization, with another epsilon than the layer's if there is one."""
    epsilon = layer.epsilon if epsilon is None else epsilon
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return x * value(layer.gamma) + value(layer.beta)


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


def convolution(images, kernel, stride, padding=0):
    """Convolve with a kernel `(height, width, in, out)` and zero padding, term by term."""
    images = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width = kernel.shape[:2]
    rows = (images.shape[1] - height) // stride + 1
    columns = (images.shape[2] - width) // stride + 1
    y = np.zeros((len(images), rows, columns, kernel.shape[3]))
    for i, j in product(range(rows), range(columns)):
        window = images[:, i * stride : i * stride + height, j * stride : j * stride + width]
        y[:, i, j] = np.tensordot(window, kernel, 3)
    return y


def flat(images):
    return images.reshape(len(images), -1, images.shape[-1])


@singledispatch
def plain(layer, x, training=False):
    """Return what `layer` computes of `x`."""
    pytest.fail(f"write the formula of {type(layer).__name__} in tests/layers/plain.py")


@plain.register(keras.layers.Dense)
def dense(layer, x, training=False):
    return x @ value(layer.kernel) + (value(layer.bias) if layer.use_bias else 0)


@plain.register
def _(layer: keras.layers.LayerNormalization, x, training=False):
    return norm(x, layer)


@plain.register(keras.layers.BatchNormalization)
def batch_norm(layer, x, training=False):
    x = np.moveaxis(x, layer.axis, -1)
    others = tuple(range(x.ndim - 1))
    mean, variance = value(layer.moving_mean), value(layer.moving_variance)
    if training:
        mean, variance = x.mean(others), x.var(others)
    y = (x - mean) / np.sqrt(variance + 1e-5) * value(layer.gamma) + value(layer.beta)
    return np.moveaxis(y, -1, layer.axis)


# Layers over maps.


@plain.register
def mix(layer: kvl.HeadMixing, maps, training=False):
    mixed = np.einsum("ij,bjqk->biqk", value(layer.kernel), maps)
    return mixed + value(layer.bias)[:, None, None] if layer.use_bias else mixed


@plain.register
def _(layer: kvl.ReAttention, maps, training=False):
    mixed = mix(layer.reatten_matrix, maps)
    if layer.normalize:
        mixed = batch_norm(layer.var_norm, mixed, training)
    return layer.map_scale * mixed


@plain.register
def local(layer: kvl.LocalMapConvolution, maps, training=False):
    kernel = value(layer.kernel)
    if layer.constraint == "row+column":
        along_keys, along_queries = kernel[:, 0, None, :], kernel[:, 1, :, None]
        return convolve(maps, along_keys) + convolve(maps, along_queries)
    if layer.constraint == "spatial":
        patches = layer.grid[0] * layer.grid[1]
        result = maps.copy()
        for query in range(maps.shape[2]):
            image = maps[:, :, query, -patches:].reshape(*maps.shape[:2], *layer.grid)
            image = convolve(image, kernel[:, 0])
            result[:, :, query, -patches:] = image.reshape(*maps.shape[:2], patches)
        return result
    return convolve(maps, kernel[:, 0])


@plain.register
def _(layer: kvl.Refinement, maps, training=False):
    maps = local(layer.local, mix(layer.expand, maps))
    return mix(layer.reduce, maps) if layer.reduction else maps


@plain.register
def _(layer: kvl.ResidualRefinement, maps, training=False):
    def relu6_of_norm(norm, x):
        return np.clip(batch_norm(norm, x, training), 0, 6)

    y = relu6_of_norm(layer.bn1, mix(layer.conv_exp, maps))
    y = relu6_of_norm(layer.bn2, local(layer.depth_sep_conv, y))
    y = mix(layer.conv_pro, y)
    y = batch_norm(layer.adapt_bn, maps + batch_norm(layer.bn3, y, training), training)
    return layer.map_scale * y


@plain.register
def _(layer: kvl.RelativePositionBias, maps, training=False):
    """For a square of patches behind the others."""
    tokens, table = maps.shape[-1], value(layer.table)
    side = int(tokens**0.5)
    prefix, bias = tokens - side**2, np.empty((tokens, tokens, maps.shape[1]))
    bias[:prefix], bias[:, :prefix], bias[:prefix, :prefix] = table[-3], table[-2], table[-1]
    offsets = table[:-3].reshape(2 * side - 1, 2 * side - 1, -1)
    patches = list(enumerate(product(range(side), repeat=2), prefix))
    for (query, (y, x)), (key, (v, u)) in product(patches, repeat=2):
        bias[query, key] = offsets[y - v + side - 1, x - u + side - 1]
    bias[:prefix, prefix:] = table[-3]
    return maps + bias.transpose(2, 0, 1)


@plain.register
def _(layer: kvl.Temperature, maps, training=False):
    return maps / (value(layer.tau) if layer.learnable else layer.temperature)


@plain.register
def _(layer: kvl.UniformHeads, maps, training=False):
    batch, _, queries, keys = maps.shape
    return np.concatenate([maps, np.full((batch, layer.count, queries, keys), 1 / keys)], axis=1)


# Layers over tokens.


@plain.register
def _(layer: kvl.MLP, x, training=False):
    x = in_order(layer.on_input, x)
    x = in_order(layer.on_hidden, hidden_units(layer, x))
    return in_order(layer.on_output, dense(layer.fc2, x))


def hidden_units(layer, x):
    x, act = dense(layer.fc1, x), ACTIVATIONS[layer.activation]
    if not layer.gated:
        return act(x)
    gate, x = np.split(x, 2, axis=-1)
    return act(gate) * x


ACTIVATIONS = {
    "gelu": gelu,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
}


def in_order(layers, x):
    for layer in layers:
        x = plain(layer, x)
    return x


@plain.register
def _(layer: kvl.TokenMixing, x, training=False):
    return plain(layer.mlp, x.transpose(0, 2, 1)).transpose(0, 2, 1)


@plain.register
def _(layer: kvl.ContextBroadcasting, x, training=False):
    first, mean = x[:, :1], x.mean(1, keepdims=True)
    if layer.context == "class_product":
        return np.concatenate([first, x[:, 1:] * first], axis=1)
    context = {
        "mean": mean,
        "max": x.max(1, keepdims=True),
        "class": first,
        "class_and_mean": (first + mean) / 2,
    }[layer.context]
    scale = 1 if layer.scale is None else value(layer.scaling)
    halve = layer.scale is None if layer.halve is None else layer.halve
    return (x + scale * context) / (2 if halve else 1)


@plain.register
def _(layer: kvl.LayerScale, x, training=False):
    return value(layer.gamma) * x


@plain.register
def _(layer: kvl.DropPath, x, training=False):
    assert not (training and layer.rate)
    return x


# From images to tokens, and from tokens to outputs.


def project(layer, images, stride):
    return flat(convolution(images, value(layer.kernel), stride)) + value(layer.bias)


@plain.register
def _(layer: kvl.PatchEmbedding, images, training=False):
    return project(layer.proj, images, layer.stride or layer.patch_size)


@plain.register
def _(layer: kvl.ConvStem, x, training=False):
    for index, part in enumerate(layer.convolutions):
        stride, padding = (2, 3) if index == 0 else (1, 1)
        x = convolution(x, value(part.kernel), stride, padding)
        x = np.maximum(batch_norm(layer.norms[index], x, training), 0)
    return project(layer.proj, x, layer.patch_size // 2)


@plain.register
def _(layer: TokenDownsampling, x, training=False):
    prefix, patches = np.split(x, [layer.num_prefix_tokens], axis=1)
    channels, factor = x.shape[-1], layer.dim // x.shape[-1]
    # A depthwise kernel is a full one with zeros.
    kernel = np.zeros((3, 3, channels, layer.dim))
    for channel in range(channels):
        part = slice(channel * factor, (channel + 1) * factor)
        kernel[:, :, channel, part] = value(layer.conv.kernel)[:, :, channel]
    images = patches.reshape(len(x), *layer.grid, channels)
    patches = flat(convolution(images, kernel, 2, 1)) + value(layer.conv.bias)
    return np.concatenate([dense(layer.fc, prefix), patches], axis=1)


@plain.register
def _(layer: kvl.PositionEmbedding, x, training=False):
    return x + value(layer.embeddings)


@plain.register
def _(layer: kvl.ClassToken, x, training=False):
    return np.concatenate([np.repeat(value(layer.token), len(x), axis=0), x], axis=1)


@plain.register
def _(layer: kvl.TokenPooling, x, training=False):
    patches = x[:, layer.num_prefix_tokens :]
    return {"token": x[:, 0], "avg": patches.mean(1), "max": patches.max(1)}[layer.pooling]


@plain.register
def _(layer: kvl.DistilledHead, x, training=False):
    return (dense(layer.head, x[:, 0]) + dense(layer.head_dist, x[:, 1])) / 2


@plain.register
def _(layer: kvl.DenseHead, x, training=False):
    return dense(layer.head, x[:, 0]) + dense(layer.aux_head, x[:, 1:]).max(1) / 2


# Attention.


@plain.register
def _(layer: kvl.RotaryEmbedding, queries_keys, training=False):
    """Rotation as a product of complex numbers, for patches behind the other tokens."""
    _, tokens, heads, size = queries_keys[0].shape
    grid, angles = np.array(layer.grid), np.zeros((tokens, heads, size // 2))
    for patch, place in enumerate(places(grid), layer.num_prefix_tokens):
        if layer.centered:
            place = 2 * np.pi * (2 * (np.array(place) + 0.5) / grid - 1)
        if layer.reference_grid:
            place = place * np.array(layer.reference_grid) / grid
        y, x = place
        first, second = (y, x) if layer.order == "yx" else (x, y)
        rates = layer.temperature ** -(np.arange(size // 4) / (size // 4))
        angles[patch] = np.concatenate([first * rates, second * rates])
        if layer.learned:
            angles[patch] = first * value(layer.freqs)[0] + second * value(layer.freqs)[1]
    turned = []
    for each in queries_keys:
        pairs = np.split(each, 2, axis=-1) if layer.halves else (each[..., ::2], each[..., 1::2])
        complex = (pairs[0] + 1j * pairs[1]) * np.exp(1j * angles)
        turned.append(np.concatenate([complex.real, complex.imag], axis=-1))
    return tuple(turned)


@plain.register
def _(layer: kvl.Attention, x, training=False):
    return attend(layer, x, training)[0]


def attend(layer, x, training=False, mask=None):
    """Return the output of an attention and its maps.

    Args:
        layer: The attention.
        x: Tokens, or a pair of them and the maps of an earlier block.
        training: Whether norms take the statistics of the batch.
        mask: `(batch, queries, keys)`, or None.
    """
    x, shared = x if isinstance(x, tuple) else (x, None)
    x = in_order(layer.on_input, x)
    query, key, v = projections(layer, x)
    for part in layer.on_queries_keys:
        pair = (each.reshape(*each.shape[:2], layer.num_heads, -1) for each in (query, key))
        query, key = (each.reshape(*each.shape[:2], -1) for each in plain(part, tuple(pair)))
    mask = True if mask is None else np.broadcast_to(mask, (len(x), *mask.shape[-2:]))[:, None]
    maps = shared if query is None else own_maps(layer, logits(query, key, layer.num_heads), mask)
    maps = np.where(mask, maps, 0)
    for part in layer.on_weights:
        maps = np.where(mask, plain(part, maps, training), 0)
    if isinstance(layer, kvl.AccumulatingAttention):
        maps = maps + np.where(mask, shared, 0) / np.sqrt(layer.size)
    y = aggregate(maps, v)
    if layer.gate_proj is not None:
        gates = sigmoid(dense(layer.gate_proj, x[:, : y.shape[1]]))
        y = y * np.repeat(gates, y.shape[-1] // gates.shape[-1], axis=-1)
    y = in_order(layer.on_output, dense(layer.proj, y))
    if isinstance(layer, kvl.AttentionPooling):
        y = (y + plain(layer.mlp, norm(y, layer.norm)))[:, 0]
    return y, maps


def projections(layer, x):
    """Return queries, keys and values, `(batch, tokens, heads * size)`."""
    if isinstance(layer, kvl.SharedAttention):
        return None, None, dense(layer.v, x)
    if isinstance(layer, kvl.ClassAttention):
        classes = layer.num_class_tokens
        z = x if layer.class_in_keys else x[:, classes:]
        return dense(layer.q, x[:, :classes]), dense(layer.k, z), dense(layer.v, z)
    if isinstance(layer, kvl.AttentionPooling):
        query = dense(layer.q, value(layer.latent)) + 0 * x[:, :1]
        return query, *np.split(dense(layer.kv, x), [layer.width], axis=-1)
    if isinstance(layer, kvl.PositionalAttention):
        return *np.split(dense(layer.qk, x), 2, axis=-1), dense(layer.v, x)
    query, key, v = np.split(dense(layer.qkv, x), (layer.width, 2 * layer.width), axis=-1)
    if layer.qkv_bias == "qv":
        return query + value(layer.q_bias), key, v + value(layer.v_bias)
    return query, key, v


def own_maps(layer, maps, mask):
    """Return the maps after the softmax, from the logits of queries and keys."""
    if type(layer) is kvl.PositionalAttention:
        maps = maps + positional_logits(layer)
    for part in layer.on_logits:
        maps = plain(part, np.where(mask, maps, 0))
    maps = normalize(layer.normalizer, maps, mask)
    if not isinstance(layer, kvl.GatedPositionalAttention):
        return maps
    gates = sigmoid(value(layer.gating_param))[:, None, None]
    return (1 - gates) * maps + gates * softmax(positional_logits(layer)[None] + 0 * maps, mask)


def positional_logits(layer):
    """Return the logits of each pair of patches, `(heads, patches, patches)`."""
    return dense(layer.pos_proj, offsets((layer.rows, layer.columns))).transpose(2, 0, 1)


def places(grid):
    return [(row, column) for row in range(grid[0]) for column in range(grid[1])]


def offsets(grid):
    """r_ij = (dx, dy, squared distance) from patch i to patch j."""
    pairs = [
        [(x2 - x1, y2 - y1, (x2 - x1) ** 2 + (y2 - y1) ** 2) for y2, x2 in places(grid)]
        for y1, x1 in places(grid)
    ]
    return np.array(pairs, "float64")


def logits(query, key, heads):
    query, key = split_heads(query, heads), split_heads(key, heads)
    return query @ key.swapaxes(2, 3) / np.sqrt(query.shape[-1])


def split_heads(x, heads):
    """Reshape `(batch, tokens, heads * size)` to `(batch, heads, tokens, size)`."""
    return np.stack(np.split(x, heads, axis=-1), axis=1)


def aggregate(maps, v):
    """Multiply `(batch, tokens, heads * size)` by the maps, per head."""
    parts = split_heads(v, maps.shape[1])
    return np.concatenate([maps[:, h] @ parts[:, h] for h in range(maps.shape[1])], axis=-1)


# Blocks.


@plain.register
def _(layer: kvl.Block, x, training=False):
    x, shared = x if isinstance(x, tuple) else (x, None)
    s = layer.residual_scale
    scales = [1 if g.gamma is None else value(g.gamma) for g in (layer.ls1, layer.ls2)]
    before, after = (norm, lambda x, *_: x)[:: -1 if layer.post_norm else 1]
    read = before(s * x, layer.norm1, layer.epsilon)
    if isinstance(layer.attention, kvl.Attention):
        pair = (read, shared) if isinstance(layer.attention, kvl.SharingAttention) else read
        attended, maps = attend(layer.attention, pair, training)
        emitted = shared if isinstance(layer.attention, kvl.SharedAttention) else maps
    else:
        attended = plain(layer.attention, read)
    updated = x[:, : attended.shape[1]]
    y = updated + scales[0] * after(attended, layer.norm1, layer.epsilon) / s
    hidden = plain(layer.mlp, before(s * y, layer.norm2, layer.epsilon))
    y = y + scales[1] * after(hidden, layer.norm2, layer.epsilon) / s
    y = np.concatenate([y, x[:, attended.shape[1] :]], axis=1)
    emits = isinstance(layer, kvl.SharedMapsBlock) and layer.emits_maps
    return (y, emitted) if emits else y
