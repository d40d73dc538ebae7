"""`fit` by recipes: every recipe in short, the moving average, which epoch is the result."""

import contextlib

import keras
import numpy as np
import pytest
from harness import FAMILIES, blocks
from training.fitting import averaged, best_of, run_of, same_weights

import keras_vitx as kv
from keras_vitx.training import Recipe, list_recipes, recipes

LABELS = np.arange(24) % 5
IMAGES = np.random.default_rng(0).integers(0, 256, (24, 20, 24, 3)).astype("uint8")
SOURCE = (IMAGES, LABELS), (IMAGES[:7], LABELS[:7]), (IMAGES[:4], LABELS[:4])


@pytest.mark.backend_free
@pytest.mark.parametrize("name", list_recipes())
def test_a_short_trial(name, tmp_path):
    recipe = recipes.get(name)
    parts = {"warmup_epochs": min(recipe.warmup_epochs, 0.5), "min_updates": None}
    parts |= {"cooldown_epochs": min(recipe.cooldown_epochs, 1)}
    recipe = recipe.replace(epochs=2, batch_size=8, **parts)
    if name == "refiner":
        settings = {"dense_head": True, "similarity": 0.1, "similarity_depth": 1}
        model = FAMILIES["RefinedViT"](drop_path=0.0, **settings)
    else:
        model = FAMILIES["CaiT"](depth=2, drop_path=0.0)
    before = model.get_weights()
    history = kv.fit(model, SOURCE, recipe, output=tmp_path)
    epochs = 3 if recipe.cooldown_epochs else 2
    assert len(history.history["loss"]) == epochs
    assert np.isfinite(history.history["loss"] + history.history["val_loss"]).all()
    assert {"loss", "accuracy"} <= set(history.test)
    assert any(np.abs(a - b).max() > 0 for a, b in zip(before, model.get_weights(), strict=True))
    assert recipes.get(tmp_path) == recipe
    saved = keras.saving.load_model(tmp_path / f"{recipe.result}.keras")
    rate = recipe.drop_path or 0.0
    assert max(block.drop_path for block in blocks(saved)) == pytest.approx(rate)
    assert recipe.result == "best" or run_of(tmp_path)["best_epoch"] == epochs
    same_weights(saved, model)


class Watch(keras.callbacks.Callback):
    """Record, per epoch, the weights and the entries of the log."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append((self.model.get_weights(), logs["val_loss"]))


@pytest.mark.parametrize("result", ("best", pytest.param("last", marks=pytest.mark.backend_free)))
def test_the_average_is_measured_and_kept(result, tmp_path):
    """huggingface/pytorch-image-models#2090: beside the average's loss, its weights."""
    keras.utils.set_random_seed(0)
    head = keras.layers.Dense(5, "softmax")
    model = keras.Sequential([keras.Input((6, 6, 3)), keras.layers.Flatten(), head])
    model.preprocessing = kv.Preprocessing((0.5,) * 3, (0.5,) * 3)
    # The rate is so high that the loss rises after the first epochs.
    recipe = Recipe("mine", augmentation=None, result=result).replace(
        epochs=4, batch_size=8, learning_rate=0.3, warmup_epochs=0, ema=0.8
    )
    watch, start = Watch(), model.get_weights()
    history = kv.fit(model, SOURCE, recipe, output=tmp_path, callbacks=[watch])
    validation = kv.data.pipelines(SOURCE, model, 8).validation
    for (mean, val_loss), logged in zip(watch.epochs, history.history["val_loss"], strict=True):
        assert val_loss == logged
        model.set_weights(mean)
        assert kv.evaluate(model, validation)["loss"] == pytest.approx(logged, rel=1e-4)
    chosen = best_of(history.history) if result == "best" else 3
    saved = keras.saving.load_model(tmp_path / f"{result}.keras")
    # Training continues from the average, in the weights and in the optimizer.
    for context in (contextlib.nullcontext(), averaged(saved)):
        with context:
            for found, expected in zip(saved.get_weights(), watch.epochs[chosen][0], strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-6)
    model.set_weights(start)
    without = kv.fit(model, SOURCE, recipe.replace(ema=None)).history["loss"]
    assert history.history["loss"] == pytest.approx(without, rel=1e-5)


@pytest.mark.backend_free
def test_the_regularizer_is_part_of_the_loss():
    """It is linear in the weight with which the model was built."""
    losses = []
    for weight in (0.0, 0.1, 0.2):
        keras.utils.set_random_seed(0)
        settings = {"similarity": weight, "similarity_depth": 3, "similarity_over": "queries"}
        model = FAMILIES["DeepViT"](depth=4, drop_path=0.0, **settings)
        changes = {"epochs": 1, "batch_size": 8, "warmup_epochs": 0, "augmentation": None}
        changes |= {"learning_rate": 1e-12, "final_learning_rate": 0.0}
        losses.append(kv.fit(model, SOURCE, **changes).history["loss"][0])
    assert abs(losses[1] - losses[0]) > 1e-4
    assert losses[2] - losses[0] == pytest.approx(2 * (losses[1] - losses[0]), rel=1e-3)
