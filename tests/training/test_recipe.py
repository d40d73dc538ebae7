"""Recipes: values, changes, files, and those of the papers."""

import dataclasses
import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_vitx.data import Augmentation, Mixing
from keras_vitx.training import Recipe, list_recipes, recipes
from keras_vitx.training.recipe import GROUPS

pytestmark = pytest.mark.backend_free

MINE = Recipe("mine", mixing=Mixing())
WRONG = {
    "epochs": (0, 2.5, "3", True), "batch_size": (0, 1.5),
    "learning_rate": (0.0, float("nan"), "fast"), "base_batch_size": (0,),
    "final_learning_rate": (1.0, -1e-6), "warmup_epochs": (10, -1),
    "warmup_learning_rate": (-1e-6,), "cooldown_epochs": (-1, 0.5), "decay": ("linear",),
    "algorithm": ("sgd",), "weight_decay": (-0.1,), "beta_1": (1.0,), "beta_2": (1,),
    "epsilon": (0,), "clip_norm": (0.0,), "layer_decay": (0.0, 1.5), "ema": (0, 1.0),
    "accumulate_steps": (0, 1.5), "drop_path": (1.0, -0.1), "drop_path_schedule": (True, "rising"),
    "remat": ("yes",), "crop_ratio": (0,),
    "label_smoothing": (1.0, -0.1), "distillation": ("medium",),
    "temperature": (0,), "distillation_weight": (1.5, -0.1), "flip": (1.5,), "mixup": (-0.1,),
    "result": ("first",), "steps_per_epoch": (0, 1.5), "min_updates": (0, 1.5),
    "patience": (0,), "precision": ("float64",), "train": ("body",), "mixing": (0.8,),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_values_out_of_range(name):
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=f"`{name}`") as error:
            MINE.replace(**{name: value})
        assert str(value) in str(error.value)


def test_each_setting_is_checked_and_in_one_group():
    names = [field.name for field in dataclasses.fields(Recipe)]
    grouped = [name for group in GROUPS.values() for name in group]
    parts = [field.name for part in (Augmentation, Mixing) for field in dataclasses.fields(part)]
    own = ["name", "augmentation", "mixing", "result"]
    assert sorted([*names, *parts]) == sorted([*grouped, *own])
    assert set(names) - {"name", "augmentation"} <= set(WRONG)


def test_a_recipe_survives_as_data(tmp_path):
    """Also NumPy's numbers."""
    made = {"batch_size": np.int64(8), "learning_rate": np.float32(0.1), "remat": True, "ema": 0.5}
    for recipe in (MINE, Recipe("ä/", augmentation=Augmentation(scale=(0.5, 1.0)), **made)):
        data = json.loads(json.dumps(recipe.to_dict()))
        again = Recipe("other").replace(**data)
        assert again == recipe and hash(again) == hash(recipe)
        (tmp_path / "run.json").write_text(json.dumps({"recipe": data}))
        assert recipes.get(tmp_path) == recipes.get(tmp_path / "run.json") == recipe


FITTED = ["batch_size", "epochs"]
NAMED = [*FITTED, "warmup_epochs"]
RECIPES = st.builds(
    partial(Recipe, "mine", warmup_epochs=0),
    batch_size=st.integers(1, 2048).map(lambda n: 2 * n),
    accumulate_steps=st.sampled_from((1, 2)),
    epochs=st.integers(1, 1000),
    min_updates=st.none() | st.integers(1, 10**6),
)


