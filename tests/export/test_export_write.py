"""New files in the place of old ones, with failures and kills on the way."""

import contextlib
import importlib
import itertools
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
from keras_vitx.export.record import Exported, check_destination, read_record, write_record

import keras_vitx as kv
import keras_vitx.files as files
from keras_vitx.export import record
from keras_vitx.export.formats import FORMATS, existing_format

pytestmark = pytest.mark.backend_free
OPENVINO, SAVED_MODEL = FORMATS["openvino"], FORMATS["saved_model"]


class Killed(BaseException):
    """Stands for SIGKILL: nothing is caught or cleaned up."""


def write(path, text):
    """Write a pair whose graph and weights know each other, as OpenVINO does."""
    path.with_suffix(".bin").write_text(text)
    path.write_text(f"<?xml {text}")


def export(path, format, fill):
    check_destination(path, format, overwrite=True)
    with record.atomic_export(path, format) as temporary:
        fill(temporary)
        write_record(Exported(path, 0.0), temporary, format)


def killed_at(step, monkeypatch, path, text):
    """Export a pair until the process is killed before a rename; return whether it was."""
    renamed, steps = Path.replace, itertools.count(1)

    def replace(path, target):
        if next(steps) == step:
            raise Killed
        return renamed(path, target)

    def left_behind(**options):
        return contextlib.nullcontext(tempfile.mkdtemp(**options))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        patch.setattr(files.tempfile, "TemporaryDirectory", left_behind)
        try:
            export(path, OPENVINO, lambda part: write(part, text))
        except Killed:
            return True
    return False


def test_a_pair_is_never_of_two_models(tmp_path, monkeypatch):
    path, seen = tmp_path / "model.xml", []
    for step in itertools.count(1):
        export(path, OPENVINO, lambda part: write(part, "old"))
        names = {each.name for each in tmp_path.iterdir()}
        assert names == {"model.xml", "model.bin", "model.xml.json"}, "what was left is removed"
        if not killed_at(step, monkeypatch, path, "new"):
            break
        weights = path.with_suffix(".bin").read_text()
        seen.append(path.read_text() if path.exists() else None)
        assert seen[-1] in (None, f"<?xml {weights}")
    # Until the new pair is whole, the old one stays.
    assert seen == ["<?xml old", "<?xml old", None, None]
    assert path.read_text() == "<?xml new" and path.with_suffix(".bin").read_text() == "new"


def test_weights_without_a_graph_are_those_of_a_killed_export(tmp_path, monkeypatch):
    path = tmp_path / "model.xml"
    assert killed_at(3, monkeypatch, path, "new")
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


@pytest.mark.parametrize("changed", ["saved_model.pb", "variables/data", "export.json"])
def test_the_record_covers_the_file_and_the_classes(tmp_path, changed):
    path = tmp_path / "model"
    saved(path)
    write_record(Exported(path, 0.5, classes=("cat", "dog")), path, SAVED_MODEL)
    assert read_record(path, SAVED_MODEL)["classes"] == ["cat", "dog"]
    text = (path / changed).read_text()
    (path / changed).write_text(text.replace("cat", "hen") if "cat" in text else "another")
    assert json.loads((path / "export.json").read_text())["difference"] == 0.5
    assert not read_record(path, SAVED_MODEL)


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


@pytest.mark.parametrize("old", [False, True])
def test_a_failure_leaves_what_was_there(old, classifier, tmp_path, monkeypatch):
    module = importlib.import_module("keras_vitx.export.export")
    directory = tmp_path / "model"
    if old:
        saved(directory)
    monkeypatch.setattr(module, "convert", lambda graph, format, path, *rest: saved(path, b"half"))
    monkeypatch.setattr(module, "compare", mock.Mock(side_effect=ValueError("too different")))
    with pytest.raises(ValueError, match="too different"):
        kv.export(classifier, directory, overwrite=True, tolerance=0.5, verbose=False)
    assert [each.name for each in tmp_path.iterdir()] == ["model"] * old
    assert not old or (directory / "saved_model.pb").read_bytes() == b"old"


def with_notes(path):
    saved(path)
    (path / "notes.txt").write_text("mine")


def link(path):
    with_notes(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize("format", ["saved_model", "onnx"])
@pytest.mark.parametrize("make", [with_notes, link, Path.mkdir])
def test_nothing_of_the_user_is_replaced(make, format, classifier, tmp_path):
    path = tmp_path / f"model{FORMATS[format].suffix}"
    make(path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match=r"other things than (a SavedModel|ONNX data)"):
        kv.export(classifier, path, format, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before


MODEL = "kv.ViT(24, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=5)"
FULL_DISK = f"""
import resource, signal, sys, keras_vitx as kv
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
model = {MODEL}
# Stands for a full disk: a write fails halfway.
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    kv.export(model, sys.argv[1], 'torch', verify=False)
except OSError as error:
    print('said', error)
"""
SCRIPT = f"""
import sys, keras_vitx as kv
kv.export({MODEL}, sys.argv[1], "litert", verify=False)
"""


def test_a_full_disk_is_one_error(empty):
    done = run_python(FULL_DISK, empty / "model.pt2")
    assert done.stdout.startswith("said"), done.stdout + done.stderr


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


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_a_killed_conversion_leaves_no_process_and_no_copy_of_the_model(tmp_path):
    directory, temporary = tmp_path / "out", tmp_path / "tmp"
    directory.mkdir()
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(directory / "model.tflite")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
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
