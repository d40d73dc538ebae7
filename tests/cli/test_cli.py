import csv
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vitx as kv
from keras_vitx.cli import __main__ as command


@pytest.fixture
def small_set(tmp_path):
    """Two classes that differ in brightness, as an .npz."""
    random = np.random.default_rng(0)
    labels = np.arange(48) % 2
    images = random.integers(0, 80, (48, 32, 32, 3)) + 150 * labels[:, None, None, None]
    path = tmp_path / "small.npz"
    images = images.astype("uint8")
    np.savez(path, x_train=images, y_train=labels, x_test=images[:16], y_test=labels[:16])
    return path


@pytest.fixture
def tiny_file(tmp_path):
    keras.utils.set_random_seed(0)
    model = kv.CaiT(24, 1, 4, patch_size=8, input_shape=(32, 32, 3), classes=2)
    model.class_names = ("dark", "bright")
    model.save(tmp_path / "tiny.keras")
    return tmp_path / "tiny.keras"


def test_every_verb_and_option_has_a_help_text():
    import typer

    group = typer.main.get_command(command.app)
    assert sorted(group.commands) == [
        "convert",
        "demo",
        "export",
        "info",
        "list",
        "predict",
        "train",
    ]
    for verb in group.commands.values():
        assert verb.help
        assert all(getattr(parameter, "help", None) for parameter in verb.params), verb.name
        assert any("--backend" in parameter.opts for parameter in verb.params), verb.name


def test_list(run):
    code, out, _ = run("list")
    assert code == 0
    assert all(name in out for name in kv.list_models())
    code, out, _ = run("list", "*xs36")
    assert "CaiT_XS36" in out and "CaiT_S36" not in out
    _, out, _ = run("list", "PiT_B")
    facts = ("256, 512, 1024", "3, 6, 4", "4, 8, 16", "14", "2")
    assert [cell.strip() for cell in out.splitlines()[-2].split("│")[3:-1]] == list(facts)
    _, out, _ = run("list", "Mixer_S16")
    cells = [cell.strip() for cell in out.splitlines()[-2].split("│")[1:-1]]
    assert cells == ["Mixer_S16", "Mixer", "512", "8", "", "16", "0"]


def test_list_of_nothing(run):
    code, _, err = run("list", "ResNet*")
    assert code == 2 and "No size matches 'ResNet*'" in err


def test_info_of_a_size(run):
    code, out, _ = run("info", "CaiT_XXS24")
    assert code == 0
    for fact in ("11,956,264", "cait_xxs24_224.fb_dist_in1k", "cait_xxs24_384", "bicubic", "0.485"):
        assert fact in out


def test_info_of_a_file(run, tiny_file):
    code, out, _ = run("info", tiny_file)
    assert code == 0 and "dark, bright" in out and "(32, 32, 3)" in out


def test_info_of_a_folder(run, tiny_file, tmp_path):
    kv.save(keras.saving.load_model(tiny_file), tmp_path / "folder")
    code, out, err = run("info", tmp_path / "folder")
    assert code == 0, err
    assert "dark, bright" in out and "(32, 32, 3)" in out
    code, _, err = run("train", tmp_path / "folder", "fashion_mnist", "--weights", "imagenet")
    assert code == 2 and "has its own weights" in err


def test_train_then_predict(run, tiny_file, small_set, tmp_path):
    code, out, err = run(
        "train", tiny_file, small_set, "--epochs", 12, "--batch-size", 16, "--learning-rate", 0.01,
        "--output", "out",
    )  # fmt: skip
    assert code == 0, err
    assert "out" in out
    rows = list(csv.DictReader((tmp_path / "out" / "history.csv").open()))
    assert len(rows) == 12
    settings = json.loads((tmp_path / "out" / "run.json").read_text())
    assert settings["backend"] == keras.backend.backend()
    assert settings["validation_accuracy"] == 1.0

    Image.fromarray(np.full((20, 30, 3), 220, "uint8")).save("light.png")
    Image.fromarray(np.full((40, 20, 3), 30, "uint8")).save("night.jpg")
    code, out, err = run("predict", "out/best.keras", "light.png", "night.jpg")
    assert code == 0, err
    # The names are the numbers of the classes, since an .npz has no names.
    lines = [line.split("│") for line in out.splitlines() if "%" in line]
    first = {cells[1].strip(): cells[2].strip() for cells in lines if cells[1].strip()}
    assert first == {"light.png": "1", "night.jpg": "0"}

    code, _, err = run("train", tiny_file, small_set, "--output", "out")
    assert code == 2 and "already holds a training run" in err


def test_predict_with_the_shipped_checkpoint(run):
    Image.fromarray(np.zeros((32, 32, 3), "uint8")).save("black.png")
    code, out, err = run("predict", "CaiT_Mini", "black.png", "--top", 10)
    assert code == 0, err
    assert all(name in out for name in ("airplane", "frog", "truck"))


def test_predict_names_the_file_that_is_no_image(run, tiny_file, tmp_path):
    (tmp_path / "broken.jpg").write_text("no image")
    code, _, err = run("predict", tiny_file, "broken.jpg")
    assert code == 2 and "broken.jpg" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("predict", "CaiT_S63", "x.png"), "x.png"),
        (("info", "CaiT_S63"), "Did you mean 'CaiT_S36'"),
        (("info", "missing.keras"), "There is no file 'missing.keras'"),
        (("train", "CaiT_Mini", "no/such/folder"), "no/such/folder"),
        (("train", "CaiT_Mini", "fashion_mnist", "--recipe", "fintune"), "Did you mean 'finetune'"),
        (("train", "CaiT_Mini", "fashion_mnist", "--epochs", "0"), "epochs"),
        (("train", "CaiT_Mini", "fashion_mnist", "--weights", "cifar"), "Did you mean 'cifar10'"),
        (("export", "CaiT_XS36", "out", "--weights", "imagenet"), "no public ImageNet checkpoint"),
    ],
)
def test_bad_input_is_one_line(run, words, said):
    code, _, err = run(*words)
    assert code == 2
    assert said in err and "Traceback" not in err


def test_a_file_that_holds_no_model(run, tmp_path):
    (tmp_path / "text.keras").write_text("no model")
    code, _, err = run("info", "text.keras")
    assert code == 2 and "no .keras file" in err


def test_the_backend_is_chosen_before_keras_is_imported(tiny_file, small_set, tmp_path):
    other = "torch" if keras.backend.backend() != "torch" else "jax"
    command = [sys.executable, "-m", "keras_vitx.cli", "train", str(tiny_file), str(small_set)]
    command += ["--epochs", "1", "--backend", other, "--output", str(tmp_path / "out")]
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["backend"] == other
