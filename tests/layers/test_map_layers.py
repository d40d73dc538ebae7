"""The layers over attention maps, and the attentions made with them."""

import keras
import numpy as np
import pytest
from harness import array, close, gradients, numbers
from keras import ops
from plain import X, aggregate, batch_norm, built, convolve, dense, logits, mix, softmax

from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import (
    Attention,
    DeepAttention,
    HeadMixing,
    LocalMapConvolution,
    MapNormalization,
    ReAttention,
    RefinedAttention,
    Refinement,
    ResidualRefinement,
    Temperature,
    UniformHeads,
)

MAPS = softmax(numbers((2, 4, 5, 7), seed=3))


def local(maps, layer):
    """A' = w * A of a LocalMapConvolution, whatever its constraint."""
    kernel = array(layer.kernel.value)
    if layer.constraint == "row+column":
        along_keys, along_queries = kernel[:, 0], kernel[:, 1]
        return convolve(maps, along_keys[:, None, :]) + convolve(maps, along_queries[:, :, None])
    if layer.constraint == "spatial":
        patches = layer.grid[0] * layer.grid[1]
        result = maps.copy()
        for query in range(maps.shape[2]):
            image = maps[:, :, query, -patches:].reshape(*maps.shape[:2], *layer.grid)
            convolved = convolve(image, kernel[:, 0])
            result[:, :, query, -patches:] = convolved.reshape(*maps.shape[:2], patches)
        return result
    return convolve(maps, kernel[:, 0])


def refine(maps, layer):
    maps = local(mix(maps, layer.expand), layer.local)
    return mix(maps, layer.reduce) if layer.reduction else maps


@pytest.mark.parametrize("heads_out", (2, 4, 12))
def test_head_mixing_to_another_number_of_heads(heads_out):
    layer = built(HeadMixing(heads_out=heads_out), MAPS)
    assert layer.kernel.shape == (heads_out, 4)
    close(array(layer(MAPS)), mix(MAPS, layer))


@pytest.mark.parametrize("training", (False, True))
def test_map_normalization(training):
    layer = built(MapNormalization(), MAPS)
    mean, variance = array(layer.moving_mean.value), array(layer.moving_variance.value)
    expected = batch_norm(MAPS, layer, training)
    close(array(layer(MAPS, training=training)), expected)
    if training:
        mean = 0.9 * mean + 0.1 * MAPS.mean((0, 2, 3))
        variance = 0.9 * variance + 0.1 * MAPS.var((0, 2, 3))
    close(array(layer.moving_mean.value), mean)
    close(array(layer.moving_variance.value), variance)


@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize(("map_scale", "normalize"), ((1, True), (0.25, True), (0.25, False)))
def test_re_attention(map_scale, normalize, training):
    layer = built(ReAttention(map_scale, normalize), MAPS)
    mixed = mix(MAPS, layer.reatten_matrix)
    expected = map_scale * (batch_norm(mixed, layer.var_norm, training) if normalize else mixed)
    close(array(layer(MAPS, training=training)), expected)


@pytest.mark.parametrize("constraint", (None, "row+column"))
@pytest.mark.parametrize("kernel_size", (1, 3, 5))
def test_local_map_convolution(kernel_size, constraint):
    layer = built(LocalMapConvolution(kernel_size, constraint), MAPS)
    per_head = 2 * kernel_size if constraint else kernel_size**2
    assert layer.count_params() == 4 * per_head
    close(array(layer(MAPS)), local(MAPS, layer))


@pytest.mark.parametrize("grid", ((1, 7), (2, 3), (3, 2), (2, 2)))
def test_spatial_convolution_leaves_leading_keys_alone(grid):
    layer = built(LocalMapConvolution(3, "spatial", grid), MAPS)
    y = array(layer(MAPS))
    close(y, local(MAPS, layer))
    leading = 7 - grid[0] * grid[1]
    np.testing.assert_array_equal(y[..., :leading], MAPS[..., :leading])


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

    # With a kernel along the keys only, as in that section.
    row = np.zeros((4, 1, kernel_size, kernel_size), "float32")
    row[:, 0, reach] = kernel[:, reach]
    layer.kernel.assign(row)
    close(array(layer(MAPS)) @ value, MAPS @ locally(value, kernel[:, reach]))

    # A full kernel does so once per row, for the queries around each query.
    layer.kernel.assign(kernel[:, None])
    expected = np.zeros((2, 4, 5, 3))
    for a in range(kernel_size):
        aggregated = MAPS @ locally(value, kernel[:, a])
        for query in range(5):
            if 0 <= query + a - reach < 5:
                expected[:, :, query] += aggregated[:, :, query + a - reach]
    close(array(layer(MAPS)) @ value, expected)


