"""Every measure against its equation, written out in loops, and against known values."""

import ml_dtypes
import numpy as np
import pytest

from keras_vitx.analysis import measures as m

pytestmark = pytest.mark.backend_free

GRID = (2, 3)
RANDOM = np.random.default_rng(0)
# (images, heads, queries, keys)
MAPS = RANDOM.dirichlet(np.full(6, 0.3), size=(2, 3, 6)).astype("float32")
OTHERS = RANDOM.dirichlet(np.full(6, 0.3), size=(2, 3, 6)).astype("float32")
TOKENS, LAST = RANDOM.normal(size=(2, 4, 5, 7)).astype("float32")
IDENTITY = np.broadcast_to(np.eye(6, dtype="float32"), (2, 3, 6, 6))
UNIFORM = np.full((2, 3, 6, 6), 1 / 6, "float32")


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def over_rows(function, maps):
    found = np.zeros(maps.shape[:-1])
    for place in np.ndindex(*maps.shape[:-1]):
        found[place] = function([float(a) for a in maps[place]])
    return found


def cosine(a, b):
    a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
    return sum(a * b) / (sum(a * a) ** 0.5 * sum(b * b) ** 0.5)


def test_entropy():
    def of_row(row):
        return sum(-a * np.log(a) for a in row if a)

    close(m.entropy(MAPS), over_rows(of_row, MAPS))
    close(m.entropy(UNIFORM), np.full((2, 3, 6), np.log(6)))
    assert not m.entropy(IDENTITY).any()
    # Only the values of a row count, not their keys.
    close(m.entropy(MAPS[..., ::-1]), m.entropy(MAPS))


def test_steepness_is_a_nuclear_norm():
    def of_row(row):
        jacobian = np.diag(row) - np.outer(row, row)
        return np.linalg.svd(jacobian, compute_uv=False).sum()

    close(m.steepness(MAPS), over_rows(of_row, MAPS))
    close(m.steepness(UNIFORM), np.full((2, 3, 6), 1 - 1 / 6))
    assert (m.steepness(MAPS) < 1 - 1 / 6).all()


def test_half_precision_is_summed_in_float32():
    maps = np.full((1, 1, 4096), 1 / 4096, "float16")
    assert m.entropy(maps).dtype == np.float32
    close(m.entropy(maps), [[np.log(4096)]])
    close(m.steepness(maps), [[1 - 1 / 4096]])


@pytest.mark.parametrize("measure", (m.entropy, m.steepness))
@pytest.mark.parametrize(
    "wrong",
    (
        *(2 * MAPS, MAPS - 0.1 + 0.1 * 6 * IDENTITY, MAPS * np.nan),
        *(0.985 * MAPS, 0.995 * MAPS, (0.985 * MAPS).astype("float16"), 1.004 * MAPS),
    ),
)
def test_maps_that_are_not_probabilities(measure, wrong):
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
        close(m.entropy(maps), m.entropy(maps.astype("float32")))


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
    assert not measure(IDENTITY, GRID).any()
    assert measure(np.full((1, 1), 1.0), (1, 1)) == 0
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
    steps = np.linspace(-2, 2, 81)
    x, y = np.meshgrid(steps, steps)
    logits = 1.0 * x - 2.0 * y - 1.25 * (x**2 + y**2)
    peak = np.unravel_index(logits.argmax(), logits.shape)
    found, _ = m.attention_center([[1.0], [-2.0], [-1.25]])
    close(found[0], (x[peak], y[peak]), 0.03)


def test_map_cosines():
    over_queries, over_heads = np.zeros((2, 3, 6)), np.zeros((2, 6, 6))
    for image in range(2):
        for head, key in np.ndindex(3, 6):
            pair = MAPS[image, head, :, key], OTHERS[image, head, :, key]
            over_queries[image, head, key] = cosine(*pair)
        for query, key in np.ndindex(6, 6):
            pair = MAPS[image, :, query, key], OTHERS[image, :, query, key]
            over_heads[image, query, key] = cosine(*pair)
    close(m.map_cosines(MAPS, OTHERS), over_queries)
    close(m.map_cosines(MAPS, OTHERS, over="heads"), over_heads)
    close(m.map_similarity(MAPS, OTHERS), over_queries.mean((1, 2)))
    close(m.map_similarity(MAPS, OTHERS, over="heads"), over_heads.mean((1, 2)))
    close(m.map_cosines(MAPS, 7 * MAPS), np.ones((2, 3, 6)))


