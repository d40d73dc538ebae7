"""What the formulas do not say of layers: draws, own steps, precision, starts, shared maps."""

import keras
import numpy as np
import pytest
from harness import MIXED, array, close, numbers, precision
from keras import ops
from plain import X, attend, built, convolution, norm, places, plain, softmax

from keras_vitx import layers as kvl
from keras_vitx.layers import Attention, DropPath
from keras_vitx.layers.initializers import Normal, Uniform
from keras_vitx.layers.sharing import map_similarity
from keras_vitx.layers.tokens import TokenDownsampling

SHARED = softmax(numbers((3, 2, 5, 5), seed=4)).astype("float32")
PAIR = (X.shape, SHARED.shape)


@pytest.mark.parametrize("make", (Attention, kvl.SharedAttention, kvl.AccumulatingAttention))
def test_dropout_of_maps(make):
    layer, x = make(2, dropout=0.5), X
    if make is not Attention:
        x = X, SHARED
    built(layer, shape=keras.tree.map_structure(np.shape, x))
    y, dropped = (array(layer(x, training=mode)) for mode in (False, True))
    assert np.abs(dropped - y).max() > 0.1 * np.abs(y).max()


def test_drop_path():
    rate, x = 0.3, 1 + np.abs(numbers((400, 3, 4)))
    layer, fractions = DropPath(rate, seed=0), set()
    np.testing.assert_array_equal(array(layer(x)), x)
    for _ in range(10):
        y = array(layer(x, training=True))
        kept = y[:, 0, 0] != 0
        close(y[kept], x[kept] / (1 - rate))
        assert not y[~kept].any()
        fractions.add(kept.mean())
    assert abs(np.mean([*fractions]) - (1 - rate)) < 0.03  # four standard deviations
    assert len(fractions) > 1, "each call draws anew"
    off = DropPath(0.0)
    assert not off.variables
    np.testing.assert_array_equal(array(off(x, training=True)), x)


@pytest.mark.backend_free
@pytest.mark.parametrize("parent", (Attention, kvl.GatedPositionalAttention))
@pytest.mark.parametrize(
    "step", ("logits_of", "softmax_of", "softmax_maps", "maps_of", "aggregate")
)
def test_a_subclass_that_is_not_fused_runs_its_steps(parent, step):
    def doubled(self, *arguments, **options):
        return 2 * getattr(parent, step)(self, *arguments, **options)

    x = numbers((3, 4, 8))
    mine = type("Mine", (parent,), {step: doubled, "fused": None})
    inherited, changed = built(parent(4), x), built(mine(4), x)
    changed.set_weights(inherited.get_weights())
    assert np.abs(array(changed(x)) - array(inherited(x))).max() > 1e-3


# Maps.


def re_attention(policy):
    """A ReAttention with a bias far above the spread of its maps."""
    layer = kvl.ReAttention(dtype=policy)
    maps = np.random.default_rng(0).dirichlet(np.ones(40), (16, 4, 40)).astype("float32")
    layer.build(maps.shape)
    layer.reatten_matrix.kernel.assign(numbers((4, 4)))
    layer.reatten_matrix.bias.assign([0.5, -0.5, 0.3, 8.0])
    return layer, maps


@pytest.mark.parametrize("training", (False, True))
def test_re_attention_is_without_rounding_of_its_bias(training):
    """The bias cancels in BN, and half precision keeps the maps."""
    found = []
    for policy in ("float32", "mixed_bfloat16"):
        layer, maps = re_attention(policy)
        mixed = plain(layer.reatten_matrix, maps)
        layer.var_norm.moving_mean.assign(mixed.mean((0, 2, 3)))
        layer.var_norm.moving_variance.assign(mixed.var((0, 2, 3)))
        found.append(array(layer(ops.cast(maps, layer.compute_dtype), training=training)))
    # Rounded beside a bias of 8, the fourth map would be off by more than its deviation.
    assert np.abs(found[0] - found[1]).max() < 0.03


# Positional attention.


