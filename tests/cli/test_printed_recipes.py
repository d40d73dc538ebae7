"""What a printed recipe says is what the command takes."""

import functools
import sys

import numpy as np
import pytest

import keras_vitx as kv
from keras_vitx import cli
from keras_vitx.training import recipes
from keras_vitx.training.recipe import HINTS


@pytest.mark.parametrize("name", ["deit", "small_images"])
def test_a_printed_recipe_is_in_the_syntax_of_the_command(monkeypatch, tmp_path, name):
    settings = {}
    fit = functools.wraps(kv.fit)(lambda *args, **options: settings.update(options))
    monkeypatch.setattr(kv, "fit", fit)
    recipe = recipes.get(name)
    first, *lines = str(recipe).splitlines()
    words = " ".join([first, *(line[16:] for line in lines)]).split()
    source = tmp_path / "x.npz"
    np.savez(source, x_train=np.zeros((10, 32, 32, 3), "uint8"), y_train=np.arange(10))
    words += ["--output", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["keras-vitx", "train", "ViT_Mini", str(source), *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert settings.pop("recipe") == name
    known = {name: settings[name] for name in settings.keys() & HINTS.keys()}
    assert len(known) > 40
    assert recipe.replace(**known) == recipe
