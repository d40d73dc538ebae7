"""The command line."""

import functools
import inspect
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from harness import run_python
from safetensors import safe_open

import keras_vitx as kv
from keras_vitx import cli

pytestmark = pytest.mark.backend_free
VERBS = ["convert", "evaluate", "explore", "export", "list", "predict", "train"]
SETTINGS = (kv.training.Recipe, kv.data.Augmentation, kv.data.Mixing)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command line in this process; check its exit code, return stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["keras-vitx", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        assert (stopped.value.code or 0) == code, err
        return out, err

    return run


@pytest.fixture
def tiny_file(tmp_path):
    """The file of a model of 2 classes."""
    model = kv.CaiT(24, 1, 4, patch_size=8, input_shape=(32, 32, 3), classes=2)
    model.class_names = ("dark", "bright")
    model.save(tmp_path / "tiny.keras")
    return tmp_path / "tiny.keras"


@pytest.fixture
def calls(monkeypatch):
    """Replace a function of the package; return the arguments of its calls by name."""

    def calls(name, result=None):
        function, found = getattr(kv, name), []

        @functools.wraps(function)
        def record(*args, **kwargs):
            found.append(inspect.signature(function).bind(*args, **kwargs).arguments)
            return result

        monkeypatch.setattr(kv, name, record)
        return found

    return calls


@pytest.fixture
def photos(write_pictures, tmp_path):
    """A directory of two classes."""
    write_pictures(*(f"photos/{name}/{i}.png" for name in ("dark", "bright") for i in range(12)))
    return tmp_path / "photos"


def test_every_command_and_option_has_a_help(run):
    assert run("--version")[0].strip() == kv.__version__
    out, _ = run("--help")
    assert all(f" {verb} " in out for verb in VERBS)
    for verb in VERBS:
        run(verb, "--help")
        for argument in cli.app[verb].assemble_argument_collection():
            assert argument.parameter.help, (verb, argument.name)


def test_train_has_the_defaults_of_fit_and_all_settings(run):
    out, _ = run("train", "--help")
    given = inspect.signature(cli.train).parameters
    for name, parameter in inspect.signature(kv.fit).parameters.items():
        if name in given and parameter.default is not parameter.empty:
            assert given[name].default == parameter.default, name
    names = {name for each in SETTINGS for name in inspect.signature(each).parameters} - {"name"}
    assert names <= given.keys()
    assert all(f"--{name.replace('_', '-')}" in out for name in names)


def test_train_passes_on_what_is_given(run, calls, tiny_file, photos, tmp_path):
    found = calls("fit")
    run(
        "train", tiny_file, photos, "--recipe", "deit", "--epochs", 3, "--clip-norm", "none",
        "--scale", ".5", "1", "--remat", "--rand-augment", "none", "--seed", 5,
        "--class-weight.dark", 2, "--teacher", tiny_file,
    )  # fmt: skip
    assert {"recipe": "deit", "class_weight": {"dark": 2.0}, "seed": 5}.items() <= found[0].items()
    settings = {"epochs": 3, "clip_norm": None, "scale": (0.5, 1.0), "remat": True}
    settings |= {"rand_augment": None, "validation_split": 0.1, "fraction": 1.0}
    assert found[0]["settings"] == settings
    assert found[0]["teacher"].class_names == ("dark", "bright")
    assert found[0]["output"].parts[0] == "runs"
    run("train", "CaiT_Mini", photos, "--image-size", 16, "--output", "out")
    assert found[1]["model"].input_shape == (None, 16, 16, 3)
    assert found[1]["model"].output_shape == (None, 2)
    assert str(found[1]["output"]) == "out"


def test_train_evaluate_and_predict(run, tiny_file, photos, tmp_path):
    train = "train", tiny_file, photos, "--batch-size", 8, "--output", "out"
    out, _ = run(*train, "--epochs", 1, "--validation-split", 0.25)
    assert "out" in out
    # The images that the run held out; of another directory, all.
    found = json.loads(run("evaluate", "out/best.keras", photos, "--json")[0])
    assert (found["split"], found["images"]) == ("validation", 6)
    other = photos.rename(tmp_path / "other")
    out, _ = run("evaluate", "out/best.keras", other)
    assert "accuracy" in out and "24" in out
    rows = json.loads(run("evaluate", "out/best.keras", other, "--classes", "c.png", "--json")[0])
    assert [row["images"] for row in rows] == [12, 12, 24] and (tmp_path / "c.png").exists()
    assert Path(rows[0]["worst"]).parent.name == rows[0]["class"]
    found = json.loads(run("predict", "out/best.keras", other / "dark", "--json")[0])
    assert len(found) == 12
    assert {each["class"] for each in found[0]["classes"]} == {"dark", "bright"}
    assert sum(each["probability"] for each in found[0]["classes"]) == pytest.approx(1, abs=3e-6)


def test_an_interrupted_training_says_what_is_kept(run, tiny_file, photos, monkeypatch):
    fit = kv.fit

    def interrupted(*args, **kwargs):
        fit(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(kv, "fit", interrupted)
    _, err = run("train", tiny_file, photos, "--epochs", 2, "--output", "out", code=1)
    assert "epoch 2 is kept; go on with --output out --resume" in err


def test_predict_reports_what_it_can_not_read(run, tiny_file, write_pictures, tmp_path):
    write_pictures("photos/a.png")
    (tmp_path / "photos" / "b.png").write_text("no image")
    (tmp_path / "photos" / "c.CR2").write_bytes(b"of a camera")
    out, err = run("predict", tiny_file, "photos", "--json", "--top", 1, code=1)
    found = json.loads(out)
    assert [each["file"] for each in found] == ["photos/a.png", "photos/b.png", "photos/c.CR2"]
    assert "can't be decoded" in found[1]["error"] and "error" in found[2]
    assert err.count("Error:") == 2 and "Skipped 2 of 3 images" in err
    out, _ = run("predict", tiny_file, "photos/a.png")
    assert "photos/a.png" in out and "bright" in out
    assert (
        "no images" in run("predict", tiny_file, (tmp_path / "none").mkdir() or "none", code=1)[1]
    )


def test_options_may_precede_images(run, tiny_file, write_pictures):
    write_pictures("a.png", "b.png")
    found = json.loads(run("predict", tiny_file, "--top", 1, "--json", "a.png", "b.png")[0])
    assert [each["file"] for each in found] == ["a.png", "b.png"]


def test_predict_of_a_model_whose_outputs_are_not_finite(run, tiny_file, write_pictures, tmp_path):
    model = keras.saving.load_model(tiny_file)
    bias = model.trainable_variables[-1]
    bias.assign([0.0, np.nan])
    model.save(tmp_path / "nan.keras")
    write_pictures("a.png")
    assert "must be finite" in run("predict", "nan.keras", "a.png", "--json", code=1)[1]


def test_explore(run, tiny_file, write_pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # The shell leaves "~" in quotes and after "=".
    write_pictures("photos/a.png")
    explore = "explore", tiny_file, "--output=~/page.html", "--heads", "mean"
    assert run(*explore, "~/photos")[0].startswith("Wrote")
    assert "a.png" in (tmp_path / "page.html").read_text("utf-8")
    (tmp_path / "photos" / "b.HEIC").write_bytes(b"of a telephone")
    assert "b.HEIC" in run(*explore, "~/photos", code=1)[1]
    _, err = run(*explore, "none.png", code=1)
    assert "No such file" in err and "decoded" not in err


def test_export_passes_on_what_is_given(run, calls, tiny_file):
    exported = kv.export.Exported("m.onnx", "onnx", (), "uint8", (), (), 1e-6)
    found = calls("export", exported)
    export = "export", tiny_file, "m.onnx", "--preprocessing"
    assert "within 1.0e-06" in run(*export, 40, 48, "--outputs", "logits")[0]
    assert (found[0]["preprocessing"], found[0]["outputs"]) == ((40, 48), "logits")
    run(*export)
    assert found[1]["preprocessing"] is True


def test_convert(run, tmp_path):
    names = "a.safetensors", "b.keras", "d.safetensors"
    for before, after in zip(("cait_mini_cifar10", *names), names, strict=False):
        model = () if before.endswith(".keras") else ("--model", "CaiT_Mini")
        assert "684,458" in run("convert", before, after, *model)[0]
    with safe_open("a.safetensors", "np") as first, safe_open("d.safetensors", "np") as last:
        assert sorted(first.keys()) == sorted(last.keys())
        for name in first.keys():  # noqa: SIM118 - a file is no dictionary
            np.testing.assert_array_equal(first.get_tensor(name), last.get_tensor(name))


def test_list(run):
    out, _ = run("list")
    assert all(name in out for name in kv.list_models())
    out, _ = run("list", "*xs36")
    assert "CaiT_XS36" in out and "GMACs" in out and "CaiT_S36" not in out
    for pattern in ("cait_s36*", "CaiT_S36"):
        rows = json.loads(run("list", "--weights", pattern, "--json")[0])
        assert [row["name"] for row in rows] == ["cait_s36_384.fb_dist_in1k"]
    assert "cait_xxs24_224.fb_dist_in1k" in run("list", "--weights", "CaiT_XXS24")[0]
    assert all(f" {name} " in run("list", "--recipes")[0] for name in kv.training.list_recipes())
    assert run("list", "--recipes", "cait")[0] == f"{kv.training.recipes.get('cait')}\n"


@pytest.mark.parametrize(
    "words, expected",
    [
        (["trian"], "Did you mean"),
        (["train", "CaiT_Mini"], "SOURCE"),
        (["train", "CaiT_Mini", "fashion_mnist", "--epoch", 3], "--epochs"),
        (["train", "CaiT_Mini", "fashion_mnist", "--epochs", "x"], "--epochs"),
        (["train", "CaiT_Mini", "fashion_mnist", "--epochs", -1], "epochs"),
        (["evaluate", "CaiT_Min", "fashion_mnist"], "CaiT_Mini"),
        (["evaluate", "tiny.keras", "fashion_mnist", "--weights", "none"], "--weights"),
        (["predict", "none.keras", "."], "none.keras"),
        (["predict", "cut.keras", "a.png"], "cut.keras"),
        (["predict", "tiny.keras"], "no images"),
        (["predict", "tiny.keras", "a.png", "--batch-size", -3], "--batch-size. Must be >= 1"),
        (["predict", "tiny.keras", "a.png", "--top", 1.6], "--top"),
        (["evaluate", "tiny.keras", "a.csv", "--batch-size", 0], "--batch-size"),
        (["evaluate", "tiny.keras", "latin.csv"], "latin.csv must be a CSV file in UTF-8"),
        (["evaluate", "tiny.keras", "none.csv"], "none.csv"),
        (["evaluate", "tiny.keras", "none.npz"], "none.npz"),
        (["evaluate", "run/best.keras", "a.csv"], "run.json is damaged"),
        (["train", "CaiT_Mini", "photoz"], "no such directory"),
        (["train", "CaiT_Mini", "fashion_mnist", "--recipe", "run"], "run.json is damaged"),
        (["train", "CaiT_Mini", "a.csv", "--epochs", 1.9], "--epochs"),
        (["train", "CaiT_Mini", "a.csv", "--image-size", 32.9], "--image-size"),
        (["train", "CaiT_Mini", "a.csv", "--devices", "abc"], "--devices"),
        (["train", "CaiT_Mini", "a.csv", "--class-weight", "cat=2"], "--class-weight.cat 2"),
        (
            ["train", "CaiT_Mini", "fashion_mnist", "--output", "run"],
            "a run, which `--resume=True` would continue",
        ),
        (["explore", "tiny.keras", "a.png", "--output", "p.html", "--blocks", 77], "--blocks"),
        (["explore", "tiny.keras", "a.png", "--output", "p.html", "--heads", 99], "--heads"),
        (["convert", "a.safetensors", "b.keras"], "--model"),
        (["list", "zzz"], "nothing matches"),
    ],
)
def test_an_error_is_one_line(run, tiny_file, write_pictures, tmp_path, words, expected):
    write_pictures("a.png")
    (tmp_path / "run").mkdir()
    files = {"latin.csv": b"file,label\na.png,ch\xe2t\n", "none.csv": b"", "none.npz": b""}
    files |= {"cut.keras": b"PK\3\4", "run/run.json": b"{"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    _, err = run(*words, code=1)
    assert err.startswith("Error:") and err.count("\n") == 1 and expected in err


LIGHT = """
import sys
sys.argv = ["keras-vitx", *sys.argv[1:]]
from keras_vitx import cli
try:
    cli.main()
except SystemExit as stop:
    print("exit", stop.code)
print("loaded", {"keras", "PIL", "tensorflow", "jax", "torch"} & set(sys.modules))
"""


def test_what_needs_no_keras():
    said = run_python(LIGHT, "--help").stdout
    assert "loaded set()" in said and "train" in said


def test_the_backend_is_chosen_before_keras_is_imported():
    said = run_python(LIGHT, "list", backend="foo")
    assert "exit 1" in said.stdout and said.stderr.count("\n") == 1
    assert said.stderr.startswith("Error: Unable to import backend")
    said = run_python(LIGHT, "list", "CaiT_Mini", "--backend", "jax", backend="torch")
    assert "exit None" in said.stdout and "'torch'" not in said.stdout, said.stderr


def test_the_second_process_finds_the_programs_of_the_first(tiny_file, photos, tmp_path):
    """Under JAX, in the user's cache."""
    code = "import os; os.environ.pop('JAX_COMPILATION_CACHE_DIR', None)" + LIGHT

    def programs(run):
        arguments = "train", tiny_file, photos, "--epochs", 1, "--batch-size", 8, "--output", run
        said = run_python(code, *arguments, backend="jax", XDG_CACHE_HOME=str(tmp_path))
        assert "exit None" in said.stdout, said.stderr
        return {path.name for path in (tmp_path / "keras_vitx" / "jax").glob("*-cache")}

    first = programs(tmp_path / "first")
    assert any("train_step" in name for name in first) and programs(tmp_path / "second") == first


def test_a_pipe_that_is_closed(monkeypatch, capfd):
    """`| head` has read enough: nothing is said, then or when Python closes the pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe, pytest.raises(SystemExit, match="1"):
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "argv", ["keras-vitx", "list", "--recipes"])
        cli.main()
    assert capfd.readouterr().err == ""
