import csv
import json

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vitx as kv

pytestmark = pytest.mark.backend_free


def test_predict_with_the_shipped_checkpoint(run):
    Image.fromarray(np.zeros((32, 32, 3), "uint8")).save("black.png")
    code, out, err = run("predict", "CaiT_Mini", "black.png", "--top", 10)
    assert code == 0, err
    assert all(name in out for name in ("airplane", "frog", "truck"))


def test_predict_does_what_it_can(run, tiny_file, tmp_path):
    """Three batches with an undecodable file and a missing one."""
    (tmp_path / "broken.jpg").write_text("no image")
    for name in "abc":
        Image.fromarray(np.full((20, 30, 3), 220, "uint8")).save(f"{name}.png")
    files = ("a.png", "broken.jpg", "b.png", "gone.png", "c.png")
    code, out, err = run("predict", tiny_file, *files, "--batch-size", 1, "--json")
    assert code == 1
    *errors, last = err.splitlines()
    assert [line.split()[1] for line in errors] == ["broken.jpg", "gone.png"]
    assert last == "Skipped 2 of 5 images."
    results = {entry["file"]: entry for entry in json.loads(out)}
    assert results.keys() == set(files)
    assert "error" in results["broken.jpg"] and "error" in results["gone.png"]
    assert {entry["class"] for entry in results["a.png"]["classes"]} == {"dark", "bright"}
    assert results["a.png"]["classes"] == results["c.png"]["classes"]
    for words, printed in (((), ""), (("-o", "results.csv"), "Wrote results.csv.\n")):
        code, out, err = run("predict", tiny_file, "broken.jpg", *words)
        assert code == 1 and "broken.jpg" in err and out == printed
    assert (tmp_path / "results.csv").read_text().count("\n") == 1


@pytest.mark.parametrize("size", [(48, 40, 3), (None, None, 3)])
def test_a_model_with_preprocessing_inside(run, tiny_file, tmp_path, size):
    model = keras.saving.load_model(tiny_file)
    images = keras.Input(size)
    prepare = kv.layers.ImagePreprocessing.of(model)
    keras.Model(images, model(prepare(images))).save(tmp_path / "whole.keras")
    pixels = np.random.default_rng(0).integers(0, 256, (48, 40, 3), "uint8")
    Image.fromarray(pixels).save("image.png")
    expected = keras.ops.convert_to_numpy(model(prepare(pixels[None].astype("float32"))))[0]
    code, out, err = run("predict", "whole.keras", "image.png", "image.png", "--json")
    assert code == 0 and not err
    for entry in json.loads(out):
        found = {each["class"]: each["probability"] for each in entry["classes"]}
        np.testing.assert_allclose([found["dark"], found["bright"]], expected, atol=1e-5)
    code, out, err = run("list", "whole.keras")
    assert code == 0 and "26,994" in out and "dark, bright" in out


def test_a_model_around_one_of_ours(run, tiny_file, tmp_path, small_set):
    """The preprocessing is that of the first layer; the classes are those of another head."""
    model = keras.saving.load_model(tiny_file)
    images = keras.Input((32, 32, 3))
    outputs = keras.layers.Dense(2, activation="softmax")(model(images))
    keras.Model(images, outputs).save(tmp_path / "around.keras")
    Image.fromarray(np.zeros((32, 32, 3), "uint8")).save("black.png")
    code, out, err = run("predict", "around.keras", "black.png")
    assert code == 0 and not err
    assert all(f"class {index}" in out for index in range(2))
    code, out, err = run("evaluate", "around.keras", small_set, "--json")
    assert code == 0 and json.loads(out)["images"] == 16, err


@pytest.fixture
def directory(write_pictures, tmp_path):
    """Three images in two directories, among other files."""
    write_pictures("photos/b/2.JPG", "photos/b/10.png", "photos/a/1.png")
    (tmp_path / "photos" / "b" / "notes.txt").write_text("no image")
    (tmp_path / "photos" / "b" / ".hidden.png").write_text("no image")
    return tmp_path / "photos"


FILES = ["photos/a/1.png", "photos/b/10.png", "photos/b/2.JPG"]


