"""The command line trains and predicts."""

import csv
import json
import os
import signal

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_vitx as kv
from keras_vitx.cli.train import named_values
from keras_vitx.training import Recipe, recipes

pytestmark = pytest.mark.backend_free


def facts_of(directory):
    return json.loads((directory / "run.json").read_text())


def epochs_of(directory):
    return len(list(csv.DictReader((directory / "history.csv").open())))


def test_train_then_predict(run, tiny_file, small_set, gray, tmp_path):
    train = "train", tiny_file, small_set, "--batch-size", 16
    out, _ = run(
        *train, "--epochs", 6, "--learning-rate", 0.01, "--output", "out", "--head", "keep"
    )
    assert "out" in out and epochs_of(tmp_path / "out") == 6
    facts = facts_of(tmp_path / "out")
    assert facts["backend"] == keras.backend.backend()
    assert facts["validation"]["accuracy"] == 1.0

    gray("light.png", 220, (20, 30))
    gray("night.jpg", 30, (40, 20))
    predict = "predict", "out/best.keras", "light.png", "night.jpg"
    # The class names are numbers, because an .npz has no names.
    lines = [line.split("│") for line in run(*predict)[0].splitlines() if "%" in line]
    first = {cells[1].strip(): cells[2].strip() for cells in lines if cells[1].strip()}
    assert first == {"light.png": "1", "night.jpg": "0"}
    rows = list(csv.DictReader(run(*predict, "--csv")[0].splitlines()))
    assert [(row["file"], row["class_1"]) for row in rows] == list(first.items())
    probabilities = [float(rows[0][f"probability_{rank}"]) for rank in (1, 2)]
    assert sum(probabilities) == pytest.approx(1, abs=3e-6)
    assert "already exists" in run(*train, "--output", "out", code=2)[1]
    run(
        *train, "--teacher", "out/best.keras", "--set", "temperature=2", "--epochs", 1,
        "--set", "distillation=soft", "--output", "taught", "--fraction", 0.5,
    )  # fmt: skip
    facts = facts_of(tmp_path / "taught")
    assert facts["train_images"] == 22
    assert facts["teacher"] and facts["recipe"]["targets"]["temperature"] == 2


def test_values_of_settings():
    words = ["epochs=3", "clip_norm=none", "scale=0.5,1", "decay = constant", "remat=True"]
    values = {"epochs": 3, "clip_norm": None, "scale": (0.5, 1), "decay": "constant", "remat": True}
    assert named_values(None, "--set") == {} and named_values(words, "--set") == values


@given(
    number=st.integers(-(2**53), 2**53) | st.floats(allow_nan=False),
    form=st.sampled_from(("", "+", ".17e")),
)
def test_a_number_is_read_however_it_is_written(number, form):
    text = f"{number:{form}}"
    for word in {text, text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text}:
        assert named_values([f"mixup={word}"], "--set") == {"mixup": number}


def test_a_short_trial_with_changes(run, tiny_file, small_set, tmp_path):
    run(
        "train", tiny_file, small_set, "--recipe", "deit", "--smoke", "--output", "out",
        "--set", "mixup=0.4", "--set", "layer_decay=0.5", "--set", "accumulate_steps=2",
        "--epochs", "30", "--set", "warmup_epochs=0.25",
    )  # fmt: skip
    facts = facts_of(tmp_path / "out")
    changes = dict(mixup=0.4, layer_decay=0.5, accumulate_steps=2, epochs=30, warmup_epochs=0.25)
    expected = recipes.get("deit").replace(**changes).smoke()
    assert Recipe.read(tmp_path / "out") == recipes.get(tmp_path / "out") == expected
    assert [facts[f"{part}_images"] for part in ("train", "validation", "test")] == [24, 4, 8]


def test_arguments_of_a_size(run, small_set, tmp_path):
    size = [f"--with={word}" for word in ("dim=16", "depth=1", "num_heads=2")]
    run("train", "CaiT_Mini", small_set, *size, "--smoke", "--output", "out")
    model = kv.load(tmp_path / "out" / "best.keras")
    assert model.get_layer("patch_embed").output.shape[-1] == 16


def test_a_stopped_run_is_resumed(run, tiny_file, small_set, tmp_path, monkeypatch):
    class Terminate(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            os.kill(os.getpid(), signal.SIGTERM)

    def content():
        return {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}

    fit = kv.fit
    words = "train", tiny_file, small_set, "--epochs", 2, "--batch-size", 16
    with monkeypatch.context() as patched:
        patched.setattr(
            kv, "fit", lambda *a, callbacks, **k: fit(*a, callbacks=[*callbacks, Terminate()], **k)
        )
        _, err = run(*words, "--output", "out", "--head", "keep", code=143)
    assert "train --resume out" in err
    before = content()
    _, err = run("train", "--resume", "out", "--batch-size", 8, code=2)
    assert "batch_size was 16, is now 8" in err
    _, err = run("train", tiny_file, "fashion_mnist", "--resume", "out", code=2)
    assert "small.npz" in err and "'fashion_mnist'" in err
    assert content() == before
    run("train", "--resume", "out")
    assert epochs_of(tmp_path / "out") == 2 and facts_of(tmp_path / "out")["finished"]
    assert "is finished" in run("train", "--resume", "out")[0]


def test_the_options_of_a_practitioner(run, tiny_file, write_pictures, gray, tmp_path):
    photos, out = tmp_path / "photos", tmp_path / "out"
    write_pictures(*(f"photos/{name}/{i}.png" for name in ("dark", "bright") for i in range(12)))
    run(
        "train", tiny_file, photos, "--batch-size", 8, "--output", out, "--epochs", 2,
        "--freeze", 1, "--set", "patience=5", "--balanced", "--seed", 5,
        "--class-weight", "dark=2,bright=0.5", "--validation-split", 0.25,
    )  # fmt: skip
    schedule = facts_of(out)["recipe"]["schedule"]
    assert (schedule["freeze_epochs"], schedule["patience"]) == (1, 5)

    # More epochs for a finished run.
    run("train", "--resume", out, "--epochs", 3)
    assert epochs_of(out) == 3

    # The images that the run held out, also after one more photo; of another directory, all.
    assert len((out / "held_out.txt").read_text().splitlines()) == 6
    gray(photos / "bright" / "a.png", 200, (30, 30))
    evaluate = "evaluate", out / "best.keras"
    found = run(*evaluate, photos, "--json", "--scores", "--wrong", "wrong.png")[0]
    found = json.loads(found)
    assert (found["split"], found["images"]) == ("validation", 6)
    assert {"precision", "recall", "f1", "auc"} <= found.keys()
    assert (tmp_path / "wrong.png").stat().st_size > 1000
    other = photos.rename(tmp_path / "others")
    assert json.loads(run(*evaluate, other, "--json")[0])["images"] == 25
