import keras
import numpy as np
import pytest
from harness import array

from keras_vitx.training import Recipe, make_schedule


def rates(recipe, steps_per_epoch, steps):
    schedule = make_schedule(recipe, steps_per_epoch)
    return np.array([float(array(schedule(step))) for step in steps])


@pytest.mark.backend_free
def test_each_epoch_begins_with_timms_rate(timm):
    import timm.scheduler
    import torch

    recipe = Recipe("mine").replace(
        epochs=30,
        learning_rate=1e-3,
        warmup_epochs=5,
        warmup_learning_rate=1e-6,
        final_learning_rate=1e-5,
        cooldown_epochs=10,
    )
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    theirs = timm.scheduler.CosineLRScheduler(
        optimizer, t_initial=30, lr_min=1e-5, warmup_t=5, warmup_lr_init=1e-6
    )
    expected = []
    for epoch in range(recipe.all_epochs):
        theirs.step(epoch)
        expected.append(optimizer.param_groups[0]["lr"])
    np.testing.assert_allclose(rates(recipe, 7, range(0, 280, 7)), expected, rtol=1e-4)


@pytest.mark.parametrize("warmup", (0, 1, 2.5))
def test_between_the_epochs(warmup):
    """Steps that share an update share its rate; the saved schedule is the same."""
    recipe = Recipe(
        "mine", epochs=5, learning_rate=1e-2, final_learning_rate=1e-4, warmup_epochs=warmup
    )
    peak, end = round(8 * warmup), 40
    found = rates(recipe, 8, range(end + 3))
    assert found[0] == pytest.approx(0.0 if warmup else 1e-2)
    cosine = 1e-4 + (1e-2 - 1e-4) * (1 + np.cos(np.pi * np.arange(end) / end)) / 2
    np.testing.assert_allclose(found[peak:end], cosine[peak:], rtol=1e-4)
    np.testing.assert_allclose(found[end:], 1e-4, rtol=1e-4)
    assert (np.diff(found[:peak]) > 0).all()
    in_parts = rates(recipe.replace(accumulate_steps=2), 16, range(2 * end))
    np.testing.assert_allclose(in_parts, found[:end].repeat(2), rtol=1e-6)
    config = keras.saving.serialize_keras_object(make_schedule(recipe, 8))
    again = keras.saving.deserialize_keras_object(config)
    assert float(array(again(17))) == pytest.approx(found[17], rel=1e-6)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({"learning_rate": 5e-6, "decay": "constant", "warmup_epochs": 0}, 5e-6),
        # The rate is scaled below those of the start and the end.
        ({"base_batch_size": 512, "batch_size": 1, "warmup_learning_rate": 1e-6}, 5e-4 / 512),
    ],
)
def test_a_constant_rate(changes, rate):
    recipe = Recipe("mine", final_learning_rate=1e-6).replace(**changes)
    np.testing.assert_allclose(rates(recipe, 3, range(40)), rate, rtol=1e-5)
