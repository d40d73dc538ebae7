"""`list`, `evaluate`, `explore` and `export`, and what holds for every command."""

import csv
import importlib
import json
import os
import subprocess
import sys

import keras
import pytest
import typer
from harness import ROOT, run_python

import keras_vitx as kv
from keras_vitx.cli import __main__ as command
from keras_vitx.training import recipes

pytestmark = pytest.mark.backend_free
VERBS = ["convert", "evaluate", "explore", "export", "list", "predict", "train"]


def test_every_verb_and_option_has_a_help_text(run):
    group = typer.main.get_command(command.app)
    assert sorted(group.commands) == VERBS
    for verb in group.commands.values():
        assert verb.help
        assert all(getattr(parameter, "help", None) for parameter in verb.params), verb.name
        assert any("--backend" in parameter.opts for parameter in verb.params), verb.name
        out, _ = run(verb.name, "--help")
        assert out.count("\n") < 55, f"the help of {verb.name} is longer than a screen"
    assert all(name in run("train", "--help")[0] for name in kv.training.list_recipes())


COMMANDS = {
    "list": "list",
    "predict": "predict tiny.keras gray.png",
    "evaluate": "evaluate tiny.keras small.npz",
    "train": "train tiny.keras small.npz --smoke --output run",
    "export": "export tiny.keras tiny.pt2",
    "convert": f"convert {ROOT}/weights/cait_mini_cifar10.safetensors --model CaiT_Mini -o a.keras",
    "explore": "explore tiny.keras gray.png -o page.html",
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_is_the_first_to_import_the_package(verb, tiny_file, small_set, tmp_path, gray):
    gray(tmp_path / "gray.png")
    done = subprocess.run(
        [sys.executable, "-m", "keras_vitx.cli", *COMMANDS[verb].split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell closes the stream")
@pytest.mark.parametrize("words, code", [("list CaiT_Mini --csv", 0), ("list ResNet", 2)])
def test_a_closed_standard_error(words, code, tmp_path):
    command = f"{sys.executable} -m keras_vitx.cli {words} 2>&-"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code and ("684458" in done.stdout) == (code == 0)


def cells_of(table, row=-2):
    return [cell.strip() for cell in table.splitlines()[row].split("│")[1:-1]]


def test_list_of_sizes(run):
    out, _ = run("list")
    assert all(name in out for name in kv.list_models())
    out, _ = run("list", "*xs36")
    assert "CaiT_XS36" in out and "CaiT_S36" not in out
    cells = cells_of(run("list", "PiT_*")[0])
    assert cells[2:] == ["256, 512, 1024", "3, 6, 4", "4, 8, 16", "14", "2"]


def test_list_of_weights(run, monkeypatch):
    # Long names are whole in a pipe.
    monkeypatch.setenv("COLUMNS", "40")
    checkpoints = kv.weights.checkpoints_of(None)
    out, _ = run("list", "--weights")
    assert "\x1b" not in out and all(f" {entry.name} " in out for entry in checkpoints)
    rows = list(csv.DictReader(run("list", "--weights", "--csv")[0].splitlines()))
    for row, entry in zip(rows, checkpoints, strict=True):
        values = (entry.name, entry.constructor, entry.image_size, entry.classes, entry.top1)
        values += (entry.preprocessing.crop_ratio, entry.license, entry.source)
        assert list(row.values()) == ["" if value is None else str(value) for value in values]
    for pattern in ("cait_s36*", "CaiT_S36"):
        out, _ = run("list", "--weights", pattern)
        assert "cait_s36_384.fb_dist_in1k" in out and "cait_s24" not in out


def test_list_of_one_model(run, tiny_file, tiny_model, tmp_path):
    kv.save(tiny_model, tmp_path / "directory")
    size = ("11,956,264", "cait_xxs24_224.fb_dist_in1k", "cait_xxs24_384", "bicubic", "0.485")
    for model, facts in (("CaiT_XXS24", size), ("directory", ("dark, bright", "32, 32, 3"))):
        out, _ = run("list", model)
        assert all(fact in out for fact in facts)
    record = json.loads(run("list", tiny_file, "--json")[0])
    assert record["class names"] == ["dark", "bright"] and record["parameters"] == 26994
    out, _ = run("list", tiny_file, "--csv")
    assert dict(csv.reader(out.splitlines()))["input_shape"] == "32, 32, 3"


def test_list_of_recipes(run, tmp_path):
    names, cait = kv.training.list_recipes(), recipes.get("cait")
    rows = json.loads(run("list", "--recipes", "--json")[0])
    assert [row["recipe"] for row in rows] == names
    assert run("list", "--recipes", "cait")[0] == f"{cait}\n"
    (tmp_path / "mine").mkdir()
    changed = {"recipe": cait.replace(mixup=0.2).to_dict()}
    (tmp_path / "mine" / "run.json").write_text(json.dumps(changed))
    out, _ = run("list", "--recipes", "mine", "cait", "--json")
    assert json.loads(out) == [{"setting": "mixup", "mine": 0.2, "cait": 0.8}]
    assert "agree" in run("list", "--recipes", "cait", "cait")[0]


def test_list_of_damaged_images(run, gray, tmp_path):
    gray("photos/cat/a.png")
    assert run("list", "--damaged", "photos")[0] == "1 images, 0 can't be decoded.\n"
    (tmp_path / "photos" / "cat" / "b.png").write_bytes(b"damaged")
    (tmp_path / "photos" / "cat" / "raw.cr2").write_bytes(b"of a camera")
    found = json.loads(run("list", "--damaged", "photos", "--json", code=1)[0])
    assert found["images"] == 3
    assert sorted(found["errors"]) == ["photos/cat/b.png", "photos/cat/raw.cr2"]
    assert "can't be decoded" in found["errors"]["photos/cat/b.png"]


def test_evaluate(run, tiny_file, tiny_model, small_set, tmp_path):
    evaluate = "evaluate", tiny_file, small_set, "--json"
    expected = kv.evaluate(tiny_model, str(small_set))
    assert json.loads(run(*evaluate)[0]) == pytest.approx(expected)
    files = "--confusion", "classes.png", "--per-class", "classes.csv"
    found = json.loads(run(*evaluate, "--crop-ratio", 0.9, *files)[0])
    assert found["crop_ratio"] == 0.9
    assert 0 <= found["class_accuracy"] <= 1
    lines = (tmp_path / "classes.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [["dark", "8"], ["bright", "8"]]
    assert (tmp_path / "classes.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads(run(*evaluate, "--crop-ratio", 1, "--crop-ratio", 1.1)[0])
    assert [row["crop_ratio"] for row in rows] == [1, 1.1]

    words = [f"--perturb={one}" for one in ("occlude=0", "occlude=0.5", "fgsm=4/255")]
    rows = json.loads(run(*evaluate, *words)[0])
    kinds = [(row["perturbation"], row["strength"]) for row in rows]
    assert kinds == [("none", 0), ("occlude", 0), ("occlude", 0.5), ("fgsm", 4 / 255)]
    assert rows[0]["accuracy"] == rows[1]["accuracy"] == expected["accuracy"]
    assert rows[3]["accuracy"] <= expected["accuracy"]


def test_explore(run, tiny_file, gray, tmp_path):
    gray("a.png")
    words, page = ("explore", tiny_file, "a.png", "-o", "page.html"), tmp_path / "page.html"
    out, _ = run(*words)
    assert out == f"Wrote page.html, {page.stat().st_size / 1e6:.1f} MB.\n"
    text = page.read_text("utf-8")
    assert "a.png" in text and 'data-maps="0/0/before"' in text
    run(*words, "--blocks", "blocks_token_only_0", "--heads", "mean", "--overwrite")
    assert 'data-maps="0/0/' not in page.read_text("utf-8")


@pytest.fixture
def exported(monkeypatch):
    """What `export` is called with: the model and the options."""
    given = {}

    def export(model, path, format, **options):
        given.update(options, model=model, format=format)
        return kv.export.Exported(path, 1e-6, format, size=10**6, latency_ms=2.0)

    monkeypatch.setattr("keras_vitx.api.export", export)
    return given


def test_export_imports_modules_with_custom_layers(run, exported, tmp_path, monkeypatch):
    (tmp_path / "own_layers.py").write_text(
        "import keras\n\n"
        "@keras.saving.register_keras_serializable('own_layers')\n"
        "class Own(keras.layers.Identity):\n    pass\n"
    )
    with monkeypatch.context() as patched:
        patched.syspath_prepend(tmp_path)
        images = keras.Input((8, 8, 3))
        own = importlib.import_module("own_layers").Own()
        keras.Model(images, own(images)).save(tmp_path / "own.keras")
    # As in a new process, in which neither the class nor its module is known.
    monkeypatch.delitem(sys.modules, "own_layers")
    del keras.saving.get_custom_objects()["own_layers>Own"]
    assert "Own" in run("export", "own.keras", "exported", code=2)[1]
    assert "exported" in run("export", "own.keras", "exported", "--import", "own_layers")[0]
    assert type(exported["model"].layers[-1]).__name__ == "Own"
    assert list(exported["imports"]) == ["own_layers"]


def test_export_passes_its_options_on(run, exported, tiny_file):
    out, _ = run(
        "export", tiny_file, "model.onnx", "--preprocessing", "--pixels", "40x48", "--logits",
        "--precision", "bfloat16", "--no-fuse", "--no-verify",
    )  # fmt: skip
    options = {"format": "onnx", "preprocessing": (40, 48), "outputs": "logits", "fuse": False}
    options |= {"precision": "bfloat16", "verify": False}
    assert options.items() <= exported.items()
    assert "onnx: model.onnx, 1.0 MB" in out and "within 1.0e-06" in out
    out, _ = run("export", tiny_file, "model", "--image-size", "24x16", "--serving", 3)
    assert "image_bytes" in out
    options = {"format": "saved_model", "image_sizes": [(24, 16)], "serving": 3}
    assert options.items() <= exported.items()


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
