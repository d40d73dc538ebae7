"""Every measure against its equation, written out in loops, and on any maps."""

import inspect

import ml_dtypes
import numpy as np
import pytest
import shapes
from hypothesis import given
from hypothesis import strategies as st

from keras_vitx.analysis import measures as m

pytestmark = pytest.mark.backend_free

GRID = (2, 3)
RANDOM = np.random.default_rng(0)
# (images, heads, queries, keys)
MAPS, OTHERS = RANDOM.dirichlet(np.full(6, 0.3), size=(2, 2, 3, 6)).astype("float32")
TOKENS, LAST = RANDOM.normal(size=(2, 4, 5, 7)).astype("float32")
IDENTITY = np.broadcast_to(np.eye(6, dtype="float32"), (2, 3, 6, 6))
UNIFORM = np.full((2, 3, 6, 6), 1 / 6, "float32")


# Arguments by their names, and those of other shapes.
ARGUMENTS = {
    **{"maps": MAPS, "others": OTHERS, "grid": GRID, "similarity": RANDOM.random((2, 4, 4))},
    **{"tokens": TOKENS, "last": LAST, "features": TOKENS, "branch": TOKENS, "inputs": LAST},
    **{"weights": TOKENS[0, :3], "scale": TOKENS[0, 0], "x": TOKENS, "y": LAST},
}
OTHER_ARGUMENTS = {
    "sink_norm": {"tokens": RANDOM.normal(size=(2, 1, 6, 4))},
    "cross_layer_similarity": {"maps": [MAPS, OTHERS]},
    "normalized_cka": {"features": [TOKENS, LAST]},
}
MEASURES = [name for name, one in vars(m).items() if inspect.isfunction(one) and name[0] != "_"]


@pytest.mark.parametrize("name", MEASURES)
def test_shapes_are_those_of_the_annotations(name):
    signature = inspect.signature(getattr(m, name))
    given = {**ARGUMENTS, **OTHER_ARGUMENTS.get(name, {})}
    given = {name: given[name] for name in signature.parameters if name in given}
    shapes.call(getattr(m, name), **given)


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def over_rows(function, maps):
    return np.array([function(row) for row in maps.reshape(-1, maps.shape[-1])]).reshape(
        maps.shape[:-1]
    )


def cosine(a, b):
    a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
    return sum(a * b) / (sum(a * a) ** 0.5 * sum(b * b) ** 0.5)


@st.composite
def any_maps(draw):
    """Maps (2, heads, rows * columns, rows * columns) from even to steep, and their grid."""
    rows, columns, heads = (draw(st.integers(1, 5)) for _ in range(3))
    random, spread = np.random.default_rng(draw(st.integers(0, 999))), draw(st.floats(0.01, 100))
    tokens = rows * columns
    maps = random.dirichlet(np.full(tokens, spread), size=(2, heads, tokens))
    return np.float32(0.999 * maps + 0.001 / tokens), (rows, columns)


@given(any_maps())
def test_measures_of_any_maps_are_in_their_range_and_depend_on_no_order(maps_and_grid):
    maps, grid = maps_and_grid
    tokens, heads = maps.shape[-1], maps.shape[1]
    keys, order = np.random.default_rng(1).permutation(tokens), np.arange(heads)[::-1]
    for measure, largest in ((m.entropy, np.log(tokens)), (m.steepness, 1 - 1 / tokens)):
        found = measure(maps)
        assert found.shape == maps.shape[:-1]
        assert found.min() > -1e-5 and found.max() < largest + 1e-5
        close(measure(maps[..., keys]), found)
        close(measure(maps[:, order]), found[:, order])
    diagonal = np.hypot(*(side - 1 for side in grid))
    for measure, largest in ((m.nonlocality, diagonal), (m.relative_distance, 2**0.5)):
        found = measure(maps, grid)
        assert found.shape == maps.shape[:2] and found.min() >= 0
        assert found.max() <= largest + 1e-5
        # Seen from behind, every distance is the same.
        close(measure(maps[..., ::-1, ::-1], grid), found)
    similarity = m.map_cosines(maps, maps[::-1])
    assert (np.abs(similarity) < 1 + 1e-5).all()
    close(m.map_cosines(3 * maps, maps[::-1]), similarity)
    close(m.map_cosines(maps[..., keys, :], maps[::-1][..., keys, :]), similarity)
    close(m.mean_head_similarity(maps[:, order]), m.mean_head_similarity(maps))
    close(m.centered(maps).sum(-1), 0, 1e-4)


