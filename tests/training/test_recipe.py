import dataclasses
import importlib

import pytest

from keras_vitx import training
from keras_vitx.training import Recipe, list_recipes, recipes

pytestmark = pytest.mark.backend_free

WRONG = {
    "epochs": 0,
    "batch_size": 0,
    "learning_rate": 0.0,
    "final_learning_rate": 1.0,
    "warmup_epochs": 10,
    "weight_decay": -0.1,
    "label_smoothing": 1.0,
    "clip_norm": 0.0,
}


@pytest.mark.parametrize("name", WRONG)
def test_value_out_of_range(name):
    for make in (lambda **a: Recipe(name="mine", **a), Recipe(name="mine").but):
        with pytest.raises(ValueError, match=f"`{name}`") as error:
            make(**{name: WRONG[name]})
        assert str(WRONG[name]) in str(error.value)


def test_but():
    recipe = Recipe(name="mine", epochs=3)
    changed = recipe.but(batch_size=7, epochs=None)
    assert (changed.batch_size, changed.epochs, recipe.batch_size) == (7, 3, 64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.epochs = 4


def test_unknown_setting():
    with pytest.raises(ValueError, match=r"'learning_rat'.*'learning_rate'"):
        Recipe(name="mine").but(learning_rat=1e-3)


def test_shipped_recipes():
    assert list_recipes() == sorted(list_recipes())
    assert {"finetune", "small_images"} <= set(list_recipes())
    for name in list_recipes():
        recipe = recipes.get(name)
        assert recipe.name == name
        assert recipes.get(recipe) is recipe
        module = importlib.import_module(f"keras_vitx.training.recipes.{name}")
        assert f"--recipe {name}" in module.__doc__


def test_unknown_recipe():
    with pytest.raises(ValueError, match=r"'finetun'.*'finetune'"):
        training.fit(None, None, "finetun")


def test_what_can_be_turned_off():
    recipe = Recipe("mine").but(augmentation=None, clip_norm=None, learning_rate=None)
    assert (recipe.augmentation, recipe.clip_norm) == (None, None)
    assert recipe.learning_rate == Recipe("mine").learning_rate


def test_the_warm_up_stretches_with_the_epochs():
    recipe = Recipe("mine", epochs=10, warmup_epochs=2)
    assert recipe.but(epochs=5).warmup_epochs == 1
    assert recipe.but(epochs=5, warmup_epochs=0).warmup_epochs == 0