def test_a_directory_to_a_file(run, tiny_file, directory):
    code, out, err = run("predict", tiny_file, "photos", "-o", "new/results.csv", "--top", 1)
    assert code == 0 and not err and out == "Wrote new/results.csv.\n"
    with open("new/results.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "class_1", "probability_1"]
    assert [row["file"] for row in rows] == FILES
    code, out, _ = run("predict", tiny_file, "photos", "--json", "--batch-size", 2)
    printed = json.loads(out)
    assert [entry["file"] for entry in printed] == FILES
    for row, entry in zip(rows, printed, strict=True):
        first, second = entry["classes"]
        assert row["class_1"] == first["class"]
        assert float(row["probability_1"]) == pytest.approx(first["probability"], abs=1e-5)
        assert first["probability"] + second["probability"] == pytest.approx(1, abs=1e-5)
    assert run("predict", tiny_file, "photos", "-o", "results.jsonl")[0] == 0
    with open("results.jsonl") as file:
        assert [json.loads(line) for line in file] == printed
    _, out, _ = run("predict", tiny_file, "photos", "--csv", "--top", 1)
    with open("new/results.csv") as file:
        assert out == file.read()


def test_broken_images_of_a_directory_are_counted(run, tiny_file, directory):
    (directory / "a" / "0.png").write_text("no image")
    code, _, err = run("predict", tiny_file, "photos", "-o", "results.jsonl")
    assert code == 1 and "photos/a/0.png" in err and "Skipped 1 of 4 images" in err
    with open("results.jsonl") as file:
        before = file.read()
    assert [json.loads(line)["file"] for line in before.splitlines()] == FILES
    # After two batches; what was there before stays.
    (directory / "a" / "0.png").rename(directory / "c.png")
    code, _, err = run(
        "predict", tiny_file, "photos", "-o", "results.jsonl",
        "--overwrite", "--strict", "--batch-size", 1,
    )  # fmt: skip
    assert code == 2 and "photos/c.png" in err
    with open("results.jsonl") as file:
        assert file.read() == before
    assert sorted(path.name for path in directory.parent.iterdir()) == [
        "photos",
        "results.jsonl",
        "tiny.keras",
    ]


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch writes the file")
def test_an_exported_file(run, tiny_file, directory):
    model = keras.saving.load_model(tiny_file)
    (side,) = {round(side / model.preprocessing.crop_ratio) for side in model.input_shape[1:3]}
    for path in directory.rglob("[!.]*.[pJ]*"):
        pixels = np.random.default_rng(len(path.name)).integers(0, 256, (side, side, 3), "uint8")
        Image.fromarray(pixels).save(path)
    kv.export(model, "tiny.pt2", format="torch", preprocessing=True, verify=False, verbose=False)
    results = [
        run("predict", file, "photos", "--json", "--trust") for file in ("tiny.pt2", tiny_file)
    ]
    found, expected = (json.loads(out) for _, out, _ in results)
    for one, other in zip(found, expected, strict=True):
        assert one["file"] == other["file"]
        for pair in zip(one["classes"], other["classes"], strict=True):
            assert pair[0]["class"] == pair[1]["class"]
            assert pair[0]["probability"] == pytest.approx(pair[1]["probability"], abs=1e-5)
    code, _, err = run("predict", "tiny.pt2", "photos")
    assert code == 2 and "must be a file that you trust" in err
    (directory.parent / "tiny.pt2.json").unlink()
    code, _, err = run("predict", "tiny.pt2", "photos", "--trust")
    assert code == 2 and "exported with preprocessing inside" in err


def test_the_progress_bar_of_a_terminal(run, tiny_file, directory, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, out, err = run("predict", tiny_file, "photos", "--csv", "--batch-size", 1)
    assert "per second" in err and "3/3" in err
    assert [row["file"] for row in csv.DictReader(out.splitlines())] == FILES


@pytest.fixture
def hostile_file(tmp_path):
    """A model whose class names hold what terminals and spreadsheets would obey."""
    model = kv.CaiT_Mini(classes=2)
    model.class_names = ["=HYPERLINK(1)", "\x1b[2Jgone\x9b1m\u202eevil\nline"]
    kv.save(model, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_names_reach_no_terminal_as_commands(run, hostile_file, form):
    name = "@\x1b]0;owned\x07.png"
    Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(name)
    with open("\x1b[31mbroken.png", "w"):
        pass
    code, out, err = run("predict", hostile_file, name, "\x1b[31mbroken.png", *form)
    assert code == 1
    for text in (out, err):
        assert not set(text) & set("\x1b\x07\x9b\u202e"), text
    assert "gone" in out and "broken.png can't be decoded" in err
    if form == ["--json"]:
        found = {entry["class"] for image in json.loads(out)[:1] for entry in image["classes"]}
        assert found == {"=HYPERLINK(1)", "\x1b[2Jgone\x9b1m\u202eevil\nline"}
    if form == ["--csv"]:
        cells = list(csv.reader(out.splitlines()))[1]
        assert cells[0].startswith("'@") and "'=HYPERLINK(1)" in cells
        assert not any(cell[0] in "=+-@" for cell in cells)


def test_a_tilde_is_the_directory_of_the_user(run, tiny_file, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(tmp_path / "a.png")
    code, _, err = run("predict", tiny_file, "~/a.png", "--output=~/found.csv")
    assert code == 0, err
    assert (tmp_path / "found.csv").is_file()