@given(st.integers(0, 999), st.integers(3, 9), st.integers(1, 6), st.floats(0.1, 10))
def test_cka_ignores_rotation_scale_and_mean(seed, images, features, scale):
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(2, images, features))
    rotation, _ = np.linalg.qr(random.normal(size=(features, features)))
    found = m.linear_cka(x, y)
    assert -1e-6 < found < 1 + 1e-6
    close(m.linear_cka(y, x), found)
    close(m.linear_cka(x, scale * x @ rotation + 7), 1, 1e-4)
    close(m.linear_cka(scale * x @ rotation + 7, y), found, 1e-4)


def test_entropy_and_steepness():
    close(m.entropy(MAPS), over_rows(lambda row: sum(-a * np.log(a) for a in row if a), MAPS))
    close(m.entropy(UNIFORM), np.log(6))

    def nuclear_norm(row):
        jacobian = np.diag(row) - np.outer(row, row)
        return np.linalg.svd(jacobian, compute_uv=False).sum()

    close(m.steepness(MAPS), over_rows(nuclear_norm, MAPS))
    close(m.steepness(UNIFORM), 1 - 1 / 6)
    assert not m.entropy(IDENTITY).any() and not m.steepness(IDENTITY).any()


@pytest.mark.parametrize("measure", (m.entropy, m.steepness))
@pytest.mark.parametrize(
    "wrong",
    (
        *(2 * MAPS, MAPS - 0.1 + 0.1 * 6 * IDENTITY, MAPS * np.nan),
        *(0.985 * MAPS, 0.995 * MAPS, (0.985 * MAPS).astype("float16"), 1.004 * MAPS),
    ),
)
def test_maps_that_are_not_probabilities_are_named(measure, wrong):
    with pytest.raises(ValueError, match=r"must be probabilities.*ReAttention.*BlockTrace.softmax"):
        measure(wrong)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32"))
