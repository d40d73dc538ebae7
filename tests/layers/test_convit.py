"""The convolutional start of positional and gated positional attention."""

import keras
import numpy as np
import pytest
from harness import array, close, gradients, numbers
from keras import ops
from plain import places

from keras_vitx.layers import GatedPositionalAttention
from keras_vitx.layers.convit import ConvolutionalStart


def test_the_convolutional_start_is_a_convolution():
    """ConViT, Section 2: nine heads form a 3 x 3 kernel."""
    grid, dim, size = (4, 5), 18, 2
    # Gates at 1, and very sharp positional maps.
    layer = GatedPositionalAttention(9, grid=grid, gate=100.0, locality_strength=50.0)
    layer.build((None, 20, dim))
    x = numbers((3, 20, dim))
    np.testing.assert_array_equal(array(layer.v.kernel.value), np.eye(dim))

    # Head h1 + 3 h2 attends the patch h1 - 1 rows down and h2 - 1 columns right of each;
    # beyond the edge, the last patch before it.
    expected = np.zeros((9, 20, 20))
    for head in range(9):
        for number, (row, column) in enumerate(places(grid)):
            row = min(max(row + head % 3 - 1, 0), 3)
            column = min(max(column + head // 3 - 1, 0), 4)
            expected[head, number, 5 * row + column] = 1
    maps = array(layer(x, return_attention_scores=True)[1])
    close(maps, np.broadcast_to(expected, maps.shape), 1e-6)

    # So a head's values times its rows of the projection are the kernel at its offset.
    layer.v.kernel.assign(numbers((dim, dim), seed=5))
    layer.proj.kernel.assign(numbers((dim, dim), seed=6))
    layer.proj.bias.assign(numbers((dim,), seed=7))
    kernel = np.zeros((3, 3, dim, dim), "float32")
    for head in range(9):
        part = slice(head * size, (head + 1) * size)
        kernel[head % 3, head // 3] = (
            array(layer.v.kernel.value)[:, part] @ array(layer.proj.kernel.value)[part]
        )
    image = x.reshape(3, *grid, dim)

    def convolution(mode):
        padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)), mode)
        y = sum(
            padded[:, row : row + 4, column : column + 5] @ kernel[row, column]
            for row in range(3)
            for column in range(3)
        )
        return y + array(layer.proj.bias.value)

    y = array(layer(x)).reshape(3, *grid, dim)
    close(y, convolution("edge"))
    # The interior is not affected by padding.
    close(y[:, 1:-1, 1:-1], convolution("constant")[:, 1:-1, 1:-1])


def test_numbers_of_the_convolutional_start():
    nine = array(ConvolutionalStart(0.5)((3, 9), dtype="float32"))
    x, y = [-1, -1, -1, 0, 0, 0, 1, 1, 1], [-1, 0, 1, -1, 0, 1, -1, 0, 1]
    close(nine, np.array([x, y, [-0.5] * 9]))


@pytest.mark.parametrize("masked", (False, True))
def test_fused_gates_equal_their_maps_times_values(masked):
    layer = GatedPositionalAttention(4, grid=(2, 3), conv_start=False)
    layer.build((None, 6, 8))
    layer.gating_param.assign(numbers((4,), seed=9))
    given = [keras.Variable(numbers((3, 6, 4, 2), seed=seed)) for seed in range(3)]
    weights = ops.convert_to_tensor(numbers((3, 6, 4, 2), seed=4))
    mask = ops.convert_to_tensor(numbers((3, 1, 6, 6), seed=5) > -0.5) if masked else None

    def by_maps(query, key, value):
        return layer.aggregate(layer.weights_of(query, key, mask=mask), value)

    def fused(query, key, value):
        return layer.fused(query, key, value, mask=mask)

    def loss(run):
        return lambda: ops.sum(run(*(one + 0 for one in given)) * weights)

    close(
        array(fused(*(one.value for one in given))), array(by_maps(*(one.value for one in given)))
    )
    variables = [*given, layer.gating_param, layer.pos_proj.kernel]
    (_, found), (_, expected) = (gradients(loss(run), variables) for run in (fused, by_maps))
    for one, other in zip(found, expected, strict=True):
        close(array(one), array(other))