@pytest.mark.parametrize("reduction", (True, False))
@pytest.mark.parametrize("expansion", (1, 3))
def test_refinement(expansion, reduction):
    layer = built(Refinement(expansion, 3, reduction), MAPS)
    y = array(layer(MAPS))
    assert y.shape[1] == (4 if reduction else 4 * expansion)
    close(y, refine(MAPS, layer))


@pytest.mark.parametrize("constraint", ("spatial", "row+column"))
def test_refinement_with_a_constraint(constraint):
    layer = built(Refinement(2, 3, constraint=constraint, grid=(2, 3)), MAPS)
    close(array(layer(MAPS)), refine(MAPS, layer))


def test_refinement_without_expansion_and_kernel_mixes_heads():
    """Talking heads after the softmax (Refiner, Section 3.2)."""
    layer = built(Refinement(expansion=1, kernel_size=1), MAPS)
    layer.local.kernel.assign(np.ones((4, 1, 1, 1)))
    mixing = HeadMixing(use_bias=False)
    mixing.build(MAPS.shape)
    expand, reduce = array(layer.expand.kernel.value), array(layer.reduce.kernel.value)
    mixing.kernel.assign(reduce @ expand)
    close(array(layer(MAPS)), array(mixing(MAPS)))


@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize("expansion,kernel_size,map_scale", ((3, 3, 1.0), (1, 5, 0.5)))
def test_residual_refinement(expansion, kernel_size, map_scale, training):
    maps = numbers((2, 4, 5, 7), scale=5)
    layer = built(ResidualRefinement(expansion, kernel_size, map_scale), maps)
    # Wide enough that ReLU6 cuts at both ends.
    for part in (layer.bn1, layer.bn2):
        part.gamma.assign(8 * array(part.gamma.value))
        part.beta.assign(part.beta + 3.0)

    def cut(x):
        assert (x < 0).any()
        assert (x > 6).any()
        return np.clip(x, 0, 6)

    y = cut(batch_norm(mix(maps, layer.conv_exp), layer.bn1, training))
    y = cut(batch_norm(local(y, layer.depth_sep_conv), layer.bn2, training))
    y = maps + batch_norm(mix(y, layer.conv_pro), layer.bn3, training)
    expected = map_scale * batch_norm(y, layer.adapt_bn, training)
    close(array(layer(maps, training=training)), expected)


@pytest.mark.parametrize("learnable", (False, True))
def test_temperature(learnable):
    attention = Attention(2, on_logits=[Temperature(2.5, learnable)])
    layer = built(attention)
    tau = attention.on_logits[0]
    assert len(tau.trainable_variables) == learnable
    if learnable:
        assert tau.tau.shape == (1,)
        tau.tau.assign([2.5])
    q, k, v = np.split(dense(X, layer.qkv), 3, axis=-1)
    y, maps = layer(X, return_attention_scores=True)
    expected = softmax(logits(q, k, 2) / 2.5)
    close(array(maps), expected)
    close(array(y), dense(aggregate(expected, v), layer.proj))


def test_a_learnable_temperature_starts_from_its_value():
    layer = Temperature(0.7, learnable=True)
    layer.build(MAPS.shape)
    close(array(layer.tau.value), [0.7])


@pytest.mark.parametrize("count", (1, 2))
def test_uniform_heads(count):
    y = array(UniformHeads(count)(MAPS))
    assert y.shape == (2, 4 + count, 5, 7)
    np.testing.assert_array_equal(y[:, :4], MAPS)
    close(y[:, 4:], np.full((2, count, 5, 7), 1 / 7))


def test_attention_with_a_uniform_head():
    layer = built(Attention(2, head_size=3, on_weights=[UniformHeads()]))
    q, k, v = np.split(dense(X, layer.qkv), [6, 12], axis=-1)
    assert v.shape[-1] == 9
    learned = aggregate(softmax(logits(q, k, 2)), v[..., :6])
    uniform = np.broadcast_to(v[..., 6:].mean(1, keepdims=True), (3, 5, 3))
    expected = dense(np.concatenate([learned, uniform], axis=-1), layer.proj)
    y, maps = layer(X, return_attention_scores=True)
    close(array(y), expected)
    assert maps.shape == (3, 3, 5, 5)


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


def alike(layer, plain):
    """Give `plain` the projections of `layer`, and compare the two."""
    plain.build(X.shape)
    for name in ("qkv", "proj"):
        getattr(plain, name).set_weights(getattr(layer, name).get_weights())
    close(array(layer(X)), array(plain(X)))


def unit(mixing):
    mixing.kernel.assign(np.eye(mixing.kernel.shape[0]))
    mixing.bias.assign(np.zeros(mixing.bias.shape))


def test_re_attention_by_the_unit_matrix_is_plain_attention():
    layer = built(DeepAttention(2))
    re_attention = layer.on_weights[0]
    unit(re_attention.reatten_matrix)
    # A normalization that is the identity.
    norm = re_attention.var_norm
    norm.set_weights([np.ones(2), np.zeros(2), np.zeros(2), np.full(2, 1 - norm.epsilon)])
    alike(layer, Attention(2))

    layer = built(Attention(2, on_logits=[HeadMixing()], on_weights=[HeadMixing()]))
    unit(layer.on_logits[0])
    unit(layer.on_weights[0])
    alike(layer, Attention(2))


