import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, close, numbers, precision, randomize
from keras import ops
from training.fitting import averaged

from keras_vitx.layers.base import optimizer_of
from keras_vitx.models import Chain
from keras_vitx.training import AdamW, Recipe
from keras_vitx.training.optimizer import make_optimizer, matrices_of, rate_factors

# Not decayed, and not matrices of the blocks.
MIXES = {"proj_l", "proj_w", "reatten_matrix", "conv_exp", "conv_pro", "fc", "positions"}
PROJECTIONS = {"qkv", "q", "k", "qk", "v", "proj", "pos_proj", "fc1", "fc2"}


@pytest.mark.backend_free
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_decayed_and_what_muon_takes(family):
    """Weight decay of kernels only; Muon for the projections of the blocks."""
    model = FAMILIES[family]()
    randomize(model)
    variables = model.trainable_variables
    kernels = {v.path for v in variables if v.path.endswith("/kernel")}
    others = [v for v in variables if v.path not in kernels]
    arrays = {v.path.rpartition("/")[2] for v in others if len(v.shape) > 1}
    assert arrays <= {"embeddings", "table", "token"}, (
        "what has several dimensions and is no kernel decays"
    )

    recipe = Recipe("mine", learning_rate=0.1, warmup_epochs=0, weight_decay=0.5)
    before = [array(v.value) for v in variables]
    make_optimizer(model, recipe, 10).apply([ops.zeros(v.shape) for v in variables], variables)
    for old, variable in zip(before, variables, strict=True):
        shrunk = 1 - 0.1 * 0.5 if variable.path in kernels else 1
        close(array(variable.value), old * shrunk, 1e-6, variable.path)

    taken = {variables[index].path for index in matrices_of(model)}
    layers = {path.split("/")[-2] for path in taken}
    assert {"fc1", "fc2"} <= layers <= PROJECTIONS
    # The other matrices are the heads', mixes of heads, and the pooling of PiT's class token.
    left = {v.path for v in variables if len(v.shape) == 2} - taken
    assert all(path.startswith("head") or path.split("/")[-2] in MIXES for path in left), left


def two_layers():
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(3, name="one"), keras.layers.Dense(1, name="two")]
    )
    randomize(model)
    return model


