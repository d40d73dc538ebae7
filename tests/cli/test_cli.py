import csv
import importlib
import json
import os
import subprocess
import sys

import keras
import pytest
from harness import run_python

import keras_vitx as kv
from keras_vitx.cli import __main__ as command

pytestmark = pytest.mark.backend_free


def test_every_verb_and_option_has_a_help_text():
    import typer

    group = typer.main.get_command(command.app)
    assert sorted(group.commands) == [
        "convert",
        "demo",
        "evaluate",
        "explore",
        "export",
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
    _, out, _ = run("list", "PiT_*")
    facts = ("256, 512, 1024", "3, 6, 4", "4, 8, 16", "14", "2")
    assert [cell.strip() for cell in out.splitlines()[-2].split("│")[3:-1]] == list(facts)
    _, out, _ = run("list", "Mixer_S*")
    cells = [cell.strip() for cell in out.splitlines()[-2].split("│")[1:-1]]
    assert cells == ["Mixer_S16", "Mixer", "512", "8", "", "16", "0"]


def test_list_of_nothing(run):
    code, _, err = run("list", "ResNet*")
    assert code == 2 and "No size matches 'ResNet*'" in err


def test_list_of_a_size(run):
    code, out, _ = run("list", "CaiT_XXS24")
    assert code == 0
    for fact in ("11,956,264", "cait_xxs24_224.fb_dist_in1k", "cait_xxs24_384", "bicubic", "0.485"):
        assert fact in out


def test_list_of_a_file(run, tiny_file):
    code, out, _ = run("list", tiny_file)
    assert code == 0 and "dark, bright" in out and "32, 32, 3" in out
    _, out, _ = run("list", tiny_file, "--json")
    facts = json.loads(out)
    assert facts["class names"] == ["dark", "bright"] and facts["parameters"] == 26994
    _, out, _ = run("list", tiny_file, "--csv")
    assert dict(csv.reader(out.splitlines()))["input_shape"] == "32, 32, 3"
    code, _, err = run("list", tiny_file, "--csv", "--json")
    assert code == 2 and "mutually exclusive" in err


def test_list_of_a_folder(run, tiny_file, tmp_path):
    kv.save(keras.saving.load_model(tiny_file), tmp_path / "folder")
    code, out, err = run("list", tmp_path / "folder")
    assert code == 0, err
    assert "dark, bright" in out and "32, 32, 3" in out
    code, _, err = run("train", tmp_path / "folder", "fashion_mnist", "--weights", "imagenet")
    assert code == 2 and "has its own weights" in err


def test_evaluate(run, tiny_file, small_set):
    code, out, err = run("evaluate", tiny_file, small_set, "--json")
    assert code == 0, err
    measures = json.loads(out)
    expected = kv.evaluate(keras.saving.load_model(tiny_file), str(small_set))
    assert measures == pytest.approx(expected)
    assert measures["images"] == 16 and 0 <= measures["accuracy"] <= 1
    _, table, _ = run("evaluate", tiny_file, small_set)
    assert f"{expected['loss']:.4f}" in table
    code, _, err = run("evaluate", tiny_file, "no/such/folder")
    assert code == 2 and "no/such/folder" in err


def test_evaluate_by_class_and_crop(run, tiny_file, small_set, tmp_path):
    code, out, err = run(
        "evaluate", tiny_file, small_set, "--json", "--crop-ratio", 0.9,
        "--confusion", "classes.png", "--per-class", "classes.csv",
    )  # fmt: skip
    assert code == 0, err
    measures = json.loads(out)
    assert measures["crop_ratio"] == 0.9
    assert 0 <= measures["class_accuracy"] <= 1
    lines = (tmp_path / "classes.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [["dark", "8"], ["bright", "8"]]
    assert (tmp_path / "classes.png").read_bytes().startswith(b"\x89PNG")
    _, out, _ = run(
        "evaluate", tiny_file, small_set, "--json", "--crop-ratio", 1, "--crop-ratio", 1.1
    )
    assert [row["crop_ratio"] for row in json.loads(out)] == [1, 1.1]
    for words, message in (
        (("--crop-ratio", 0), "`crop_ratio`"),
        (("--crop-ratio", 1, "--crop-ratio", 2, "--per-class", "a.csv"), "one `--crop-ratio`"),
        (("--crop-ratio", 1, "--crop-ratio", 2, "--perturb", "blur=1"), "one `--crop-ratio`"),
        (("--confusion", small_set / "picture.png"), "is not a folder"),
    ):
        code, _, err = run("evaluate", tiny_file, small_set, *words)
        assert code == 2 and message in err, err


def test_evaluate_on_perturbed_images(run, tiny_file, small_set):
    clean = json.loads(run("evaluate", tiny_file, small_set, "--json")[1])["accuracy"]
    words = [f"--perturb={one}" for one in ("occlude=0", "occlude=0.5", "fgsm=4/255")]
    code, out, err = run("evaluate", tiny_file, small_set, "--json", *words)
    assert code == 0, err
    rows = json.loads(out)
    kinds = [(row["perturbation"], row["strength"]) for row in rows]
    assert kinds == [("none", 0), ("occlude", 0), ("occlude", 0.5), ("fgsm", 4 / 255)]
    assert rows[0]["accuracy"] == rows[1]["accuracy"] == clean >= rows[3]["accuracy"]
    for words, said in (
        (("--perturb", "fgsm=2"), "`epsilon` must be a number of at least 0 and at most 1"),
        (("--perturb", "noise=much"), "`--perturb` must be KIND=STRENGTH"),
        (("--perturb", "snow=1"), "one of the kinds occlude, fgsm"),
    ):
        # The error precedes opening the source, which doesn't exist.
        code, _, err = run("evaluate", tiny_file, "gone.npz", *words)
        assert code == 2 and said in err and err.count("\n") == 1, err


def test_train_takes_a_file_as_it_is(run, tiny_file):
    code, _, err = run("train", tiny_file, "fashion_mnist")
    assert code == 2 and "has 2 classes, fashion_mnist has 10" in err and "--weights" in err
    code, _, err = run("train", tiny_file, "fashion_mnist", "--image-size", 64)
    assert code == 2 and "`--image-size` applies to a size" in err


def test_export_takes_no_random_weights(run, tmp_path):
    code, _, err = run("export", "CaiT_Mini", "exported")
    assert code == 2 and "--weights none" in err
    (tmp_path / "file").write_text("mine")
    for output, said in (("file/exported", "is not a folder"), ("file", "holds other things")):
        # The error precedes opening the model, which doesn't exist.
        code, _, err = run("export", "missing.keras", output)
        assert code == 2 and said in err


def test_export_imports_modules_with_custom_layers(run, tmp_path, monkeypatch):
    (tmp_path / "own_layers.py").write_text(
        "import keras\n\n"
        "@keras.saving.register_keras_serializable('own_layers')\n"
        "class Own(keras.layers.Identity):\n    pass\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    images = keras.Input((8, 8, 3))
    own = importlib.import_module("own_layers").Own()
    keras.Model(images, own(images)).save(tmp_path / "own.keras")
    # As in a new process, in which neither the class nor its module is known.
    monkeypatch.setattr(sys, "path", sys.path[:-1])
    monkeypatch.delitem(sys.modules, "own_layers")
    del keras.saving.get_custom_objects()["own_layers>Own"]

    def export(network, path, format, imports, **options):
        assert type(network.layers[-1]).__name__ == "Own" and list(imports) == ["own_layers"]
        return kv.export.Exported(path, None, format)

    monkeypatch.setattr(type(kv.export), "__call__", staticmethod(export))
    code, _, err = run("export", "own.keras", "exported")
    assert code == 2 and "Own" in err
    code, out, err = run("export", "own.keras", "exported", "--import", "own_layers")
    assert code == 0 and "exported" in out, err
    code, _, err = run("export", "own.keras", "exported", "--import", "own_layer")
    assert code == 2 and "No module named 'own_layer'" in err


def test_export_passes_its_options_on(run, tiny_file, monkeypatch):
    given = {}

    def export(network, path, format, **options):
        given.update(options, format=format)
        return kv.export.Exported(path, 1e-6, format, size=10**6, latency_ms=2.0)

    monkeypatch.setattr(type(kv.export), "__call__", staticmethod(export))
    words = ["--preprocessing", "--pixels", "40x48", "--logits", "--precision", "int8-static"]
    words += ["--calibration", "photos", "--no-fuse", "--no-verify"]
    code, out, err = run("export", str(tiny_file), "model.onnx", *words)
    assert code == 0, err
    assert given["format"] == "onnx" and given["preprocessing"] == (40, 48)
    assert (given["outputs"], given["precision"]) == ("logits", "int8-static")
    assert given["calibration"] == "photos"
    assert not given["fuse"] and not given["verify"]
    assert "onnx: model.onnx, 1.0 MB" in out and "within 1.0e-06" in out
    code, out, err = run("export", str(tiny_file), "model", "--image-size", "24x16")
    assert code == 0 and (given["format"], given["image_sizes"]) == ("saved_model", [(24, 16)])
    assert given["serving"] is False
    code, out, _ = run("export", tiny_file, "served", "--serving", 3)
    assert code == 0 and given["serving"] == 3 and "image_bytes" in out
    for wrong in (("--pixels", "40x48"), ("--image-size", "40")):
        code, _, err = run("export", str(tiny_file), "model", *wrong)
        assert code == 2 and wrong[0] in err


def test_long_names_are_whole_in_a_pipe(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = run("list", "--weights")
    assert all(
        entry.name in out and entry.source in out for entry in kv.weights.checkpoints_of(None)
    )
    assert "\x1b" not in out
    _, table, _ = run("list", "--weights", "--csv")
    rows = list(csv.DictReader(table.splitlines()))
    assert [row["checkpoint"] for row in rows] == [e.name for e in kv.weights.checkpoints_of(None)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("predict", "CaiT_S63", "x.png"), "Did you mean 'CaiT_S36'"),
        (("train", "CaiT_Mini", "fashion_mnist", "--seed", "-1"), "--seed"),
        (("train", "CaiT_Mini", "fashion_mnist", "--backend", "foo"), "--backend"),
        (("export", "CaiT_Mini", "out", "--tolerance", "x"), "--tolerance"),
        (("list", "CaiT_S63"), "No size matches 'CaiT_S63'"),
        (("list", "missing.keras"), "There is no file 'missing.keras'"),
        (("train", "CaiT_Mini", "no/such/folder"), "no/such/folder"),
        (("train", "CaiT_Mini", "fashion_mnist", "--recipe", "fintune"), "Did you mean 'finetune'"),
        (("train", "CaiT_Mini", "fashion_mnist", "--epochs", "0"), "epochs"),
        (("train", "CaiT_Mini", "fashion_mnist", "--weights", "cifar"), "Did you mean 'cifar10'"),
        (("export", "CaiT_XS36", "out", "--weights", "imagenet"), "no public checkpoint of it"),
    ],
)
def test_bad_input_is_one_line(run, words, said):
    code, _, err = run(*words)
    assert code == 2
    assert said in err and "Traceback" not in err


def test_a_file_that_holds_no_model(run, tmp_path):
    (tmp_path / "text.keras").write_text("no model")
    code, _, err = run("list", "text.keras")
    assert code == 2 and "no .keras file" in err


LIGHT = """
import sys
sys.argv = ["keras-vitx", *sys.argv[1:]]
from keras_vitx.cli import __main__ as command
try:
    command.main()
except SystemExit as stop:
    print("exit", stop.code)
print("loaded", {"keras", "PIL", "tensorflow", "jax", "torch"} & set(sys.modules))
"""


@pytest.mark.parametrize(
    "words",
    [("--help",), ("train", "--help"), ("--version",), ("train", "x", "y", "--backend", "foo")],
)
def test_options_are_parsed_before_keras_is_imported(words):
    said = run_python(LIGHT, *words)
    assert "loaded set()" in said.stdout and "Traceback" not in said.stderr
    if words == ("--version",):
        assert said.stdout.startswith(f"keras-vitx {kv.__version__}\n")


def test_an_unknown_backend_is_one_line():
    said = run_python(LIGHT, "list", backend="foo")
    assert "exit 2" in said.stdout
    assert (
        said.stderr.startswith("Error: Keras has no backend 'foo'") and said.stderr.count("\n") == 1
    )


def test_every_recipe_is_in_the_help(run):
    _, out, _ = run("train", "--help")
    assert all(name in out for name in kv.training.list_recipes())


def test_the_backend_is_chosen_before_keras_is_imported(tiny_file, small_set, tmp_path):
    other = "torch" if keras.backend.backend() != "torch" else "jax"
    command = [sys.executable, "-m", "keras_vitx.cli", "train", str(tiny_file), str(small_set)]
    command += ["--epochs", "1", "--backend", other, "--output", str(tmp_path / "out")]
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["backend"] == other
