"""Bad input: an error that says what is wrong, before long work, and no changed file."""

import shlex

import numpy as np
import pytest
from PIL import Image

import keras_vitx as kv

pytestmark = pytest.mark.backend_free

CASES = {
    "predict": {
        "CaiT_S63 a.png": "Did you mean 'CaiT_S36'",
        "trunk.keras a.png": "classifier",
        "missing.keras a.png -o old.csv": "old.csv already exists. `--overwrite`",
        "missing.keras a.png -o directory.csv": "directory.csv is a directory",
        "missing.keras a.png -o new.txt": "must end in .csv or .jsonl",
        "missing.keras a.png -o new.csv --json": "`--json` and `--csv` print",
        "missing.keras a.png --csv --json": "mutually exclusive",
        "missing.keras empty": "The directory empty has no images",
        "tiny.keras ''": "An argument must not be empty",
    },
    "train": {
        "tiny.keras": "--resume",
        "tiny.keras fashion_mnist --backend foo": "--backend",
        "tiny.keras fashion_mnist": "has 2 classes, fashion_mnist has 10",
        "tiny.keras fashion_mnist --image-size 64": "`--image-size` applies to a size",
        "tiny.keras small.npz --with depth=1": "is built already",
        "tiny.keras small.npz --teacher CaiT_Mini": "--teacher",
        "tiny.keras small.npz --class-weight gray": "`--class-weight` must be NAME=VALUE",
        "tiny.keras small.npz --set mixap=0.4": "'mixup'",
        "tiny.keras small.npz --set mixup": "`--set` must be NAME=VALUE",
        "tiny.keras small.npz --output ''": "`--output` must not be empty",
        "tiny.keras small.npz --output empty/../old.csv": "not a directory",
        "saved small.npz --weights imagenet": "has its own weights",
        "CaiT_Mini small.npz --with heads=2": "heads",
        "CaiT_Mini small.npz --with num_heads": "`--with` must be NAME=VALUE",
        "--resume nowhere": "nowhere is not the directory of a run",
        "--resume of_python": "`kv.fit` with `resume=True`",
    },
    "evaluate": {
        "tiny.keras small.npz --crop-ratio 1 --crop-ratio 2 --per-class a.csv": "`--crop-ratio`",
        "tiny.keras small.npz --confusion small.npz/picture.png": "is not a directory",
        "tiny.keras gone.npz --perturb fgsm=2": "`epsilon` must be a number in [0, 1]",
        "tiny.keras gone.npz --perturb noise=much": "`--perturb` must be KIND=STRENGTH",
        "tiny.keras gone.npz --perturb snow=1": "one of the kinds occlude, fgsm",
    },
    "export": {
        "CaiT_Mini new": "--weights none",
        "missing.keras old.csv": r"`path` must end in one of",
        "tiny.keras new --pixels 40x48": "--pixels",
        "tiny.keras new --image-size 40": "--image-size",
        "tiny.keras new --import own_layer": "No module named 'own_layer'",
    },
    "list": {
        "ResNet*": "No size matches 'ResNet*'",
        "missing.keras": "No such file or directory: 'missing.keras'",
        "tiny.keras --csv --json": "mutually exclusive",
        "--weights ResNet*": "No checkpoint matches 'ResNet*'",
        "--recipes cait deit refiner": "at most two names",
        "--damaged": "`--damaged` takes image files or directories",
        "--damaged --recipes": "`--damaged` are mutually exclusive",
    },
    "convert": {
        "cifar10 --model CaiT_Mni -o new.keras": "Did you mean 'CaiT_Mini'",
        "cifar10 --model CaiT_Mini -o new.onnx": "must end in one of .weights.h5",
        "cifar10 --model CaiT_Mini -o text.keras": "already exists",
        "bad.pth --model CaiT_Mini -o new.keras": "bad.pth",
    },
    "explore": {
        "tiny.keras a.png -o text.keras": "already exists",
        "tiny.keras a.png -o new.html --limit nan": "`limit` must be a number above 0",
    },
}


@pytest.fixture(scope="module")
def directory(tiny_model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    tiny_model.save(directory / "tiny.keras")
    kv.save(tiny_model, directory / "saved")
    trunk = kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 16, 3), include_top=False)
    trunk.save(directory / "trunk.keras")
    images, labels = np.zeros((48, 32, 32, 3), "uint8"), np.arange(48) % 2
    np.savez(directory / "small.npz", x_train=images, y_train=labels)
    Image.fromarray(images[0]).save(directory / "a.png")
    for name in ("empty", "directory.csv", "of_python"):
        (directory / name).mkdir()
    for name in ("old.csv", "text.keras", "bad.pth", "of_python/run.json"):
        (directory / name).write_text("{}")
    return directory


@pytest.mark.parametrize(
    ("words", "said"),
    [(f"{verb} {words}", said) for verb, rows in CASES.items() for words, said in rows.items()],
)
def test_bad_input_is_one_error_and_changes_no_file(run, directory, monkeypatch, words, said):
    def modified():
        return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}

    monkeypatch.chdir(directory)
    before = modified()
    out, err = run(*shlex.split(words), code=2)
    assert said in err and not out
    assert "Error: " in err and "Traceback" not in err
    assert modified() == before
