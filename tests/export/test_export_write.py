"""New files in the place of old ones, with failures and kills on the way."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
from harness import ROOT, run_python

import keras_vitx as kv
import keras_vitx.files as files
from keras_vitx.export.formats import FORMATS, existing_format
from keras_vitx.export.record import (
    Exported,
    atomic_export,
    check_destination,
    read_record,
    write_record,
)

OPENVINO, SAVED_MODEL = FORMATS["openvino"], FORMATS["saved_model"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class Killed(BaseException):
    """Stands for SIGKILL: nothing is caught or cleaned up."""


def write(path, text):
    """Write a pair whose graph and weights know each other, as OpenVINO does."""
    path.with_suffix(".bin").write_text(text)
    path.write_text(f"<?xml {text}")


def export(path, format, fill):
    check_destination(path, format, overwrite=True)
    with atomic_export(path, format) as temporary:
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


@pytest.mark.backend_free
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


@pytest.mark.backend_free
def test_weights_without_a_graph_are_those_of_a_killed_export(tmp_path, monkeypatch):
    path = tmp_path / "model.xml"
    assert killed_at(3, monkeypatch, lambda: export(path, OPENVINO, lambda p: write(p, "new")))
    assert path.with_suffix(".bin").exists() and not path.exists()
    export(path, OPENVINO, lambda part: write(part, "more"))
    assert path.read_text() == "<?xml more"
    path.unlink()
    path.with_name("model.xml.json").unlink()
    with pytest.raises(FileExistsError, match="exists, where OpenVINO data would"):
        check_destination(path, OPENVINO)


def saved(directory, content=b"old"):
    """Write a directory like a SavedModel."""
    directory.mkdir()
    (directory / "saved_model.pb").write_bytes(content)
    (directory / "variables").mkdir()
    (directory / "variables" / "data").write_bytes(b"weights")


@pytest.mark.backend_free
@pytest.mark.parametrize("change", ["graph", "weights", "classes", None])
def test_the_record_covers_the_file_and_the_classes(tmp_path, change):
    path = tmp_path / "model"
    saved(path)
    write_record(Exported(path, 0.5, classes=("cat", "dog")), path, SAVED_MODEL)
    assert read_record(path, SAVED_MODEL)["classes"] == ["cat", "dog"]
    record = path / "export.json"
    if change == "graph":
        (path / "saved_model.pb").write_bytes(b"another")
    elif change == "weights":
        (path / "variables" / "data").write_bytes(b"others!")
    elif change == "classes":
        record.write_text(record.read_text().replace("cat", "hen"))
    assert json.loads(record.read_text())["difference"] == 0.5
    assert bool(read_record(path, SAVED_MODEL)) == (change is None)


@pytest.mark.backend_free
def test_what_servers_and_systems_put_beside_a_saved_model(tmp_path):
    path = tmp_path / "1"
    saved(path)
    write_record(Exported(path, 0.5), path, SAVED_MODEL)
    requests = path / "assets.extra" / "tf_serving_warmup_requests"
    requests.parent.mkdir()
    requests.write_bytes(b"requests")
    for name in (".DS_Store", "variables/.nfs0001", "._saved_model.pb"):
        (path / name).touch()
    assert existing_format(path, trust=True) is SAVED_MODEL
    assert read_record(path, SAVED_MODEL)["difference"] == 0.5
    export(path, SAVED_MODEL, lambda part: saved(part, b"new"))
    assert (path / "saved_model.pb").read_bytes() == b"new"
    assert requests.read_bytes() == b"requests"
    # Others are not in the way of opening it, but are never removed.
    (path / "notes.txt").touch()
    assert existing_format(path, trust=True) is SAVED_MODEL
    with pytest.raises(FileExistsError, match="holds other things"):
        check_destination(path, SAVED_MODEL, overwrite=True)


@pytest.mark.backend_free
@pytest.mark.parametrize("place", ["initializer", "constant", "branch"])
@pytest.mark.parametrize("location", ["secret.txt", "../secret.txt", "/etc/passwd"])
def test_an_onnx_file_that_reads_others_is_not_opened(place, location, unused, tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import helper

    tensor = helper.make_tensor("weights", onnx.TensorProto.UINT8, [4], bytes(4), raw=True)
    onnx.external_data_helper.set_external_data(tensor, location)
    tensor.ClearField("raw_data")
    (images, output) = (helper.make_tensor_value_info(name, 2, [4]) for name in ("images", "y"))
    nodes = [helper.make_node("Constant", [], ["y"], value=tensor)]
    if place == "branch":
        inner = helper.make_graph(nodes, "inner", [], [output])
        nodes = [helper.make_node("If", ["images"], ["y"], then_branch=inner, else_branch=inner)]
    elif place == "initializer":
        nodes = [helper.make_node("Identity", ["weights"], ["y"])]
    weights = [tensor] if place == "initializer" else []
    graph = helper.make_graph(nodes, "graph", [images], [output], weights)
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    for open_file in (kv.predictor, lambda path: kv.export.verify(path, unused)):
        with pytest.raises(ValueError, match=f"must hold its weights itself.*'{location}'"):
            open_file(path)


@pytest.mark.backend_free
@pytest.mark.parametrize("old", [False, True])
def test_a_failure_leaves_what_was_there(old, unused, tmp_path, monkeypatch):
    module = importlib.import_module("keras_vitx.export.export")
    directory = tmp_path / "model"
    if old:
        saved(directory)
    monkeypatch.setattr(module, "convert", lambda graph, format, path, *rest: saved(path, b"half"))
    error = ValueError("too different")
    monkeypatch.setattr(module, "compare", mock.Mock(side_effect=error))
    with pytest.raises(ValueError, match="too different"):
        kv.export(unused, directory, overwrite=True, tolerance=0.5, verbose=False)
    assert [each.name for each in tmp_path.iterdir()] == ["model"] * old
    assert not old or (directory / "saved_model.pb").read_bytes() == b"old"


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "kind", ["notes beside it", "file", "other directory", "link", "other data"]
)
def test_nothing_of_the_user_is_replaced(unused, tmp_path, kind):
    path = tmp_path / ("model.onnx" if kind == "other data" else "model")
    if kind in ("notes beside it", "link"):
        saved(path)
        (path / "notes.txt").write_text("mine")
    if kind == "link":
        path = tmp_path / "link"
        path.symlink_to(tmp_path / "model")
    elif kind == "other directory":
        path.mkdir()
    elif kind in ("file", "other data"):
        path.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    format = "onnx" if path.suffix else "saved_model"
    with pytest.raises(FileExistsError, match=r"other things than (a SavedModel|ONNX data)"):
        kv.export(unused, path, format, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.backend_free
def test_a_file_is_replaced_only_if_asked_for(unused, tmp_path):
    (tmp_path / "model.pt2").write_bytes(b"PK old")
    with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
        kv.export(unused, tmp_path / "model.pt2", "torch")


MODEL = "kv.ViT(24, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=5)"


@pytest.mark.backend_free
def test_a_full_disk_is_one_error(tmp_path):
    """A limit of the file size stands for a full disk: a write fails halfway."""
    code = (
        "import resource, signal, sys, keras_vitx as kv\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"model = {MODEL}\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n"
        "    kv.export(model, sys.argv[1], 'torch', verify=False)\n"
        "except OSError as error:\n"
        "    print('said', error)\n"
    )
    done = run_python(code, tmp_path / "model.pt2")
    assert done.stdout.startswith("said"), done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


SCRIPT = f"""
import sys
import keras_vitx as kv
kv.export({MODEL}, sys.argv[1], sys.argv[2], verify=False)
"""


def processes_of(directory):
    """The processes with a directory in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if os.fsencode(str(directory)) in Path("/proc", entry, "cmdline").read_bytes():
                found.append(int(entry))
    return found


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.backend_free
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_a_killed_conversion_leaves_no_process_and_no_copy_of_the_model(tmp_path):
    directory, temporary = tmp_path / "out", tmp_path / "tmp"
    directory.mkdir()
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(directory / "model.tflite"), "litert"],
        env={**ENVIRONMENT, "TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: len(processes_of(directory)) > 1 or process.poll() is not None)
        assert process.poll() is None, "the export ended before it could be killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_for(lambda: not processes_of(directory))
    # PyTorch keeps a cache of its own there.
    assert list(directory.iterdir()) == [] and not list(temporary.rglob("*.keras"))
