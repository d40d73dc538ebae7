import keras
import numpy as np
import pytest
from harness import FAMILIES, array, close, randomize
from keras import ops

from keras_vitx.training.optimizer import is_decayed, make_optimizer
from keras_vitx.training.recipe import Recipe

LEFT_OUT = {"bias", "beta", "gamma", "token", "embeddings", "gating_param"}


@pytest.mark.parametrize("family", FAMILIES)
def test_only_kernels_are_decayed(family):
    model = FAMILIES[family]()
    randomize(model)
    decayed = {v.path for v in model.trainable_variables if is_decayed(v)}
    assert decayed == {v.path for v in model.trainable_variables if v.path.endswith("/kernel")}
    others = {v.path for v in model.trainable_variables} - decayed
    assert {path.rpartition("/")[2] for path in others} <= LEFT_OUT
    assert any(path.endswith("/bias") for path in others)

    recipe = Recipe("mine").but(learning_rate=0.1, warmup_epochs=0, weight_decay=0.5)
    optimizer = make_optimizer(model, recipe, steps_per_epoch=10)
    before = [array(v.value) for v in model.trainable_variables]
    optimizer.apply(
        [ops.zeros(v.shape) for v in model.trainable_variables], model.trainable_variables
    )
    for old, variable in zip(before, model.trainable_variables, strict=True):
        shrunk = 1 - 0.1 * 0.5 if variable.path in decayed else 1
        close(array(variable.value), old * shrunk, 1e-6, variable.path)


@pytest.mark.parametrize("warmup", (0, 1, 2.5))
def test_schedule(warmup):
    recipe = Recipe("mine").but(
        epochs=5,
        learning_rate=1e-2,
        final_learning_rate=1e-4,
        warmup_epochs=warmup,
    )
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    rate = make_optimizer(model, recipe, steps_per_epoch=8)._learning_rate
    peak, end = round(8 * warmup), 40
    rates = np.array([float(array(rate(step))) for step in range(end + 3)])
    assert rates[0] == pytest.approx(0.0 if warmup else 1e-2)
    assert rates[peak] == pytest.approx(1e-2, rel=1e-5)
    assert rates[end] == pytest.approx(1e-4, rel=1e-4)
    assert rates[-1] == pytest.approx(1e-4, rel=1e-4)
    assert rates[(peak + end) // 2] == pytest.approx((1e-2 + 1e-4) / 2, rel=0.1)
    steps = np.diff(rates)
    assert (steps[:peak] > 0).all()
    assert (steps[peak:end] < 0).all()


def test_numbers_of_the_recipe():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = make_optimizer(model, Recipe("mine").but(weight_decay=0.3, clip_norm=2.0), 4)
    assert isinstance(optimizer, keras.optimizers.AdamW)
    assert (optimizer.weight_decay, optimizer.global_clipnorm) == (0.3, 2.0)
    optimizer = make_optimizer(model, Recipe("mine"), 4)
    assert optimizer.global_clipnorm is None