def orthogonal(matrix):
    """Five steps of Muon's iteration (Jordan et al. 2024)."""
    x = (matrix.T if matrix.shape[0] > matrix.shape[1] else matrix) / np.linalg.norm(matrix)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def numpy_updates(weights, batches, recipe, rate):
    """AdamW, or Muon for the first matrix, with all that a recipe adds, on two Dense layers.

    Returns the weights, and their moving average.
    """
    weights = [np.array(w) for w in weights]
    factors = [0.5, 0.5, 1, 1] if recipe.layer_decay else [1] * 4
    m, v = ([np.zeros_like(w) for w in weights] for _ in "mv")
    average, b1, b2 = None, recipe.beta_1, recipe.beta_2
    for step, (x, y) in enumerate(batches):
        kernel, bias, kernel2, bias2 = weights
        hidden = x @ kernel + bias
        error = 2 * (hidden @ kernel2 + bias2 - y) / len(x)
        back = error @ kernel2.T
        gradients = [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        clip = min(1, recipe.clip_norm / norm) if recipe.clip_norm else 1
        for i, gradient in enumerate(clip * g for g in gradients):
            lr = rate(step) * factors[i]
            if weights[i].ndim == 2:
                weights[i] = weights[i] * (1 - lr * recipe.weight_decay)
            if i == 0 and recipe.algorithm == "muon":
                m[i] = 0.95 * m[i] + gradient
                update = orthogonal(gradient + 0.95 * m[i])
                weights[i] = weights[i] - lr * 0.2 * np.sqrt(max(update.shape)) * update
                continue
            m[i] = b1 * m[i] + (1 - b1) * gradient
            v[i] = b2 * v[i] + (1 - b2) * gradient**2
            mean, square = m[i] / (1 - b1 ** (step + 1)), v[i] / (1 - b2 ** (step + 1))
            weights[i] = weights[i] - lr * mean / (np.sqrt(square) + recipe.epsilon)
        average = weights if average is None else average
        mu = recipe.ema or 0
        average = [mu * a + (1 - mu) * w for a, w in zip(average, weights, strict=True)]
    return weights, average


BASE = Recipe("mine").replace(
    learning_rate=0.1, warmup_epochs=1, final_learning_rate=0.01, weight_decay=0.2, epsilon=1e-3
)


LAYERS, SEVERAL = {"layer_decay": 0.5}, {"layer_decay": 0.5, "ema": 0.7, "accumulate_steps": 2}
CHANGES = [
    *({}, {"clip_norm": 0.5}, {"ema": 0.7}, LAYERS, {"clip_norm": 0.5, **SEVERAL}),
    *({"algorithm": "muon"}, {"algorithm": "muon", **SEVERAL}),
]
HERE = CHANGES if BACKEND == "torch" else [CHANGES[0], CHANGES[4], CHANGES[6]]  # None, and all.


@pytest.mark.parametrize("changes", HERE, ids=lambda changes: "-".join(changes) or "plain")
def test_updates_are_those_of_numpy(changes):
    """Through `fit`, compiled as the backend compiles it."""
    recipe = BASE.replace(**changes)
    model = two_layers()
    parts, updates = recipe.accumulate_steps, 5
    x, y = numbers((updates, 4 * parts, 2)), numbers((updates, 4 * parts, 1), seed=1)

    def rate(update):
        # Two batches of the optimizer per epoch, one epoch of warm-up from 0.
        if update < 2:
            return 0.1 * update / 2
        return 0.01 + 0.09 * (1 + np.cos(np.pi * update / 20)) / 2

    weights = [array(w.value) for w in model.trainable_variables]
    weights, average = numpy_updates(weights, zip(x, y, strict=True), recipe, rate)
    model.compile(make_optimizer(model, recipe, 2 * parts), "mse")
    for x_, y_ in zip(x.reshape(-1, 4, 2), y.reshape(-1, 4, 1), strict=True):
        model.train_on_batch(x_, y_)
    if recipe.ema:
        # The last weights enter the average with the next part of a batch.
        gradients = [ops.zeros(v.shape) for v in model.trainable_variables]
        for _ in range(parts - 1):
            model.optimizer.apply(gradients, model.trainable_variables)
        with averaged(model):
            compare(model, average)
    compare(model, weights)


def compare(model, weights):
    for variable, expected in zip(model.trainable_variables, weights, strict=True):
        close(array(variable.value), expected, 2e-5, variable.path)


@pytest.mark.backend_free
@pytest.mark.parametrize("family", ("CaiT", "PiT"))
def test_rates_fall_toward_the_images(family):
    model = FAMILIES[family]()
    by_layer = {}
    factors = rate_factors(model, 0.5)
    for variable, factor in zip(model.trainable_variables, factors, strict=True):
        by_layer.setdefault(variable.path.partition("/")[0], set()).add(factor)
    in_order = [by_layer[layer.name].pop() for layer in model.layers if layer.name in by_layer]
    assert in_order == sorted(in_order)
    blocks = [layer for layer in model.layers if hasattr(layer, "drop_path")]
    assert in_order[0] == 0.5 ** (len(blocks) + 1)
    assert in_order[-1] == 1
    # The same, inside another model.
    outer = keras.Sequential([model, keras.layers.Dense(2)])
    assert rate_factors(outer, 0.5)[: len(factors)] == factors
    assert set(rate_factors(outer, 1)) == {1}
    # Frozen layers change no other layer's rate (huggingface/pytorch-image-models#2691).
    by_variable = dict(zip(map(id, model.trainable_variables), factors, strict=True))
    for frozen in (blocks[0], *blocks, *blocks[-1].weights[:1]):
        frozen.trainable = False
        left = map(id, model.trainable_variables)
        assert rate_factors(model, 0.5) == tuple(map(by_variable.get, left))


@pytest.mark.parametrize("changes", ({}, {**LAYERS, "ema": 0.7, "algorithm": "muon"}))
def test_saved_and_loaded(tmp_path, changes):
    """Decay of kernels and rates per layer survive, as does the state."""
    model = two_layers()
    model.compile(make_optimizer(model, BASE.replace(**changes), 2), "mse")
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    model.train_on_batch(x, y)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.optimizer, AdamW)
    for one in (model, loaded):
        one.train_on_batch(x, y)
    compare(loaded, [array(v.value) for v in model.trainable_variables])


