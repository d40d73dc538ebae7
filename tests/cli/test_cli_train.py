"""The command line trains and predicts on every backend."""

import csv
import json
import os
import signal

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vitx as kv


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
    assert settings["fraction"] == 0.5
    assert settings["teacher"] and settings["recipe"]["targets"]["temperature"] == 2
    code, _, err = run("train", tiny_file, small_set, "--teacher", "CaiT_Mini")
    assert code == 2 and "--teacher" in err


@pytest.mark.backend_free
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
    code, _, err = run("train", "--resume", "nowhere")
    assert code == 2 and "nowhere" in err
    code, _, err = run("train", tiny_file)
    assert code == 2 and "--resume" in err