@pytest.mark.parametrize("tokens", (5, 197, 3001))
@pytest.mark.parametrize("peak", (0.0, 0.3, 10.0))
def test_a_softmax_in_any_precision_is_taken(dtype, tokens, peak):
    """Also a gated sum of two, as ConViT's, in the precision that has them."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    logits = peak * RANDOM.normal(size=(2, 8, tokens))
    content, positional = (np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)).astype(dtype)
    gate = dtype.type(0.3)
    gated = (dtype.type(1) - gate) * content + gate * positional
    for maps in (content, gated):
        for measure in (m.entropy, m.steepness):
            assert measure(maps).dtype == np.float32
            close(measure(maps), measure(maps.astype("float32")))


def test_sinks():
    maps = RANDOM.normal(size=(2, 3, 5, 6))
    received = np.zeros((2, 3, 6))
    for image, head, query, key in np.ndindex(maps.shape):
        received[image, head, key] += abs(maps[image, head, query, key])
    close(m.sink_share(maps), received.max(-1) / received.sum(-1))
    close(m.sink_share(maps[..., RANDOM.permutation(6)]), m.sink_share(maps))
    close(m.sink_share(UNIFORM), 1 / 6)
    assert (m.sink_share(np.eye(6)[[2] * 6]) == 1).all() and m.sink_share(0 * UNIFORM).max() == 0
    tokens, values = RANDOM.normal(size=(2, 1, 6, 7)), RANDOM.normal(size=(2, 3, 6, 4))
    for held in (tokens, values):
        expected = np.zeros((2, 3))
        for image, head in np.ndindex(2, 3):
            norms = [sum(x * x) ** 0.5 for x in held[image, min(head, len(held[image]) - 1)]]
            expected[image, head] = norms[received[image, head].argmax()] / np.mean(norms)
        close(m.sink_norm(maps, held), expected)


def test_effective_rank():
    features = RANDOM.normal(size=(3, 6, 4))
    p = np.linalg.svd(features, compute_uv=False)
    p /= p.sum(-1, keepdims=True)
    close(m.effective_rank(features), np.exp(-(p * np.log(p)).sum(-1)))
    close(m.effective_rank(7 * features), m.effective_rank(features))
    close(m.effective_rank(np.eye(4)), 4)
    close(m.effective_rank(np.outer(features[0, :, 0], features[0, 0])), 1, 1e-4)
    assert np.isnan(m.effective_rank(np.zeros((5, 4))))


def test_outlier_tokens():
    tokens = np.ones((2, 5, 4))
    tokens[0, 1] = 3.1
    tokens[0, 4] = -4
    assert m.outlier_tokens(tokens).tolist() == [2, 0]
    assert m.outlier_tokens(tokens, factor=3.5).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("measure", "unit"), ((m.nonlocality, (1, 1)), (m.relative_distance, (1, 2)))
)
def test_distances(measure, unit):
    """In patches, or with both sides of the grid scaled to 1."""
    expected, patches = np.zeros((2, 3)), list(np.ndindex(*GRID))
    for i, j in np.ndindex(6, 6):
        (row, column), (other_row, other_column) = patches[i], patches[j]
        distance = np.hypot((row - other_row) / unit[0], (column - other_column) / unit[1])
        expected += MAPS[..., i, j] * distance / 6
    close(measure(MAPS, GRID), expected)
    assert not measure(IDENTITY, GRID).any() and measure(np.ones((1, 1)), (1, 1)) == 0
    # Every query attends the patch on its right or left.
    close(measure(np.eye(4)[[1, 0, 3, 2]], (2, 2)), 1)


def test_attention_center():
    # ConViT's start: head h1 + 2 h2 looks at (h2 - 1/2, h1 - 1/2).
    weights = np.array([[-1, -1, 1, 1, 0], [-1, 1, -1, 1, 0], [-1, -1, -1, -1, 1]]) * 3.0
    center, distance = m.attention_center(weights)
    close(center[:4], np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]]) / 2)
    close(distance[:4], np.full(4, 0.5**0.5))
    assert np.isnan(center[4]).all() and np.isnan(distance[4])
    # The logits are largest there.
    x, y = np.meshgrid(*[np.linspace(-2, 2, 81)] * 2)
    logits = 1.0 * x - 2.0 * y - 1.25 * (x**2 + y**2)
    peak = np.unravel_index(logits.argmax(), logits.shape)
    close(m.attention_center([[1.0], [-2.0], [-1.25]])[0][0], (x[peak], y[peak]), 0.03)


def test_map_cosines():
    over_queries, over_heads = np.zeros((2, 3, 6)), np.zeros((2, 6, 6))
    for image, head, key in np.ndindex(2, 3, 6):
        pair = MAPS[image, head, :, key], OTHERS[image, head, :, key]
        over_queries[image, head, key] = cosine(*pair)
    for image, query, key in np.ndindex(2, 6, 6):
        pair = MAPS[image, :, query, key], OTHERS[image, :, query, key]
        over_heads[image, query, key] = cosine(*pair)
    close(m.map_cosines(MAPS, OTHERS), over_queries)
    close(m.map_cosines(MAPS, OTHERS, over="heads"), over_heads)
    close(m.map_similarity(MAPS, OTHERS), over_queries.mean((1, 2)))
    close(m.map_similarity(MAPS, OTHERS, over="heads"), over_heads.mean((1, 2)))


def test_cross_layer_similarity():
    layers = [MAPS, 0.5 * (MAPS + OTHERS), OTHERS, MAPS[..., :1, :]]
    found = m.cross_layer_similarity(layers)
    assert found.shape == (2, 4, 4)
    for p, q in np.ndindex(3, 3):
        close(found[:, p, q], (m.map_cosines(layers[p], layers[q]) > 0.5).mean((1, 2)))
    assert 0 < found[:, 0, 2].mean() < found[:, 0, 1].mean() < 1
    assert (found[:, range(4), range(4)] == 1).all()
    # Maps of another shape are not comparable.
    assert np.isnan(found[:, 3, :3]).all() and np.isnan(found[:, :3, 3]).all()
    strict = m.cross_layer_similarity(layers[:3], threshold=0.99)
    assert (strict <= found[:, :3, :3]).all() and (strict[:, 0, 2] < found[:, 0, 2]).all()


@pytest.mark.parametrize(
    ("nearest", "used"), [(1, ((0, 1), (1, 2))), (2, ((0, 1), (1, 2), (0, 2)))]
)
def test_threshold_from_the_nearest_blocks(nearest, used):
    layers = [MAPS, OTHERS, 0.5 * (MAPS + OTHERS)]
    threshold = np.mean([m.map_cosines(layers[p], layers[q]) for p, q in used])
    expected = m.cross_layer_similarity(layers, threshold=threshold)
    close(m.cross_layer_similarity(layers, nearest=nearest), expected)


def test_similar_blocks():
    similarity = np.eye(5)
    for p, value in enumerate((0.5, 0.85, 0.95, 0.7)):
        similarity[p, p + 1] = similarity[p + 1, p] = value
    assert m.similar_blocks(similarity).tolist() == [False, False, True, True, False]
    assert m.similar_blocks(np.stack([similarity] * 2)).mean(-1).tolist() == [0.4, 0.4]


def test_head_similarity():
    pairs = [(g, h) for g in range(3) for h in range(3) if g != h]
    expected = [
        [cosine(image[g, :, key], image[h, :, key]) for g, h in pairs for key in range(6)]
        for image in MAPS
    ]
    close(m.mean_head_similarity(MAPS), np.mean(expected, 1))
    close(m.mean_head_similarity(UNIFORM), 1)
    assert np.isnan(m.mean_head_similarity(MAPS[:, :1])).all()


def test_feature_similarity():
    expected = [
        np.mean([cosine(a, b) for a, b in zip(*pair, strict=True)])
        for pair in zip(TOKENS, LAST, strict=True)
    ]
    close(m.feature_similarity(TOKENS, LAST), expected)
    close(m.feature_similarity(TOKENS, 3 * TOKENS), 1)
    close(m.feature_similarity(TOKENS, -TOKENS), -1)


def test_linear_cka():
    x, y = RANDOM.normal(size=(2, 8, 5))
    x[:, 2] += 9
    xc, yc = x - x.mean(0), y - y.mean(0)
    expected = np.linalg.norm(yc.T @ xc) ** 2
    expected /= np.linalg.norm(xc.T @ xc) * np.linalg.norm(yc.T @ yc)
    close(m.linear_cka(x, y), expected)
    # Features that vary with different images.
    apart = np.array([[1, -1, 1, -1], [1, 1, -1, -1]]).T
    close(m.linear_cka(apart[:, :1], apart[:, 1:]), 0)
    assert np.isnan(m.linear_cka(np.ones((4, 3)), apart))


def test_normalized_cka():
    features, final = RANDOM.normal(size=(3, 8, 4, 5)), RANDOM.normal(size=(8, 3))
    flat = features.reshape(3, 8, 20)
    for found, last in (
        (m.normalized_cka(features), flat[2]),
        (m.normalized_cka(features, final), final),
    ):
        expected = np.array([m.linear_cka(one, last) for one in flat])
        close(found, expected / expected[0])
        assert found[0] == 1


def test_branch_ratio():
    norms = [np.sqrt((np.float64(values) ** 2).sum(-1)) for values in (LAST, TOKENS)]
    close(m.branch_ratio(LAST, TOKENS), (norms[0] / norms[1]).mean(1))
    close(m.branch_ratio(-0.2 * TOKENS, TOKENS), 0.2)


def test_scale_summary():
    assert m.scale_summary(np.arange(1, 12)) == (6, pytest.approx(2 / 10))
    assert m.scale_summary([2, 2])[1] == 1
