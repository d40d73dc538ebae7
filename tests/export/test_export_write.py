"""New files in the place of old ones, with a kill between any two steps."""

import contextlib
import json
import tempfile
from pathlib import Path

import pytest

import keras_vitx.files as files
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.write import Exported, check_free, read_record, write_record, writing_at

pytestmark = pytest.mark.backend_free

OPENVINO, SAVED_MODEL = FORMATS["openvino"], FORMATS["saved_model"]


class Killed(BaseException):
    """Stands for SIGKILL: nothing is caught or cleaned up."""


def write(path, text):
    """Write a pair whose graph and weights know each other, as OpenVINO does."""
    path.with_suffix(".bin").write_text(text)
    path.write_text(f"<?xml {text}")


def export(path, format, fill):
    check_free(path, format, overwrite=True)
    with writing_at(path, format) as temporary:
        fill(temporary)
        write_record(Exported(path, 0.0), temporary, format)


def killed_at(step, monkeypatch, run):
    """Run until the process is killed before a rename; return whether it was."""
    count, renamed = 0, Path.replace

    def replace(path, target):
        nonlocal count
        count += 1
        if count == step:
            raise Killed
        return renamed(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        patch.setattr(
            files.tempfile,
            "TemporaryDirectory",
            lambda **options: contextlib.nullcontext(tempfile.mkdtemp(**options)),
        )
        try:
            run()
        except Killed:
            return True
    return False


def test_a_pair_is_never_of_two_models(tmp_path, monkeypatch):
    path, step, seen = tmp_path / "model.xml", 1, []
    names = {"model.xml", "model.bin", "model.xml.json"}
    while True:
        export(path, OPENVINO, lambda part: write(part, "old"))
        assert {each.name for each in tmp_path.iterdir()} == names, "what was left is removed"
        if not killed_at(
            step, monkeypatch, lambda: export(path, OPENVINO, lambda part: write(part, "new"))
        ):
            break
        weights = path.with_suffix(".bin").read_text()
        graph = path.read_text() if path.exists() else None
        assert graph in (None, f"<?xml {weights}")
        seen.append(graph)
        step += 1
    # Until the new pair is whole, the old one stays.
    assert seen == ["<?xml old", "<?xml old", None, None]
    assert path.read_text() == "<?xml new" and path.with_suffix(".bin").read_text() == "new"


def test_weights_without_a_graph_are_those_of_a_killed_export(tmp_path, monkeypatch):
    path = tmp_path / "model.xml"
    assert killed_at(3, monkeypatch, lambda: export(path, OPENVINO, lambda p: write(p, "new")))
    assert path.with_suffix(".bin").exists() and not path.exists()
    export(path, OPENVINO, lambda part: write(part, "more"))
    assert path.read_text() == "<?xml more"
    path.unlink()
    path.with_name("model.xml.json").unlink()
    with pytest.raises(FileExistsError, match="exists, where a file of OpenVINO"):
        check_free(path, OPENVINO)


def test_a_folder_is_replaced_whole(tmp_path):
    path, other = tmp_path / "model", tmp_path / ".unfinished-model-2-abc"
    other.mkdir()  # Of the path "model-2".

    def fill(content):
        def make(folder):
            folder.mkdir()
            (folder / "saved_model.pb").write_bytes(content)

        return make

    export(path, SAVED_MODEL, fill(b"old"))
    export(path, SAVED_MODEL, fill(b"new"))
    assert (path / "saved_model.pb").read_bytes() == b"new"
    assert sorted(each.name for each in tmp_path.iterdir()) == [other.name, "model"]


def test_the_record_of_another_file_is_not_read(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08new")
    write_record(Exported(path, 0.5), path, FORMATS["onnx"])
    assert read_record(path, FORMATS["onnx"])["difference"] == 0.5
    path.write_bytes(b"\x08old")
    assert json.loads(path.with_name("model.onnx.json").read_text())["difference"] == 0.5
    assert read_record(path, FORMATS["onnx"]) == {}


@pytest.mark.parametrize("change", ["weights", "classes", "none"])
def test_the_record_covers_the_weights_and_the_classes(tmp_path, change):
    path = tmp_path / "model"
    (path / "variables").mkdir(parents=True)
    (path / "saved_model.pb").write_bytes(b"graph")
    (path / "variables" / "data").write_bytes(b"weights")
    write_record(Exported(path, 0.5, classes=("cat", "dog")), path, SAVED_MODEL)
    assert read_record(path, SAVED_MODEL)["classes"] == ["cat", "dog"]
    record = path / "export.json"
    if change == "weights":
        (path / "variables" / "data").write_bytes(b"others!")
    elif change == "classes":
        record.write_text(record.read_text().replace("cat", "hen"))
    else:  # A record of an earlier version.
        found = json.loads(record.read_text())
        del found["digest"]
        record.write_text(json.dumps(found))
    assert bool(read_record(path, SAVED_MODEL)) == (change == "none")
