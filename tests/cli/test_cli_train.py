"""The command line trains and predicts."""

import csv
import json
import os
import signal

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vitx as kv
from keras_vitx.cli.train import named_values
from keras_vitx.training import Recipe, recipes

pytestmark = pytest.mark.backend_free


def test_train_then_predict(run, tiny_file, small_set, tmp_path):
    code, out, err = run(
        "train", tiny_file, small_set, "--epochs", 6, "--batch-size", 16, "--learning-rate", 0.01,
        "--output", "out", "--head", "keep",
    )  # fmt: skip
    assert code == 0, err
    assert "out" in out
    rows = list(csv.DictReader((tmp_path / "out" / "history.csv").open()))
    assert len(rows) == 6
    settings = json.loads((tmp_path / "out" / "run.json").read_text())
    assert settings["backend"] == keras.backend.backend()
    assert settings["validation"]["accuracy"] == 1.0

    Image.fromarray(np.full((20, 30, 3), 220, "uint8")).save("light.png")
    Image.fromarray(np.full((40, 20, 3), 30, "uint8")).save("night.jpg")
    code, out, err = run("predict", "out/best.keras", "light.png", "night.jpg")
    assert code == 0, err
    # The class names are numbers, because an .npz has no names.
    lines = [line.split("│") for line in out.splitlines() if "%" in line]
    first = {cells[1].strip(): cells[2].strip() for cells in lines if cells[1].strip()}
    assert first == {"light.png": "1", "night.jpg": "0"}

    _, out, _ = run("predict", "out/best.keras", "light.png", "night.jpg", "--csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert [(row["file"], row["class_1"]) for row in rows] == list(first.items())
    row = rows[0]
    assert float(row["probability_1"]) + float(row["probability_2"]) == pytest.approx(1, abs=3e-6)

    code, _, err = run("train", tiny_file, small_set, "--output", "out")
    assert code == 2 and "already exists" in err

    code, _, err = run(
        "train", tiny_file, small_set, "--teacher", "out/best.keras", "--set", "temperature=2",
        "--set", "distillation=soft", "--batch-size", 16, "--epochs", 1, "--output", "taught",
        "--fraction", 0.5,
    )  # fmt: skip
    assert code == 0, err
    settings = json.loads((tmp_path / "taught" / "run.json").read_text())
    assert settings["train_images"] == 22
    assert settings["teacher"] and settings["recipe"]["targets"]["temperature"] == 2


def test_values_of_settings():
    assert named_values(None, "--set") == {}
    for word, name, value in (
        ("epochs=3", "epochs", 3),
        ("clip_norm=none", "clip_norm", None),
        ("scale=0.5,1", "scale", (0.5, 1)),
        ("decay = constant", "decay", "constant"),
        ("remat=True", "remat", True),
    ):
        assert named_values([word], "--set") == {name: value}
    assert named_values(["a=1", "b=2"], "--set") == {"a": 1, "b": 2}


def test_a_short_trial_with_changes(run, tiny_file, small_set, tmp_path):
    code, _, err = run(
        "train", tiny_file, small_set, "--recipe", "deit", "--smoke", "--output", "out",
        "--set", "mixup=0.4", "--set", "layer_decay=0.5", "--set", "accumulate_steps=2",
        "--epochs", "30", "--set", "warmup_epochs=0.25",
    )  # fmt: skip
    assert code == 0, err
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    changes = dict(mixup=0.4, layer_decay=0.5, accumulate_steps=2, epochs=30, warmup_epochs=0.25)
    expected = recipes.get("deit").replace(**changes).smoke()
    assert Recipe.read(tmp_path / "out") == recipes.get(tmp_path / "out") == expected
    assert [facts[f"{part}_images"] for part in ("train", "validation", "test")] == [24, 4, 8]
    assert (tmp_path / "out" / "last.keras").exists()


def test_arguments_of_a_size(run, small_set, tmp_path):
    size = ["train", "CaiT_Mini", small_set, "--with", "dim=16", "--with", "depth=1"]
    code, _, err = run(*size, "--with", "num_heads=2", "--smoke", "--output", "out")
    assert code == 0, err
    model = kv.load(tmp_path / "out" / "best.keras")
    assert model.get_layer("patch_embed").output.shape[-1] == 16


def test_a_stopped_run_is_resumed(run, tiny_file, small_set, tmp_path, monkeypatch):
    class Terminate(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            os.kill(os.getpid(), signal.SIGTERM)

    fit = kv.fit
    words = "train", tiny_file, small_set, "--epochs", 2, "--batch-size", 16
    with monkeypatch.context() as patched:
        patched.setattr(
            kv, "fit", lambda *a, callbacks, **k: fit(*a, callbacks=[*callbacks, Terminate()], **k)
        )
        code, _, err = run(*words, "--output", "out", "--head", "keep")
    assert code == 143
    assert "train --resume out" in err
    files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}
    code, _, err = run("train", "--resume", "out", "--batch-size", 8)
    assert code == 2 and "batch_size was 16, is now 8" in err
    code, _, err = run("train", tiny_file, "fashion_mnist", "--resume", "out")
    assert code == 2 and "small.npz" in err and "'fashion_mnist'" in err
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")} == files
    code, _, err = run("train", "--resume", "out")
    assert code == 0, err
    assert len(list(csv.DictReader((tmp_path / "out" / "history.csv").open()))) == 2
    assert json.loads((tmp_path / "out" / "run.json").read_text())["finished"]
    code, out, _ = run("train", "--resume", "out")
    assert code == 0 and "is finished" in out


@pytest.fixture
def photos(write_pictures, tmp_path):
    """A directory of two classes, 12 images of each."""
    write_pictures(*(f"photos/{name}/{i}.png" for name in ("dark", "bright") for i in range(12)))
    return tmp_path / "photos"


def test_the_options_of_a_practitioner(run, tiny_file, photos, tmp_path):
    words = "train", tiny_file, photos, "--batch-size", 8, "--output", "out"
    code, _, err = run(
        *words, "--epochs", 2, "--freeze", 1, "--set", "patience=5", "--balanced",
        "--seed", 5, "--class-weight", "dark=2,bright=0.5", "--validation-split", 0.25,
    )  # fmt: skip
    assert code == 0, err
    recipe = json.loads((tmp_path / "out" / "run.json").read_text())["recipe"]["schedule"]
    assert (recipe["freeze_epochs"], recipe["patience"]) == (1, 5)

    # More epochs for a finished run.
    code, out, _ = run("train", "--resume", "out")
    assert code == 0 and "is finished" in out
    code, _, err = run("train", "--resume", "out", "--epochs", 3)
    assert code == 0, err
    assert len(list(csv.DictReader((tmp_path / "out" / "history.csv").open()))) == 3
    code, out, _ = run("train", "--resume", "out")
    assert code == 0 and "is finished" in out

    # The images that the run held out, also after one more photo; of another directory, all.
    names = (tmp_path / "out" / "held_out.txt").read_text().splitlines()
    assert len(names) == 6
    Image.fromarray(np.full((30, 30, 3), 200, "uint8")).save(photos / "bright" / "a.png")
    evaluate = "evaluate", "out/best.keras"
    code, out, err = run(*evaluate, photos, "--json", "--scores", "--wrong", "wrong.png")
    assert code == 0, err
    found = json.loads(out)
    assert (found["split"], found["images"]) == ("validation", 6)
    assert {"precision", "recall", "f1", "auc"} <= found.keys()
    assert (tmp_path / "wrong.png").stat().st_size > 1000
    other = photos.rename(tmp_path / "others")
    code, out, err = run(*evaluate, other, "--json")
    assert code == 0, err
    assert json.loads(out)["images"] == 25
