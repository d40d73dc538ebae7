import csv
import io
import json
import sys

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vitx as kv

pytestmark = pytest.mark.backend_free
FILES = ["photos/a/1.png", "photos/b/10.png", "photos/b/2.JPG"]


@pytest.fixture
def directory(write_pictures, tmp_path):
    """Three images in two directories, among other files."""
    write_pictures(*FILES)
    (tmp_path / "photos" / "b" / "notes.txt").write_text("no image")
    (tmp_path / "photos" / "b" / ".hidden.png").write_text("no image")
    return tmp_path / "photos"


def files_in(path):
    return [json.loads(line)["file"] for line in path.read_text().splitlines()]


def test_predict_with_the_shipped_checkpoint(run, gray):
    gray("black.png", 0)
    out, _ = run("predict", "CaiT_Mini", "black.png", "--top", 10)
    assert all(name in out for name in ("airplane", "frog", "truck"))


def test_predict_does_what_it_can(run, tiny_file, gray, tmp_path):
    (tmp_path / "broken.jpg").write_text("no image")
    for name in "abc":
        gray(f"{name}.png")
    # Three batches with an undecodable file and a missing one.
    files = ("a.png", "broken.jpg", "b.png", "gone.png", "c.png")
    out, err = run("predict", tiny_file, *files, "--batch-size", 1, "--json", code=1)
    *errors, last = err.splitlines()
    assert [line.split()[1] for line in errors] == ["broken.jpg", "gone.png"]
    assert last == "Skipped 2 of 5 images."
    results = {entry["file"]: entry for entry in json.loads(out)}
    assert results.keys() == set(files)
    assert "error" in results["broken.jpg"] and "error" in results["gone.png"]
    assert {entry["class"] for entry in results["a.png"]["classes"]} == {"dark", "bright"}
    assert results["a.png"]["classes"] == results["c.png"]["classes"]
    for words, printed in (((), ""), (("-o", "results.csv"), "Wrote results.csv.\n")):
        out, err = run("predict", tiny_file, "broken.jpg", *words, code=1)
        assert "broken.jpg" in err and out == printed
    assert (tmp_path / "results.csv").read_text().count("\n") == 1


@pytest.mark.parametrize("form", [(), ("--csv",)])
def test_names_that_standard_output_has_no_characters_for(run, tiny_file, gray, monkeypatch, form):
    gray("\xe9.png")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    run("predict", tiny_file, "\xe9.png", *form)
    sys.stdout.flush()
    assert rb"\xe9.png" in sys.stdout.buffer.getvalue()


def test_a_model_with_preprocessing_inside(run, tiny_model, tmp_path):
    images, prepare = keras.Input((None, None, 3)), kv.layers.ImagePreprocessing.of(tiny_model)
    keras.Model(images, tiny_model(prepare(images))).save(tmp_path / "whole.keras")
    pixels = np.random.default_rng(0).integers(0, 256, (48, 40, 3), "uint8")
    Image.fromarray(pixels).save("image.png")
    expected = tiny_model(prepare(pixels[None].astype("float32")))[0]
    (entry,) = json.loads(run("predict", "whole.keras", "image.png", "--json")[0])
    found = {each["class"]: each["probability"] for each in entry["classes"]}
    found = found["dark"], found["bright"]
    np.testing.assert_allclose(found, keras.ops.convert_to_numpy(expected), atol=1e-5)
    out, _ = run("list", "whole.keras")
    assert "26,994" in out and "dark, bright" in out


def test_a_directory_to_a_file(run, tiny_file, directory, tmp_path):
    out, err = run("predict", tiny_file, "photos", "-o", "new/results.csv", "--top", 1)
    assert not err and out == "Wrote new/results.csv.\n"
    written = (tmp_path / "new" / "results.csv").read_text()
    rows = list(csv.DictReader(written.splitlines()))
    assert list(rows[0]) == ["file", "class_1", "probability_1"]
    assert [row["file"] for row in rows] == FILES
    printed = json.loads(run("predict", tiny_file, "photos", "--json", "--batch-size", 2)[0])
    assert [entry["file"] for entry in printed] == FILES
    for row, entry in zip(rows, printed, strict=True):
        first, second = entry["classes"]
        assert row["class_1"] == first["class"]
        assert float(row["probability_1"]) == pytest.approx(first["probability"], abs=1e-5)
        assert first["probability"] + second["probability"] == pytest.approx(1, abs=1e-5)
    run("predict", tiny_file, "photos", "-o", "results.jsonl")
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == printed
    assert run("predict", tiny_file, "photos", "--csv", "--top", 1)[0] == written