@given(recipe=RECIPES, images=st.integers(8, 10_000), fixed=st.sets(st.sampled_from(NAMED)))
def test_any_number_of_images_has_enough_updates(recipe, images, fixed):
    """Of the settings that the user chose, none changes."""
    fitted = recipe.for_images(images, fixed)
    changed = {name for name in (*FITTED, *fixed) if getattr(fitted, name) != getattr(recipe, name)}
    assert not changed & fixed
    if recipe.min_updates is None:
        assert fitted is recipe
    elif "epochs" not in fixed:
        assert fitted.epochs * max(images // fitted.batch_size, 1) >= recipe.min_updates
    if "batch_size" in changed:
        assert 8 <= fitted.batch_size < recipe.batch_size


def test_changes():
    changed = MINE.replace(batch_size=7, epochs=None, mixup=0.2, weight_decay=0.3)
    assert changed == Recipe("mine", batch_size=7, weight_decay=0.3, mixing=Mixing(mixup=0.2))
    # The warm-up scales with the epochs, the rate with the batch.
    warm = MINE.replace(epochs=10, warmup_epochs=2)
    assert warm.replace(epochs=5).warmup_epochs == 1
    assert warm.replace(epochs=5, warmup_epochs=0).warmup_epochs == 0
    scaled = MINE.replace(learning_rate=5e-4, base_batch_size=512, batch_size=1024)
    assert [scaled.peak, scaled.replace(base_batch_size=None).peak] == [1e-3, 5e-4]


def test_what_can_be_turned_off():
    recipe = Recipe("mine", clip_norm=1.0, ema=0.9, mixing=Mixing())
    off = dict.fromkeys(("augmentation", "mixing", "clip_norm", "ema", "learning_rate"))
    off = recipe.replace(**off)
    assert off == Recipe("mine", augmentation=None)
    assert off.replace(cutmix=0.5).mixing == Mixing(mixup=0.0, cutmix=0.5)
    assert off.replace(flip=0.5).augmentation == Augmentation(crop=None, flip=0.5)
    assert off.replace(mixing=Mixing(), mixup=0.1).mixing == Mixing(mixup=0.1)
    assert off.replace(augmentation="crop_flip", flip=0.0).augmentation.flip == 0
    assert "--mixing none" in str(off)


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipes(name):
    recipe = recipes.get(name)
    assert recipe.name == name
    assert recipes.get(recipe) is recipe
    assert Recipe("other").replace(**recipe.to_dict()) == recipe
    about = recipes.FILES[name].read_text()
    assert f"--recipe {name}" in about


def test_a_file_of_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = 'based_on = "deit"\nepochs = 30\nmixup = 0.2\nscale = [0.5, 1]\nema = "none"\n'
    (tmp_path / "mine.toml").write_text(settings)
    changes = {"epochs": 30, "mixup": 0.2, "scale": (0.5, 1), "ema": None}
    changed = recipes.get("deit").replace(name="mine.toml", **changes)
    assert recipes.get("mine.toml") == changed
    assert recipes.get(tmp_path / "mine.toml").warmup_epochs == 0.5
    (tmp_path / "mine.toml").write_text("epoch = 30")
    with pytest.raises(ValueError, match=r"'epochs'.* Received: 'epoch'"):
        recipes.get("mine.toml")


def test_files_based_on_files(tmp_path):
    (tmp_path / "own.toml").write_text("epochs = 7", "utf-8-sig")  # hukkin/tomli#304
    (tmp_path / "mine.toml").write_text('based_on = "own.toml"\nbatch_size = 4')
    found = recipes.get(tmp_path / "mine.toml")
    assert (found.epochs, found.batch_size) == (7, 4)


# The peak of the learning rate, and settings.
PAPERS = {
    "deit": (1e-3, {"epochs": 300, "batch_size": 1024, "warmup_epochs": 5, "drop_path": 0.1}),
    "convit_plus": (4e-4, {"epochs": 300, "batch_size": 512, "repeats": 3}),
    "cait": (1e-3, {"epochs": 400, "batch_size": 1024, "warmup_epochs": 5, "drop_path": None}),
    "deepvit": (5e-4, {"batch_size": 256, "cooldown_epochs": 10, "repeats": 1, "ema": 0.99996}),
    "refiner": (5e-4, {"batch_size": 256, "drop_path": 0.1, "ema": 0.99996}),
    "higher_resolution": (5e-6, {"epochs": 30, "batch_size": 512, "weight_decay": 1e-8}),
    "transfer": (1e-4, {"epochs": 1000, "warmup_epochs": 5, "crop_ratio": 0.875}),
}


@pytest.mark.parametrize("name", PAPERS)
def test_recipes_of_the_papers(name):
    recipe, (peak, own) = recipes.get(name), PAPERS[name]
    settings = recipe.to_dict()
    assert own.items() <= settings.items()
    assert recipe.peak == pytest.approx(peak)
    common = {
        "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "clip_norm": None, "layer_decay": None,
        "warmup_learning_rate": 1e-6, "final_learning_rate": 1e-5, "label_smoothing": 0.1,
        "crop": "random_resized", "scale": [0.08, 1.0], "ratio": [3 / 4, 4 / 3], "flip": 0.5,
        "rand_augment": "m9-mstd0.5-inc1", "color_jitter": 0, "erasing": 0.25,
        "mixup": 0.8, "cutmix": 1.0, "mixing_probability": 1, "switch": 0.5, "result": "last",
    }  # fmt: skip
    assert common.items() <= settings.items()
    random = name in ("deepvit", "refiner")
    assert settings["train_interpolation"] == ("random" if random else "bicubic")
    if name != "higher_resolution":
        assert settings["weight_decay"] == 0.05
