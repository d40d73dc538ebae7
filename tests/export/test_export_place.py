"""New files in the place of old ones, with a kill between any two steps."""

import contextlib
import json
import re
import tempfile
from pathlib import Path

import pytest

import keras_vitx.files as files
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.formats.openvino import ALIGNMENT
from keras_vitx.export.place import check_free, in_place
from keras_vitx.export.record import Exported, read_record, write_record

pytestmark = pytest.mark.backend_free

OPENVINO, SAVED_MODEL = FORMATS["openvino"], FORMATS["saved_model"]


class Killed(BaseException):
    """Stands for SIGKILL: nothing is caught or cleaned up."""


def write(path, weights):
    """Write a pair with two constants, as OpenVINO does."""
    path.with_suffix(".bin").write_bytes(weights)
    half = len(weights) // 2
    constants = "".join(
        f'<data element_type="u8" shape="{half}" offset="{offset}" size="{half}" />'
        for offset in (0, half)
    )
    path.write_text(f'<?xml version="1.0"?><net><data offset="0.5" />{constants}</net>')


def read(path):
    """Return the constants of a pair, as its graph finds them."""
    content = path.with_suffix(".bin").read_bytes()
    found = re.findall(r'offset="(\d+)" size="(\d+)"', path.read_text())
    return b"".join(content[int(offset) :][: int(size)] for offset, size in found)


def export(path, format, fill):
    check_free(path, format, overwrite=True)
    with in_place(path, format) as unfinished:
        fill(unfinished)
        write_record(Exported(path, 0.0), unfinished, format)


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


@pytest.mark.parametrize("sizes", ((10, 3 * ALIGNMENT), (3 * ALIGNMENT, 10)))
def test_a_pair_is_whole_after_each_step(tmp_path, monkeypatch, sizes):
    path, step, seen = tmp_path / "model.xml", 1, set()
    old, new = b"o" * sizes[0], b"n" * sizes[1]
    while True:
        export(path, OPENVINO, lambda part: write(part, old))
        names = {"model.xml", "model.bin", "model.xml.json"}
        assert {each.name for each in tmp_path.iterdir()} == names, "what was left is removed"
        assert path.with_suffix(".bin").read_bytes() == old
        if not killed_at(
            step, monkeypatch, lambda: export(path, OPENVINO, lambda part: write(part, new))
        ):
            break
        assert read(path) in (old, new)
        seen.add(read(path))
        step += 1
    assert seen == {old, new} and step == 7
    assert path.with_suffix(".bin").read_bytes() == new


def test_weights_without_a_graph_are_those_of_a_killed_export(tmp_path, monkeypatch):
    path = tmp_path / "model.xml"
    assert killed_at(1, monkeypatch, lambda: export(path, OPENVINO, lambda p: write(p, b"new!")))
    assert path.with_suffix(".bin").exists() and not path.exists()
    export(path, OPENVINO, lambda part: write(part, b"more"))
    assert read(path) == b"more"
    path.unlink()
    with pytest.raises(FileExistsError, match="exists, where a file of OpenVINO"):
        check_free(path, OPENVINO)


@pytest.mark.parametrize("can_exchange", (True, False))
def test_a_folder_comes_back_after_a_kill(tmp_path, monkeypatch, can_exchange):
    path, other = tmp_path / "model", tmp_path / ".unfinished-model-2-abc"
    other.mkdir()  # Of the path "model-2".

    def fill(folder):
        folder.mkdir()
        (folder / "saved_model.pb").write_bytes(b"new")

    export(path, SAVED_MODEL, fill)
    (path / "saved_model.pb").write_bytes(b"old")
    if not can_exchange:
        monkeypatch.setattr(files, "_exchange", lambda *paths: False)
        # As a kill between the two renames leaves it.
        (tmp_path / ".unfinished-model-xyz").mkdir()
        path.rename(tmp_path / ".unfinished-model-xyz" / "model.old")
        check_free(path, SAVED_MODEL, overwrite=True)
        assert (path / "saved_model.pb").read_bytes() == b"old"
    export(path, SAVED_MODEL, fill)
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
