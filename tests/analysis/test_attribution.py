"""Attribution against its formulas, written with whole matrices, and against finite differences."""

import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, close, numbers, precision, randomized
from keras import ops

from keras_vitx.analysis import attribute, attribution, trace
from keras_vitx.layers.recording import recording

IMAGES = numbers((2, 16, 16, 3))
ATTENTIVE = [name for name in FAMILIES if name != "Mixer"]
# Negative weights, rows of other sums, class attention, and shared maps.
FAMILIES_HERE = ATTENTIVE if BACKEND == "torch" else ["CaiT", "RefinedViT"]


def logits(model, images):
    x = ops.convert_to_tensor(images)
    for layer in model.logit_layers:
        x = layer(x)
    return array(x)


def rolled(maps, total):
    mixed = maps + np.eye(len(maps))
    return mixed / mixed.sum(-1, keepdims=True) @ total


def matrices(blocks, of_block, step=rolled):
    """Return what every token has of every token, from matrices of all the tokens of the end."""
    tokens, grid = blocks[-1].inputs.shape[1], blocks[-1].grid
    result = np.repeat(np.eye(tokens)[None], len(IMAGES), axis=0)
    for block in blocks:
        if block.grid == grid:
            queries, keys = block.maps.shape[2:]
            first, maps = tokens - block.inputs.shape[1], of_block(block)
            full = np.zeros((len(IMAGES), tokens, tokens))
            full[:, first : first + queries, tokens - keys :] = maps
            result = np.stack(list(map(step, full, result)))
    return result


def by_class_token(result, blocks):
    patches = blocks[-1].num_patches
    return result[:, 0, -patches:].reshape(-1, *blocks[-1].grid)


@pytest.mark.parametrize("family", FAMILIES_HERE)
def test_rollout(family):
    model = randomized(family)
    blocks = list(trace(model, IMAGES))
    result = matrices(blocks, lambda block: np.abs(block.maps).mean(1))
    # What patches and other tokens contribute sums to 1.
    close(result.sum(-1), np.ones(result.shape[:2]))
    close(attribute(model, IMAGES, "rollout"), by_class_token(result, blocks))


@pytest.mark.parametrize("family", FAMILIES_HERE)
def test_gradient_attention(family, monkeypatch):
    model, found = randomized(family), {}
    formula = attribution.gradient_attention

    def listening(blocks, gradients):
        found.update(gradients)
        return formula(blocks, gradients)

    monkeypatch.setattr(attribution, "gradient_attention", listening)
    target = [3, 1]
    result = attribute(model, IMAGES, "gradient_attention", target)
    blocks = list(trace(model, IMAGES))
    assert list(found) == [block.name for block in blocks]
    # The gradients: how the logits change with the maps of one block.
    for block in blocks[-2:]:
        attention, ends = model.get_layer(block.name).attention, []
        direction = numbers(block.maps.shape, seed=5)
        for step in (1e-3, -1e-3):
            maps = ops.convert_to_tensor(block.maps + step * direction)

            def with_maps(_, value, training=False, maps=maps, aggregate=attention.aggregate):
                return aggregate(maps, value, training)

            with monkeypatch.context() as patched, recording():
                patched.setattr(attention, "aggregate", with_maps)
                ends.append(logits(model, IMAGES)[[0, 1], target])
        slopes = (found[block.name] * direction).sum((1, 2, 3))
        np.testing.assert_allclose(slopes, (ends[0] - ends[1]) / 2e-3, rtol=0.02, atol=2e-3)

    expected = matrices(
        blocks,
        lambda block: np.maximum(block.maps * found[block.name], 0).mean(1),
        lambda maps, total: total + maps @ total,
    )
    close(result, by_class_token(expected, blocks), 1e-4)


def test_gradients():
    model = randomized("ViT", input_shape=(16, 16, 1))
    images = numbers((2, 16, 16, 1))
    found, best = attribute(model, images, "gradient"), logits(model, images).argmax(-1)
    np.testing.assert_array_equal(found, attribute(model, images, "gradient", best))
    for image, row, column in ((0, 3, 4), (1, 10, 9), (1, 15, 0)):
        ends = []
        for step in (1e-2, -1e-2):
            moved = images.copy()
            moved[image, row, column] += step
            ends.append(logits(model, moved)[image, best[image]])
        slope = abs(ends[0] - ends[1]) / 2e-2
        assert found[image, row, column] == pytest.approx(slope, rel=0.02, abs=1e-3)
    close(attribute(model, images, "smooth_gradient", samples=3, noise=0), found)


@pytest.mark.backend_free
def test_one_sigmoid_is_two_classes():
    one = FAMILIES["ViT"](classes=1, classifier_activation="sigmoid")
    two = FAMILIES["ViT"](classes=2)
    *body, kernel, _ = randomized("ViT", classes=1).get_weights()
    for bias in np.float32([[-9], [9]]):
        one.set_weights([*body, kernel, bias])
        two.set_weights([*body, *(np.concatenate([-v / 2, v / 2], -1) for v in (kernel, bias))])
        for target in (None, 0, 1):
            # The logits are half as large.
            found, expected = (attribute(model, IMAGES, target=target) for model in (one, two))
            assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.backend_free
def test_the_smooth_gradient_is_a_mean_over_noise(monkeypatch):
    monkeypatch.setattr(attribution, "input_gradient", lambda *_: lambda x, _: x**2)
    found = attribute(FAMILIES["ViT"](), IMAGES, "smooth_gradient", samples=400, noise=0.1)
    spread = 0.1 * np.ptp(IMAGES, axis=(1, 2, 3), keepdims=True)
    np.testing.assert_allclose(found, (IMAGES**2 + spread**2).max(-1), rtol=0.3)


@pytest.mark.backend_free
def test_pooled_patches():
    model = randomized("ViT", pooling="avg")
    blocks = list(trace(model, IMAGES))
    result = matrices(blocks, lambda block: block.maps.mean(1))[:, -4:, -4:].mean(1)
    close(attribute(model, IMAGES, "rollout"), result.reshape(2, 2, 2))


@pytest.mark.backend_free
def test_half_precision():
    model = randomized("CBViT")
    with precision("mixed_bfloat16"):
        half = FAMILIES["CBViT"]()
    half.set_weights(model.get_weights())
    for method in ("rollout", "gradient_attention"):
        expected = attribute(model, IMAGES, method, 0)
        close(attribute(half, IMAGES, method, 0), expected, 0.1)


@pytest.mark.backend_free
def test_rollout_needs_no_classifier():
    headless = FAMILIES["ViT"](include_top=False)
    assert attribute(headless, IMAGES, "rollout").shape == (2, 2, 2)