@pytest.mark.backend_free
def test_the_convolutional_start_is_a_convolution():
    """ConViT, Section 2: nine heads form a 3 x 3 kernel."""
    grid, dim, size = (4, 5), 18, 2
    # Gates at 1, and very sharp positional maps.
    layer = kvl.GatedPositionalAttention(9, grid=grid, initial_gate=100.0, locality_strength=50.0)
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
    values, projection, bias = (numbers(s, 5 + i) for i, s in enumerate([(dim, dim)] * 2 + [dim]))
    layer.v.kernel.assign(values)
    layer.proj.kernel.assign(projection)
    layer.proj.bias.assign(bias)
    kernel = np.zeros((3, 3, dim, dim))
    for head in range(9):
        part = slice(head * size, (head + 1) * size)
        kernel[head % 3, head // 3] = values[:, part] @ projection[part]
    image = x.reshape(3, *grid, dim)
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)), "edge")
    y = array(layer(x)).reshape(3, *grid, dim)
    close(y, convolution(padded, kernel, 1) + bias)
    # The interior is not affected by padding.
    close(y[:, 1:-1, 1:-1], convolution(image, kernel, 1) + bias)


# Maps that blocks share.

ATTENTIONS = {
    "shared": lambda: kvl.SharedAttention(2, on_weights=[kvl.HeadMixing()]),
    "plain": lambda: kvl.Attention(2),
}


def cosine(maps, others, over):
    """Mean cosine between the maps of two blocks, over vectors."""
    axis = {"heads": 1, "queries": 2}[over]
    vectors = [np.moveaxis(part, axis, -1).reshape(-1, part.shape[axis]) for part in (maps, others)]
    norms = [np.linalg.norm(part, axis=1) for part in vectors]
    return np.mean((vectors[0] * vectors[1]).sum(1) / norms[0] / norms[1])


every_axis = pytest.mark.parametrize("over", ("heads", "queries"))


@every_axis
def test_map_similarity(over):
    maps, others = (softmax(numbers((2, 4, 5, 7), seed, scale=3)) for seed in (1, 2))
    # Small entries count as much as large ones; most entries of a long row are small.
    maps[:, :, :2], others[:, :, :, :3] = 1e-4 * maps[:, :, :2], 1e-3 * others[:, :, :, :3]
    given = (ops.convert_to_tensor(each.astype("float32")) for each in (maps, others))
    close(array(map_similarity(*given, over)), cosine(maps, others, over))


@pytest.mark.backend_free
@every_axis
@pytest.mark.parametrize("name", ATTENTIONS)
def test_similarity_in_the_loss(name, over):
    """DeepViT, Appendix A, Equation 6; of a map with itself, it is 1."""
    of = "emitted" if name == "shared" else "used"
    arguments = {"similarity": 0.3, "similarity_over": over, "similarity_of": of}
    block = built(kvl.SharedMapsBlock(ATTENTIONS[name](), kvl.MLP(), **arguments), shape=PAIR)
    block((X, SHARED))
    assert block.losses == []
    block((X, SHARED), training=True)
    (loss,) = block.losses
    maps = SHARED if name == "shared" else attend(block.attention, norm(X, block.norm1))[1]
    close(array(loss), 0.3 * cosine(maps, SHARED, over))


# Initial weights: bounds and spread.

MAPS = (None, 16, 20, 20)
IMAGES = (None, 8, 8, 3)
# A layer, the shape of its input, and the inputs per output of each convolution.
CONVOLUTIONS = [
    (kvl.PatchEmbedding(64, 4), IMAGES, {"proj/kernel": 48, "proj/bias": 48}),
    (
        kvl.ConvStem(64, (32, 32), 4),
        IMAGES,
        {"conv1/kernel": 147, "conv2/kernel": 288, "proj/kernel": 128, "proj/bias": 128},
    ),
    (TokenDownsampling(128, (4, 4)), (None, 17, 64), {"conv/kernel": 9, "conv/bias": 9}),
    (kvl.ReAttention(), MAPS, {"matrix/kernel": 16, "matrix/bias": 16}),
    (kvl.LocalMapConvolution(5), MAPS, {"kernel": 25}),
    (kvl.LocalMapConvolution(5, "row+column"), MAPS, {"kernel": 5}),
    (kvl.Refinement(), MAPS, {"expand/kernel": 16, "local/kernel": 9, "reduce/kernel": 48}),
    (
        kvl.ResidualRefinement(),
        MAPS,
        {"conv_exp/kernel": 16, "depth_sep_conv/kernel": 9, "conv_pro/kernel": 48},
    ),
]


