"""Stems, pooling, heads and residual blocks."""

from itertools import product

import numpy as np
import pytest
from harness import array, close, numbers
from plain import X, batch_norm, built, dense, mlp, norm, softmax

from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import (
    MLP,
    Attention,
    Block,
    ConvStem,
    DenseHead,
    DistilledHead,
    PatchEmbedding,
    TokenDownsampling,
    TokenMixing,
)


def convolution(images, kernel, stride, padding):
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


def flat(y):
    return y.reshape(len(y), -1, y.shape[-1])


def project(images, layer, stride):
    y = convolution(images, array(layer.kernel.value), stride, 0)
    return flat(y + array(layer.bias.value))


@pytest.mark.parametrize("size,stride", (((13, 9), 3), ((11, 8), 2), ((9, 10), 5)))
def test_overlapping_patches(size, stride):
    images = numbers((2, *size, 3))
    layer = built(PatchEmbedding(6, patch_size=4, stride=stride), images)
    close(array(layer(images)), project(images, layer.proj, stride))


def test_a_stride_of_the_patch_size_is_none():
    images = numbers((2, 8, 12, 3))
    one, other = (built(PatchEmbedding(6, 4, stride), images) for stride in (4, None))
    np.testing.assert_array_equal(array(one(images)), array(other(images)))


@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize("channels", ((4, 4), (3, 5, 6)))
def test_conv_stem(channels, training):
    images = numbers((2, 8, 12, 3))
    layer = built(ConvStem(6, channels, patch_size=4), images)
    x = images
    for index, (part, batch_normalization) in enumerate(
        zip(layer.convolutions, layer.norms, strict=True)
    ):
        assert part.filters == channels[index]
        assert not part.use_bias
        kernel = array(part.kernel.value)
        assert kernel.shape[:2] == ((3, 3) if index else (7, 7))
        # Padded as in PyTorch: equally on all sides.
        x = convolution(x, kernel, 1, 1) if index else convolution(x, kernel, 2, 3)
        x = np.maximum(batch_norm(x, batch_normalization, training, axis=-1), 0)
    expected = project(x, layer.proj, 2)
    assert expected.shape == (2, 2 * 3, 6)
    close(array(layer(images, training=training)), expected)


@pytest.mark.parametrize("prefix", (0, 1, 2))
@pytest.mark.parametrize("grid,new", (((3, 4), (2, 2)), ((2, 2), (1, 1)), ((5, 1), (3, 1))))
def test_token_downsampling(grid, new, prefix):
    x = numbers((2, prefix + grid[0] * grid[1], 4))
    layer = built(TokenDownsampling(8, grid, prefix), x)
    image = x[:, prefix:].reshape(2, *grid, 4)
    # Two outputs per channel: a depthwise kernel is a full one with zeros.
    depthwise = array(layer.conv.kernel.value)
    kernel = np.zeros((3, 3, 4, 8))
    for channel in range(4):
        kernel[:, :, channel, 2 * channel : 2 * channel + 2] = depthwise[:, :, channel]
    patches = flat(convolution(image, kernel, 2, 1) + array(layer.conv.bias.value))
    assert patches.shape[1] == new[0] * new[1]
    expected = np.concatenate([dense(x[:, :prefix], layer.fc), patches], axis=1)
    close(array(layer(x)), expected)


@pytest.mark.parametrize("make", (DistilledHead, DenseHead))
@pytest.mark.parametrize("activation", (None, "softmax"))
def test_several_heads(make, activation):
    layer = built(make(5, activation))
    finish = softmax if activation else lambda x: x
    logits = {"head": dense(X[:, 0], layer.head)}
    if make is DistilledHead:
        logits["head_dist"] = dense(X[:, 1], layer.head_dist)
        expected = (logits["head"] + logits["head_dist"]) / 2
    else:
        logits["aux_head"] = np.stack([dense(X[:, i], layer.aux_head) for i in range(1, 5)], 1)
        expected = logits["head"] + logits["aux_head"].max(1) / 2
    for training in (False, True):
        close(array(layer(X, training=training)), finish(expected))
    parts = layer(X, return_parts=True)
    assert list(parts) == list(logits) == list(layer.names) == list(layer.loss_weights)
    for name, part in logits.items():
        close(array(parts[name]), finish(part))
        close(array(layer.parts(X)[name]), part)


@pytest.mark.parametrize("make", (DistilledHead, DenseHead))
def test_heads_run_in_float32(make):
    layer = built(make(5, dtype="mixed_bfloat16"))
    assert {part.dtype_policy.name for part in sublayers(layer)} == {"float32"}
    assert make.from_config(layer.get_config()).dtype_policy.name == "float32"


def test_token_mixing():
    layer = built(TokenMixing(6))
    expected = mlp(X.transpose(0, 2, 1), layer.mlp).transpose(0, 2, 1)
    close(array(layer(X)), expected)
    assert layer.mlp.fc1.units == 6


def test_mlp_of_a_given_width():
    layer = built(MLP(hidden=7, mlp_ratio=2))
    assert layer.fc1.units == 7
    close(array(layer(X)), mlp(X, layer))


@pytest.mark.parametrize("scale", (0.5, 1.0, 2.0))
def test_residual_scale(scale):
    """x + f(norm(s x)) / s, with an epsilon large enough to matter."""
    block = built(Block(Attention(2), MLP(2), residual_scale=scale, epsilon=0.1))
    x = X
    for part, layer in ((block.attention, block.norm1), (block.mlp, block.norm2)):
        x = x + array(part(norm(scale * x, layer, 0.1).astype("float32"))) / scale
    close(array(block(X)), x)


def test_a_block_of_token_mixing_has_no_maps():
    block = built(Block(TokenMixing(6), MLP(2)))
    assert not block.has_maps
    assert Block(Attention(2), MLP()).has_maps
    x = X + array(block.attention(norm(X, block.norm1)))
    close(array(block(X)), x + mlp(norm(x, block.norm2), block.mlp))
