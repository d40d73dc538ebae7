"""Recipes on the command line, and the lists of them and of damaged images."""

import json

import numpy as np
import pytest
from PIL import Image

import keras_vitx as kv
from keras_vitx.cli.train import RECIPES, named_values
from keras_vitx.training import Recipe, list_recipes, recipes

pytestmark = pytest.mark.backend_free


def test_values_of_settings():
    assert named_values(None, "--set") == {}
    words = [
        "epochs=3",
        "mixup=0.2",
        "clip_norm=none",
        "scale=0.5,1",
        "decay = constant",
        "remat=True",
    ]
    assert named_values(words, "--set") == {
        "epochs": 3,
        "mixup": 0.2,
        "clip_norm": None,
        "scale": (0.5, 1),
        "decay": "constant",
        "remat": True,
    }


def test_list_print_and_compare(run, tmp_path):
    assert list_recipes() == RECIPES
    code, out, err = run("list", "--recipes")
    assert code == 0, err
    assert all(name in out for name in RECIPES)
    code, out, _ = run("list", "--recipes", "--json")
    assert [row["recipe"] for row in json.loads(out)] == RECIPES
    assert run("list", "--recipes", "cait")[1] == f"{recipes.get('cait')}\n"
    data = json.loads(run("list", "--recipes", "cait", "--json")[1])
    assert Recipe.from_dict(data) == recipes.get("cait")

    (tmp_path / "mine").mkdir()
    changed = recipes.get("cait").but(mixup=0.2)
    (tmp_path / "mine" / "run.json").write_text(json.dumps({"recipe": changed.to_dict()}))
    code, out, _ = run("list", "--recipes", "mine", "cait", "--json")
    assert json.loads(out) == [{"setting": "mixup", "mine": 0.2, "cait": 0.8}]
    assert "mixup" in run("list", "--recipes", "mine", "cait")[1]
    assert "agree" in run("list", "--recipes", "cait", "cait")[1]


def test_list_what_can_not_be_decoded(run, tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for name in "abc":
        Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(f"photos/cat/{name}.png")
    code, out, err = run("list", "--damaged", "photos")
    assert (code, out) == (0, "3 images, 0 can't be decoded.\n"), err
    (tmp_path / "photos" / "cat" / "b.png").write_bytes(b"damaged")
    (tmp_path / "photos" / "cat" / "raw.cr2").write_bytes(b"of a camera")
    code, out, err = run("list", "--damaged", "photos", "--json")
    found = json.loads(out)
    assert code == 1 and found["images"] == 4
    assert sorted(found["errors"]) == ["photos/cat/b.png", "photos/cat/raw.cr2"]
    assert "can't be decoded" in found["errors"]["photos/cat/b.png"]


def test_a_short_trial_with_changes(run, tiny_file, small_set, tmp_path):
    code, _, err = run(
        "train", tiny_file, small_set, "--recipe", "deit", "--smoke", "--output", "out",
        "--set", "mixup=0.4", "--set", "layer_decay=0.5", "--set", "accumulate_steps=2",
        "--epochs", "30", "--set", "warmup_epochs=0.25",
    )  # fmt: skip
    assert code == 0, err
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    changes = dict(mixup=0.4, layer_decay=0.5, accumulate_steps=2, epochs=30, warmup_epochs=0.25)
    expected = recipes.get("deit").but(**changes).smoke()
    assert Recipe.read(tmp_path / "out") == recipes.get(tmp_path / "out") == expected
    assert [facts[f"{part}_images"] for part in ("train", "validation", "test")] == [24, 4, 8]
    assert (tmp_path / "out" / "last.keras").exists()


def test_arguments_of_a_size(run, small_set, tmp_path):
    size = ["train", "CaiT_Mini", small_set, "--with", "dim=16", "--with", "depth=1"]
    code, _, err = run(*size, "--with", "num_heads=2", "--smoke", "--output", "out")
    assert code == 0, err
    model = kv.load(tmp_path / "out" / "best.keras")
    assert model.get_layer("patch_embed").output.shape[-1] == 16
