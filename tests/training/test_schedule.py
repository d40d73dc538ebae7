"""The learning rate: any schedule is what its formula says."""

import keras
import numpy as np
import pytest
from harness import BACKEND, array
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_vitx.training import Recipe, make_schedule


def rates(recipe, steps_per_epoch, steps):
    schedule = make_schedule(recipe, steps_per_epoch)
    return array(schedule(np.array(steps, "int32")))


@pytest.mark.backend_free
def test_each_epoch_begins_with_timms_rate(timm):
    import timm.scheduler
    import torch

    changes = {"epochs": 30, "learning_rate": 1e-3, "final_learning_rate": 1e-5}
    changes |= {"warmup_epochs": 5, "warmup_learning_rate": 1e-6, "cooldown_epochs": 10}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    theirs = timm.scheduler.CosineLRScheduler(
        optimizer, t_initial=30, lr_min=1e-5, warmup_t=5, warmup_lr_init=1e-6
    )
    expected = []
    for epoch in range(40):
        theirs.step(epoch)
        expected.append(optimizer.param_groups[0]["lr"])
    found = rates(Recipe("mine", **changes), 7, range(0, 280, 7))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.backend_free
def test_no_rate_is_above_a_small_batchs_peak():
    changes = {"learning_rate": 1e-4, "final_learning_rate": 1e-5, "warmup_learning_rate": 1e-5}
    recipe = Recipe("mine", batch_size=8, base_batch_size=512, warmup_epochs=1, epochs=3, **changes)
    assert recipe.peak == pytest.approx(1e-4 / 64)
    np.testing.assert_allclose(rates(recipe, 2, range(8)), recipe.peak, rtol=1e-5)


def formula(recipe, steps_per_epoch, step):
    """A linear warm-up; then a cosine that began at step 0, or the peak; then the last rate."""
    s, peak = step - step % recipe.accumulate_steps, recipe.peak
    start, final = (min(r, peak) for r in (recipe.warmup_learning_rate, recipe.final_learning_rate))
    warmup, end = (n * steps_per_epoch for n in (recipe.warmup_epochs, recipe.epochs))
    if s < warmup:
        return start + (peak - start) * s / warmup
    final = peak if recipe.decay == "constant" else final
    return final + (peak - final) * (1 + np.cos(np.pi * min(s / end, 1))) / 2


RATES = {
    "learning_rate": st.floats(1e-4, 0.1),
    "warmup_learning_rate": st.floats(0, 0.1),
    "final_learning_rate": st.floats(0, 1e-4),
}


@pytest.mark.parametrize("decay", ("cosine", "constant"))
@settings(max_examples=25 if BACKEND == "torch" else 4)  # Others compile for each number of steps.
@given(
    epochs=st.integers(1, 6),
    warmup=st.sampled_from((0, 0.3, 0.5, 0.99)),
    steps=st.integers(1, 4),
    parts=st.sampled_from((1, 2)),
    base=st.sampled_from((None, 1, 512)),
    rates_=st.fixed_dictionaries(RATES),
)
def test_any_schedule_is_what_its_formula_says(decay, epochs, warmup, steps, parts, base, rates_):
    """Micro-batches of an update share its rate; the saved schedule is the same."""
    recipe = Recipe("mine", batch_size=8, decay=decay, cooldown_epochs=1, **rates_)
    recipe = recipe.replace(epochs=epochs, warmup_epochs=warmup * epochs)
    recipe = recipe.replace(accumulate_steps=parts, base_batch_size=base)
    numbers = range((epochs + 1) * steps * parts)
    found = rates(recipe, steps * parts, numbers)
    expected = [formula(recipe, steps * parts, step) for step in numbers]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-9)
    config = keras.saving.serialize_keras_object(make_schedule(recipe, steps * parts))
    again = keras.saving.deserialize_keras_object(config)
    assert float(array(again(numbers[-1]))) == pytest.approx(found[-1], rel=1e-6)