@pytest.mark.parametrize(("layer", "shape", "inputs"), CONVOLUTIONS)
def test_convolutions_start_as_in_pytorch(layer, shape, inputs):
    """U(-1/sqrt n, 1/sqrt n) for kernel and bias."""
    layer.build(shape)
    for end, fan_in in inputs.items():
        (values,) = (array(v.value).ravel() for v in layer.weights if v.path.endswith(end))
        bound = fan_in**-0.5
        assert bound * (1 - 10 / len(values)) <= np.abs(values).max() <= bound, end
        # Four standard deviations of the variance of that many draws.
        assert abs(values.var() / (bound**2 / 3) - 1) < 4 * (0.8 / len(values)) ** 0.5, end


def test_starts_of_a_seed_are_the_same_on_every_backend():
    start = Normal(stddev=0.02, seed=3)
    for one in (start, start.clone()):
        expected = [[0.048343, 0.0028553], [-0.0102537, -0.0019342]]
        np.testing.assert_allclose(array(one((2, 2))), expected, rtol=1e-4)
    drawn = array(Uniform(-1, 3, seed=3)((4000,)))
    assert (drawn.min(), drawn.max()) == pytest.approx((-1, 3), abs=0.01)
    assert keras.backend.standardize_dtype(Normal(seed=3)((2,), "float16").dtype) == "float16"


# Rotary positions, by the faults that others reported of theirs.


def rotary(grid, prefix, size=16, **arguments):
    layer = kvl.RotaryEmbedding(grid, prefix, **arguments)
    layer.build(2 * [(None, prefix + grid[0] * grid[1], 1, size)])
    return layer


@pytest.mark.backend_free
@pytest.mark.parametrize("order", ("yx", "xy"))
def test_rows_and_columns_of_rectangles(order):
    """huggingface/pytorch-image-models#2541: height and width were swapped."""
    layer = rotary((2, 5), 0, order=order)
    angles = array(layer.angles()).reshape(2, 5, 2, 4)
    of_rows, of_columns = (0, 1) if order == "yx" else (1, 0)
    np.testing.assert_array_equal(angles[:, :, of_rows, 0], np.indices((2, 5))[0])
    np.testing.assert_array_equal(angles[:, :, of_columns, 0], np.indices((2, 5))[1])


@pytest.mark.backend_free
def test_tokens_before_the_patches_stay():
    """huggingface/pytorch-image-models#2478: the first patch stayed, not the class token."""
    x = numbers((1, 5 + 6, 1, 16))
    layer = rotary((2, 3), 5, centered=True, halves=True)
    query, _ = layer((x, x))
    changed = np.abs(array(query) - x).max(axis=(0, 2, 3)) > 0
    assert changed.tolist() == [False] * 5 + [True] * 6
    # `kv.analysis.embedding_maps` has patches only.
    np.testing.assert_array_equal(array(layer((x[:, 5:], x[:, 5:]))[0]), array(query)[:, 5:])


@pytest.mark.parametrize("policy", MIXED)
def test_angles_are_float32_in_half_precision(policy):
    """EleutherAI/gpt-neox#1003, facebookresearch/xformers#325."""
    x = ops.cast(numbers((1, 64 * 64, 1, 16)), policy.removeprefix("mixed_"))
    expected = array(rotary((64, 64), 0, temperature=1e4)((x, x))[0])
    with precision(policy):
        found, _ = rotary((64, 64), 0, temperature=1e4)((x, x))
    assert found.dtype == x.dtype
    assert np.abs(array(found) - expected).max() < 2**-7 * np.abs(expected).max()
