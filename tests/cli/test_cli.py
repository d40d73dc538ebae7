import csv
import importlib
import json
import sys

import keras
import numpy as np
import pytest
import typer
from harness import run_python
from PIL import Image

import keras_vitx as kv
from keras_vitx.cli import __main__ as command
from keras_vitx.training import Recipe, recipes

pytestmark = pytest.mark.backend_free
VERBS = ["convert", "evaluate", "explore", "export", "list", "predict", "train"]


def test_every_verb_and_option_has_a_help_text(run):
    group = typer.main.get_command(command.app)
    assert sorted(group.commands) == VERBS
    for verb in group.commands.values():
        assert verb.help
        assert all(getattr(parameter, "help", None) for parameter in verb.params), verb.name
        assert any("--backend" in parameter.opts for parameter in verb.params), verb.name
        out = run(verb.name, "--help")[1]
        assert out.count("\n") < 55, f"the help of {verb.name} is longer than a screen"
    assert all(name in run("train", "--help")[1] for name in kv.training.list_recipes())


def cells_of(table, row=-2):
    return [cell.strip() for cell in table.splitlines()[row].split("│")[1:-1]]


def test_list(run, monkeypatch):
    code, out, _ = run("list")
    assert code == 0
    assert all(name in out for name in kv.list_models())
    code, out, _ = run("list", "*xs36")
    assert "CaiT_XS36" in out and "CaiT_S36" not in out
    pit, mixer = (run("list", pattern)[1] for pattern in ("PiT_*", "Mixer_S*"))
    assert cells_of(pit)[2:] == ["256, 512, 1024", "3, 6, 4", "4, 8, 16", "14", "2"]
    assert cells_of(mixer) == ["Mixer_S16", "Mixer", "512", "8", "", "16", "0"]
    # Long names are whole in a pipe.
    monkeypatch.setenv("COLUMNS", "40")
    checkpoints = kv.weights.checkpoints_of(None)
    code, out, _ = run("list", "--weights")
    assert code == 0 and "\x1b" not in out
    for checkpoint in checkpoints:
        (row,) = (line for line in out.splitlines() if f" {checkpoint.name} " in line)
        cells = cells_of(row, 0)
        assert cells[:3] == [checkpoint.name, checkpoint.constructor, str(checkpoint.image_size)]
        assert cells[3] == str(checkpoint.classes)
        assert cells[4] == ("" if checkpoint.top1 is None else f"{checkpoint.top1:.2f}")
        assert float(cells[5]) == checkpoint.preprocessing.crop_ratio
        assert cells[6:] == [checkpoint.license or "", checkpoint.source]
    rows = list(csv.DictReader(run("list", "--weights", "--csv")[1].splitlines()))
    assert [row["checkpoint"] for row in rows] == [entry.name for entry in checkpoints]
    _, out, _ = run("list", "--weights", "cait_s36*")
    assert "cait_s36_384.fb_dist_in1k" in out and "cait_s24" not in out
    _, out, _ = run("list", "--weights", "CaiT_Mini")
    assert " cait_mini_cifar10 " in out and "fb_dist_in1k" not in out


def test_list_of_one_model(run, tiny_file, tmp_path):
    kv.save(keras.saving.load_model(tiny_file), tmp_path / "directory")
    size = ("11,956,264", "cait_xxs24_224.fb_dist_in1k", "cait_xxs24_384", "bicubic", "0.485")
    for model, facts in (
        ("CaiT_XXS24", size),
        (tiny_file, ("dark, bright", "32, 32, 3")),
        ("directory", ("dark, bright", "32, 32, 3")),
    ):
        code, out, err = run("list", model)
        assert code == 0, err
        assert all(fact in out for fact in facts)
    record = json.loads(run("list", tiny_file, "--json")[1])
    assert record["class names"] == ["dark", "bright"] and record["parameters"] == 26994
    _, out, _ = run("list", tiny_file, "--csv")
    assert dict(csv.reader(out.splitlines()))["input_shape"] == "32, 32, 3"


def test_list_of_recipes(run, tmp_path):
    names = kv.training.list_recipes()
    code, out, err = run("list", "--recipes")
    assert code == 0, err
    assert all(name in out for name in names)
    code, out, _ = run("list", "--recipes", "--json")
    assert [row["recipe"] for row in json.loads(out)] == names
    assert run("list", "--recipes", "cait")[1] == f"{recipes.get('cait')}\n"
    data = json.loads(run("list", "--recipes", "cait", "--json")[1])
    assert Recipe.from_dict(data) == recipes.get("cait")

    (tmp_path / "mine").mkdir()
    changed = recipes.get("cait").replace(mixup=0.2)
    (tmp_path / "mine" / "run.json").write_text(json.dumps({"recipe": changed.to_dict()}))
    code, out, _ = run("list", "--recipes", "mine", "cait", "--json")
    assert json.loads(out) == [{"setting": "mixup", "mine": 0.2, "cait": 0.8}]
    assert "mixup" in run("list", "--recipes", "mine", "cait")[1]
    assert "agree" in run("list", "--recipes", "cait", "cait")[1]