# test_restart.py has both in half precision, with each backend.
@pytest.mark.parametrize(
    "dtype", ("float32", pytest.param("mixed_float16", marks=pytest.mark.backend_free))
)
def test_statistics_of_normalization_are_averaged(dtype, tmp_path):
    """From their start, as in timm's ModelEmaV2, through saving and a second `fit`."""
    with precision(dtype):
        layers = [keras.layers.BatchNormalization(), keras.layers.Dense(2, name="head")]
        model = Chain([*layers, keras.layers.Activation("softmax", name="prediction")], (2,))
    optimizer = make_optimizer(model, BASE.replace(ema=0.7), 2)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    images, labels = numbers((4, 2)), np.arange(4) % 2
    average = [array(v.value).copy() for v in statistics(model)]
    assert average
    for _ in range(3):
        model.train_on_batch(images, labels)
        pairs = zip(average, statistics(model), strict=True)
        average = [0.7 * mean + 0.3 * array(v.value) for mean, v in pairs]
    live = [array(v.value).copy() for v in statistics(model)]
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    for one in (model, loaded):
        with averaged(one):
            for variable, expected in zip(statistics(one), average, strict=True):
                close(array(variable.value), expected, 1e-5, variable.path)
        np.testing.assert_equal([array(v.value) for v in statistics(one)], live)
    # Keras leaves a model with its average, which shares no memory with it.
    loaded.fit(images, labels, batch_size=2, verbose=0)
    for variable, mean in zip(statistics(loaded), optimizer_of(loaded).averages, strict=True):
        np.testing.assert_array_equal(array(variable.value), array(mean.value))
    loaded.train_on_batch(images, labels)


def statistics(model):
    return [v for v in model.non_trainable_variables if v.name.startswith("moving_")]


@pytest.mark.parametrize("changes", ({}, LAYERS), ids=str)
def test_nothing_that_decays(changes):
    """Where only the biases are trained."""
    model = two_layers()
    optimizer = make_optimizer(model, BASE.replace(warmup_epochs=0, **changes), 10)
    optimizer.rate_factors = changes and (0.5, 1.0)
    biases = [v for v in model.trainable_variables if v.path.endswith("/bias")]
    before = [array(v.value) for v in biases]
    optimizer.apply([ops.ones(v.shape) for v in biases], biases)
    assert all((array(v.value) < old).all() for v, old in zip(biases, before, strict=True))


def test_variables_in_half_precision_train():
    """As those in float32; Keras's stand still in bfloat16, where a beta of 0.999 is 1."""
    x, y = numbers((16, 2)), numbers((16, 1), seed=1)
    losses = []
    for policy in ("mixed_bfloat16", "bfloat16"):
        with precision(policy):
            model = two_layers()
        recipe = BASE.replace(learning_rate=0.02, warmup_epochs=0, ema=0.99)
        model.compile(make_optimizer(model, recipe, 100), "mse")
        losses.append([model.evaluate(x, y, verbose=0)])
        for _ in range(200):
            model.train_on_batch(x, y)
        losses[-1].append(model.evaluate(x, y, verbose=0))
        with averaged(model):
            losses[-1].append(model.evaluate(x, y, verbose=0))
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert max(losses[0][1:]) < 0.9 * losses[0][0]


@pytest.mark.parametrize("factors", (None, (0.5, 0.5, 1.0, 1.0)))
@pytest.mark.parametrize("by", ("var_list", "var_names"))
def test_what_the_user_excludes_does_not_decay(by, factors):
    model = two_layers()
    kernels = [v for v in model.trainable_variables if v.path.endswith("/kernel")]
    excluded = kernels[:1] if by == "var_list" else ["kernel"]
    optimizer = AdamW(0.1, 0.5, factors)
    optimizer.exclude_from_weight_decay(**{by: excluded})
    before = [array(v.value) for v in kernels]
    zeros = [ops.zeros(v.shape) for v in model.trainable_variables]
    optimizer.apply(zeros, model.trainable_variables)
    same = [(array(v.value) == old).all() for v, old in zip(kernels, before, strict=True)]
    assert same == [True, by == "var_names"]


@pytest.mark.skipif(BACKEND != "torch", reason="counted by PyTorch")
def test_operations_do_not_grow_with_the_number_of_variables():
    """A GPU waits for the launches of small kernels; clipping has one for each variable."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **(kwargs or {}))

    counts = []
    for layers in (1, 8):
        dense = [keras.layers.Dense(3) for _ in range(layers)]
        model = keras.Sequential([keras.Input((3,)), *dense])
        recipe = BASE.replace(clip_norm=1.0, layer_decay=0.5)
        optimizer, variables = make_optimizer(model, recipe, 10), model.trainable_variables
        optimizer.rate_factors = (0.5, 1.0) * layers
        gradients = [ops.ones(v.shape) for v in variables]
        optimizer.apply(gradients, variables)
        with Count() as count:
            optimizer.apply(gradients, variables)
        counts.append(count.calls)
    assert counts[1] - counts[0] == 14 and counts[0] < 60, counts


@pytest.mark.backend_free
def test_a_moving_average_over_more_than_the_run_is_named(caplog):
    recipe = Recipe("mine", epochs=10, ema=0.99)
    make_optimizer(two_layers(), recipe, steps_per_epoch=30)
    assert "ema" not in caplog.text
    make_optimizer(two_layers(), recipe, steps_per_epoch=29)
    assert "(ema=0.99) spans about 100 updates, but the run has 290" in caplog.text