def test_broken_images_of_a_directory_are_counted(run, tiny_file, directory, tmp_path):
    results = tmp_path / "results.jsonl"
    predict = "predict", tiny_file, "photos", "-o", results
    (directory / "a" / "0.png").write_text("no image")
    _, err = run(*predict, code=1)
    assert "photos/a/0.png" in err and "Skipped 1 of 4 images" in err
    before = results.read_text()
    assert files_in(results) == FILES
    # After two batches; what was there before stays.
    (directory / "a" / "0.png").rename(directory / "c.png")
    _, err = run(*predict, "--overwrite", "--strict", "--batch-size", 1, code=2)
    assert "photos/c.png" in err and results.read_text() == before
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["photos", "results.jsonl", "tiny.keras"]


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch writes the file")
def test_an_exported_file(run, tiny_file, tiny_model, directory, tmp_path):
    side = round(32 / tiny_model.preprocessing.crop_ratio)
    for path in FILES:
        pixels = np.random.default_rng(len(path)).integers(0, 256, (side, side, 3), "uint8")
        Image.fromarray(pixels).save(path)
    options = {"preprocessing": True, "verify": False, "verbose": False}
    kv.export(tiny_model, "tiny.pt2", format="torch", **options)
    found, expected = (
        json.loads(run("predict", file, "photos", "--json", "--trust")[0])
        for file in ("tiny.pt2", tiny_file)
    )
    for one, other in zip(found, expected, strict=True):
        assert one["file"] == other["file"]
        for pair in zip(one["classes"], other["classes"], strict=True):
            assert pair[0]["class"] == pair[1]["class"]
            assert pair[0]["probability"] == pytest.approx(pair[1]["probability"], abs=1e-5)
    assert "must be a file that you trust" in run("predict", "tiny.pt2", "photos", code=2)[1]
    (tmp_path / "tiny.pt2.json").unlink()
    _, err = run("predict", "tiny.pt2", "photos", "--trust", code=2)
    assert "exported with preprocessing inside" in err


def test_the_progress_bar_of_a_terminal(run, tiny_file, directory, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out, err = run("predict", tiny_file, "photos", "--csv", "--batch-size", 1)
    assert "per second" in err and "3/3" in err
    assert [row["file"] for row in csv.DictReader(out.splitlines())] == FILES


# What terminals and spreadsheets would obey.
NAMES = ["=HYPERLINK(1)", "\x1b[2Jgone\x9b1m\u202eevil\nline"]


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_names_reach_no_terminal_as_commands(run, gray, form):
    model = kv.CaiT_Mini(classes=2)
    model.class_names = NAMES
    model.save("model.keras")
    bad = "\udcff" if sys.platform == "linux" else ""  # A byte that is not UTF-8.
    name, broken = f"@\x1b]0;owned\x07{bad}.png", "\x1b[31mbroken.png"
    gray(name)
    open(broken, "w").close()
    out, err = run("predict", "model.keras", name, broken, *form, code=1)
    for text in (out, err):
        assert not set(text) & set("\x1b\x07\x9b\u202e"), text
    assert "gone" in out and "broken.png can't be decoded" in err
    if form == ["--json"]:
        found = {entry["class"] for image in json.loads(out)[:1] for entry in image["classes"]}
        assert found == set(NAMES)
    if form == ["--csv"]:
        cells = list(csv.reader(out.splitlines()))[1]
        assert cells[0].startswith("'@") and "'=HYPERLINK(1)" in cells
        assert not any(cell[0] in "=+-@" for cell in cells)


def test_a_tilde_is_the_directory_of_the_user(run, tiny_file, gray, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    gray(tmp_path / "a.png")
    run("predict", tiny_file, "~/a.png", "--output=~/top=1.csv")
    assert (tmp_path / "top=1.csv").is_file()