def test_cross_layer_similarity():
    half = 0.5 * (MAPS + OTHERS)
    layers = [MAPS, half, OTHERS, MAPS[..., :1, :]]
    found = m.cross_layer_similarity(layers)
    assert found.shape == (2, 4, 4)
    for p, q in np.ndindex(3, 3):
        expected = (m.map_cosines(layers[p], layers[q]) > 0.5).mean((1, 2))
        close(found[:, p, q], expected)
    assert 0 < found[:, 0, 2].mean() < found[:, 0, 1].mean() < 1
    assert (found[:, range(4), range(4)] == 1).all()
    # Maps of another shape are not comparable.
    assert np.isnan(found[:, 3, :3]).all() and np.isnan(found[:, :3, 3]).all()
    strict = m.cross_layer_similarity(layers[:3], threshold=0.99)
    assert (strict <= found[:, :3, :3]).all() and (strict[:, 0, 2] < found[:, 0, 2]).all()


def test_threshold_from_the_nearest_blocks():
    layers = [MAPS, OTHERS, 0.5 * (MAPS + OTHERS)]
    pairs = {1: ((0, 1), (1, 2)), 2: ((0, 1), (1, 2), (0, 2))}
    for nearest, used in pairs.items():
        threshold = np.mean([m.map_cosines(layers[p], layers[q]) for p, q in used])
        close(
            m.cross_layer_similarity(layers, nearest=nearest),
            m.cross_layer_similarity(layers, threshold=threshold),
        )


def test_similar_blocks():
    similarity = np.eye(5)
    for p, value in enumerate((0.5, 0.85, 0.95, 0.7)):
        similarity[p, p + 1] = similarity[p + 1, p] = value
    assert m.similar_blocks(similarity).tolist() == [False, False, True, True, False]
    assert m.similar_blocks(np.stack([similarity] * 2)).mean(-1).tolist() == [0.4, 0.4]


def test_head_similarity():
    expected = np.zeros((2, 3, 3))
    for image, g, h, key in np.ndindex(2, 3, 3, 6):
        expected[image, g, h] += cosine(MAPS[image, g, :, key], MAPS[image, h, :, key]) / 6
    pairs = [expected[:, g, h] for g in range(3) for h in range(3) if g != h]
    close(m.mean_head_similarity(MAPS), np.mean(pairs, 0))
    close(m.mean_head_similarity(UNIFORM), np.ones(2))
    assert np.isnan(m.mean_head_similarity(MAPS[:, :1])).all()


def test_feature_similarity():
    expected = [
        np.mean([cosine(a, b) for a, b in zip(*pair, strict=True)])
        for pair in zip(TOKENS, LAST, strict=True)
    ]
    close(m.feature_similarity(TOKENS, LAST), expected)
    close(m.feature_similarity(TOKENS, 3 * TOKENS), np.ones(4))
    close(m.feature_similarity(TOKENS, -TOKENS), -np.ones(4))


def test_linear_cka():
    x, y = RANDOM.normal(size=(2, 8, 5))
    x[:, 2] += 9
    xc, yc = x - x.mean(0), y - y.mean(0)
    expected = np.linalg.norm(yc.T @ xc) ** 2
    expected /= np.linalg.norm(xc.T @ xc) * np.linalg.norm(yc.T @ yc)
    close(m.linear_cka(x, y), expected)
    rotation, _ = np.linalg.qr(RANDOM.normal(size=(5, 5)))
    close(m.linear_cka(x, 3 * x @ rotation + 7), 1)
    # Features that vary with different images.
    apart = np.zeros((4, 2))
    apart[:, 0], apart[:, 1] = (1, -1, 1, -1), (1, 1, -1, -1)
    close(m.linear_cka(apart[:, :1], apart[:, 1:]), 0)
    assert np.isnan(m.linear_cka(np.ones((4, 3)), apart))


def test_normalized_cka():
    features = RANDOM.normal(size=(3, 8, 4, 5))
    expected = [m.linear_cka(one.reshape(8, 20), features[2].reshape(8, 20)) for one in features]
    found = m.normalized_cka(features)
    close(found, np.array(expected) / expected[0])
    assert found[0] == 1 and found[2] == found.max()
    final = RANDOM.normal(size=(8, 3))
    assert m.normalized_cka(features, final)[2] == pytest.approx(
        m.linear_cka(features[2], final) / m.linear_cka(features[0], final)
    )


def test_branch_ratio():
    def norm(values):
        return sum(float(v) ** 2 for v in np.ravel(values)) ** 0.5

    tokens = [np.mean([norm(LAST[i, t]) / norm(TOKENS[i, t]) for t in range(5)]) for i in range(4)]
    whole = [norm(LAST[i]) / norm(TOKENS[i]) for i in range(4)]
    close(m.branch_ratio(LAST, TOKENS), tokens)
    close(m.branch_ratio(LAST, TOKENS, over="image"), whole)
    close(m.branch_ratio(-0.2 * TOKENS, TOKENS), np.full(4, 0.2))


def test_scale_summary():
    mean, ratio = m.scale_summary(np.arange(1, 12))
    assert mean == 6
    assert ratio == pytest.approx(2 / 10)
    assert m.scale_summary([2, 2])[1] == 1