@pytest.mark.parametrize("training", (False, True))
def test_deep_attention(training):
    layer = built(DeepAttention(2, map_scale=0.5))
    part = layer.on_weights[0]
    q, k, v = np.split(dense(X, layer.qkv), 3, axis=-1)
    mixed = mix(softmax(logits(q, k, 2)), part.reatten_matrix)
    expected = 0.5 * batch_norm(mixed, part.var_norm, training)
    y, maps = layer(X, training=training, return_attention_scores=True)
    close(array(maps), expected)
    close(array(y), dense(aggregate(expected, v), layer.proj))


@pytest.mark.parametrize("reduction", (True, False))
def test_refined_attention(reduction):
    layer = built(RefinedAttention(2, 3, 3, reduction, "spatial", (2, 2)))
    heads = 2 if reduction else 6
    q, k, v = np.split(dense(X, layer.qkv), [8, 16], axis=-1)
    assert v.shape[-1] == 4 * heads, "a head of values a map"
    expected = refine(softmax(logits(q, k, 2)), layer.on_weights[0])
    y, maps = layer(X, return_attention_scores=True)
    close(array(maps), expected)
    close(array(y), dense(aggregate(expected, v), layer.proj))


def test_names_of_the_layers_over_maps():
    def names(layer):
        return {v.path.split("/", 1)[1] for v in built(layer).weights} - {
            f"{part}/{v}" for part in ("qkv", "proj") for v in ("kernel", "bias")
        }

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
        exact = [part for re_attention in layer.on_weights for part in sublayers(re_attention)]
        exact = exact if make is DeepAttention else []  # It computes in float32.
        policies = {part.name: part.dtype_policy.name for part in parts if part not in exact}
        assert set(policies.values()) == {"mixed_bfloat16"}
        assert {part.compute_dtype for part in exact} <= {"float32"}


def with_large_bias(policy, maps):
    """Return re-attention of four heads with a bias far above the spread of its maps."""
    layer = ReAttention(dtype=policy)
    layer.build(maps.shape)
    layer.reatten_matrix.kernel.assign(numbers((4, 4)))
    layer.reatten_matrix.bias.assign([0.5, -0.5, 0.3, 8.0])
    return layer


def test_re_attention_in_training_is_without_rounding_of_its_bias():
    """The bias cancels in BN, and half precision keeps the maps."""
    maps = np.random.default_rng(0).dirichlet(np.ones(40), (16, 4, 40)).astype("float32")
    found = {}
    for policy in ("float32", "mixed_bfloat16"):
        layer = with_large_bias(policy, maps)
        given = ops.cast(maps, layer.compute_dtype)
        variables = layer.trainable_variables

        def loss(layer=layer, given=given):
            return ops.sum(ops.cast(layer(given, training=True), "float32") ** 3)

        _, slopes = gradients(loss, variables)
        bias = [v.path for v in variables].index(layer.reatten_matrix.bias.path)
        # It is zero but for rounding errors, which the bias of 8 makes large.
        assert np.abs(slopes[bias]).max() < 0.05 * np.abs(slopes[1 - bias]).max()
        layer.var_norm.moving_mean.assign([0.0] * 4)
        found[policy] = array(ops.cast(layer(given, training=True), "float32"))
        mixed = np.einsum("ij,bjqk->bqki", array(layer.reatten_matrix.kernel.value), maps)
        mean = (mixed + array(layer.reatten_matrix.bias.value)).reshape(-1, 4).mean(0)
        close(array(layer.var_norm.moving_mean.value), 0.1 * mean, 2e-3)
    # Rounded beside a bias of 8, the fourth map would be off by more than its deviation.
    assert np.abs(found["mixed_bfloat16"] - found["float32"]).mean() < 0.02


def test_re_attention_at_inference_is_without_rounding_of_its_bias():
    maps = np.random.default_rng(0).dirichlet(np.ones(40), (16, 4, 40)).astype("float32")
    found = {}
    for policy in ("float32", "mixed_bfloat16"):
        layer = with_large_bias(policy, maps)
        mixed = np.einsum("ij,bjqk->bqki", array(layer.reatten_matrix.kernel.value), maps)
        mixed = mixed.reshape(-1, 4) + array(layer.reatten_matrix.bias.value)
        layer.var_norm.moving_mean.assign(mixed.mean(0))
        layer.var_norm.moving_variance.assign(mixed.var(0))
        found[policy] = array(ops.cast(layer(ops.cast(maps, layer.compute_dtype)), "float32"))
    assert np.abs(found["mixed_bfloat16"] - found["float32"]).max() < 0.03