def test_list_of_damaged_images(run, tmp_path):
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


def test_evaluate(run, tiny_file, small_set, tmp_path):
    expected = kv.evaluate(keras.saving.load_model(tiny_file), str(small_set))
    code, out, err = run("evaluate", tiny_file, small_set, "--json")
    assert code == 0, err
    assert json.loads(out) == pytest.approx(expected)
    assert f"{expected['loss']:.4f}" in run("evaluate", tiny_file, small_set)[1]

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
    ratios = "--crop-ratio", 1, "--crop-ratio", 1.1
    rows = json.loads(run("evaluate", tiny_file, small_set, "--json", *ratios)[1])
    assert [row["crop_ratio"] for row in rows] == [1, 1.1]

    words = [f"--perturb={one}" for one in ("occlude=0", "occlude=0.5", "fgsm=4/255")]
    code, out, err = run("evaluate", tiny_file, small_set, "--json", *words)
    assert code == 0, err
    rows = json.loads(out)
    kinds = [(row["perturbation"], row["strength"]) for row in rows]
    assert kinds == [("none", 0), ("occlude", 0), ("occlude", 0.5), ("fgsm", 4 / 255)]
    assert rows[0]["accuracy"] == rows[1]["accuracy"] == expected["accuracy"]
    assert rows[3]["accuracy"] <= expected["accuracy"]


def test_explore(run, tiny_file, tmp_path):
    Image.fromarray(np.full((20, 30, 3), 220, "uint8")).save("a.png")
    code, out, err = run("explore", tiny_file, "a.png", "-o", "page.html")
    page = tmp_path / "page.html"
    assert code == 0, err
    assert out == f"Wrote page.html, {page.stat().st_size / 1e6:.1f} MB.\n"
    assert "a.png" in page.read_text("utf-8") and 'data-maps="0/0/before"' in page.read_text(
        "utf-8"
    )
    chosen = ("--blocks", "blocks_token_only_0", "--heads", "mean", "--overwrite")
    code, _, err = run("explore", tiny_file, "a.png", "-o", "page.html", *chosen)
    assert code == 0, err
    assert 'data-maps="0/0/' not in page.read_text("utf-8")


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

    monkeypatch.setattr("keras_vitx.api.export", export)
    code, _, err = run("export", "own.keras", "exported")
    assert code == 2 and "Own" in err
    code, out, err = run("export", "own.keras", "exported", "--import", "own_layers")
    assert code == 0 and "exported" in out, err


def test_export_passes_its_options_on(run, tiny_file, monkeypatch):
    given = {}

    def export(network, path, format, **options):
        given.update(options, format=format)
        return kv.export.Exported(path, 1e-6, format, size=10**6, latency_ms=2.0)

    monkeypatch.setattr("keras_vitx.api.export", export)
    code, out, err = run(
        "export", tiny_file, "model.onnx", "--preprocessing", "--pixels", "40x48", "--logits",
        "--precision", "bfloat16", "--no-fuse", "--no-verify",
    )  # fmt: skip
    assert code == 0, err
    options = {"format": "onnx", "preprocessing": (40, 48), "outputs": "logits", "fuse": False}
    options |= {"precision": "bfloat16", "verify": False}
    assert options.items() <= given.items()
    assert "onnx: model.onnx, 1.0 MB" in out and "within 1.0e-06" in out
    code, out, _ = run("export", tiny_file, "model", "--image-size", "24x16", "--serving", 3)
    assert code == 0 and "image_bytes" in out
    options = {"format": "saved_model", "image_sizes": [(24, 16)], "serving": 3}
    assert options.items() <= given.items()


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


def test_the_backend_is_chosen_before_keras_is_imported(tiny_file, small_set, tmp_path):
    said = run_python(LIGHT, "list", backend="foo")
    assert "exit 2" in said.stdout and said.stderr.count("\n") == 1
    assert said.stderr.startswith("Error: Keras has no backend 'foo'")
    other = "torch" if keras.backend.backend() != "torch" else "jax"
    words = ["train", tiny_file, small_set, "--epochs", 1, "--output", tmp_path / "out"]
    said = run_python(LIGHT, *map(str, words), "--backend", other)
    assert "exit 0" in said.stdout, said.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["backend"] == other
