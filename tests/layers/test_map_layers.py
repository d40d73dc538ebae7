"""What the formulas do not say of layers over maps: identities, precision, names, widths."""

import keras
import numpy as np
import pytest
from harness import array, close, gradients, numbers
from keras import ops
from plain import X, built, plain, softmax

from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import (
    Attention,
    DeepAttention,
    HeadMixing,
    LocalMapConvolution,
    ReAttention,
    RefinedAttention,
    Refinement,
    ResidualRefinement,
    Temperature,
    UniformHeads,
)
from keras_vitx.layers.maps import MapNormalization

MAPS = softmax(numbers((2, 4, 5, 7), seed=3)).astype("float32")


def test_statistics_of_a_map_normalization():
    layer = built(MapNormalization(), MAPS)
    mean, variance = array(layer.moving_mean.value), array(layer.moving_variance.value)
    layer(MAPS, training=True)
    close(array(layer.moving_mean.value), 0.9 * mean + 0.1 * MAPS.mean((0, 2, 3)))
    close(array(layer.moving_variance.value), 0.9 * variance + 0.1 * MAPS.var((0, 2, 3)))


def locally(value, weights):
    """Sum the values around each token with weights `(heads, k)` and zero padding."""
    _, _, tokens, _ = value.shape
    reach = weights.shape[1] // 2
    summed = np.zeros_like(value)
    for token in range(tokens):
        for b in range(weights.shape[1]):
            neighbour = token + reach - b
            if 0 <= neighbour < tokens:
                summed[:, :, token] += weights[:, b, None] * value[:, :, neighbour]
    return summed


@pytest.mark.parametrize("kernel_size", (3, 5))
def test_distributed_local_attention_is_local_then_global_aggregation(kernel_size):
    """Refiner, Section 3.3: (w * A) V aggregates V locally by w, and then globally by A."""
    value = numbers((2, 4, 7, 3), seed=8)
    layer = built(LocalMapConvolution(kernel_size), MAPS)
    kernel = array(layer.kernel.value)[:, 0]
    reach = kernel_size // 2
    # A kernel does so once per row, for the queries around each query.
    expected = np.zeros((2, 4, 5, 3))
    for a in range(kernel_size):
        aggregated = MAPS @ locally(value, kernel[:, a])
        for query in range(5):
            if 0 <= query + a - reach < 5:
                expected[:, :, query] += aggregated[:, :, query + a - reach]
    close(array(layer(MAPS)) @ value, expected)


def test_refinement_without_expansion_and_kernel_mixes_heads():
    """Talking heads after the softmax (Refiner, Section 3.2)."""
    layer = built(Refinement(expansion=1, kernel_size=1), MAPS)
    layer.local.kernel.assign(np.ones((4, 1, 1, 1)))
    mixing = HeadMixing(use_bias=False)
    mixing.build(MAPS.shape)
    mixing.kernel.assign(array(layer.reduce.kernel.value) @ array(layer.expand.kernel.value))
    close(array(layer(MAPS)), array(mixing(MAPS)))


@pytest.mark.parametrize("training", (False, True))
def test_residual_refinement_cuts_at_both_ends(training):
    layer = built(ResidualRefinement(), MAPS)
    for part in (layer.bn1, layer.bn2):
        part.gamma.assign(8 * array(part.gamma.value))
        part.beta.assign(part.beta + 3.0)
    y = plain(layer.bn1, plain(layer.conv_exp, MAPS), training)
    assert (y < 0).any() and (y > 6).any()
    close(array(layer(MAPS, training=training)), plain(layer, MAPS, training))


def test_a_learnable_temperature_starts_from_its_value():
    layer = Temperature(0.7, learnable=True)
    layer.build(MAPS.shape)
    close(array(layer.tau.value), [0.7])


def test_parameters_of_uniform_heads():
    def count(layer):
        layer.build((None, 5, 32))
        return layer.count_params()

    def replaced(uniform):
        return Attention(3, head_size=8, on_weights=[UniformHeads(uniform)], qkv_bias=False)

    plain = count(Attention(4, qkv_bias=False))
    assert count(replaced(2)) == plain
    # One query and key head fewer.
    assert count(replaced(1)) == plain - 2 * 32 * 8
    # One more value head, with its rows of the projection.
    appended = Attention(4, on_weights=[UniformHeads()], qkv_bias=False)
    assert count(appended) == plain + 2 * 32 * 8


def test_names_of_the_layers_over_maps():
    def names(layer):
        paths = {v.path.split("/", 1)[1] for v in built(layer).weights}
        return {path for path in paths if path.split("/")[0] not in ("qkv", "proj")}

    norm = ("gamma", "beta", "moving_mean", "moving_variance")
    assert names(DeepAttention(2)) == {
        "re_attention/reatten_matrix/kernel",
        "re_attention/reatten_matrix/bias",
        *(f"re_attention/var_norm/{name}" for name in norm),
    }
    assert names(RefinedAttention(2)) == {
        *(f"refinement/{part}/kernel" for part in ("expand", "local", "reduce")),
    }


def test_the_precision_reaches_the_layers_over_maps():
    for make in (DeepAttention, RefinedAttention):
        layer = make(2, dtype="mixed_bfloat16")
        layer.build(X.shape)
        parts = [part for part in sublayers(layer) if not isinstance(part, keras.layers.Dropout)]
        # Re-attention computes in float32.
        exact = [p for one in layer.on_weights for p in sublayers(one) if make is DeepAttention]
        for part in parts:
            expected = "float32" if any(part is one for one in exact) else "bfloat16"
            assert part.compute_dtype == expected, part.name


@pytest.mark.parametrize("training", (False, True))
def test_re_attention_is_without_rounding_of_its_bias(training):
    """The bias cancels in BN, and half precision keeps the maps."""
    maps = np.random.default_rng(0).dirichlet(np.ones(40), (16, 4, 40)).astype("float32")
    found = {}
    for policy in ("float32", "mixed_bfloat16"):
        layer = ReAttention(dtype=policy)
        layer.build(maps.shape)
        # Far above the spread of its maps.
        layer.reatten_matrix.kernel.assign(numbers((4, 4)))
        layer.reatten_matrix.bias.assign([0.5, -0.5, 0.3, 8.0])
        mixed = plain(layer.reatten_matrix, maps)
        layer.var_norm.moving_mean.assign(mixed.mean((0, 2, 3)))
        layer.var_norm.moving_variance.assign(mixed.var((0, 2, 3)))
        found[policy] = array(layer(ops.cast(maps, layer.compute_dtype), training=training))
    # Rounded beside a bias of 8, the fourth map would be off by more than its deviation.
    assert np.abs(found["mixed_bfloat16"] - found["float32"]).max() < 0.03


def test_the_gradient_of_the_bias_of_re_attention_is_zero():
    maps = np.random.default_rng(0).dirichlet(np.ones(40), (16, 4, 40)).astype("float32")
    layer = ReAttention(dtype="mixed_bfloat16")
    layer.build(maps.shape)
    layer.reatten_matrix.bias.assign([0.5, -0.5, 0.3, 8.0])
    weights = [layer.reatten_matrix.kernel, layer.reatten_matrix.bias]
    given = ops.convert_to_tensor(maps)
    _, (kernel, bias) = gradients(lambda: ops.sum(layer(given, training=True) ** 3), weights)
    # But for rounding errors, which the bias of 8 makes large.
    assert np.abs(bias).max() < 0.05 * np.abs(kernel).max()
