"""`kv.export` as a function, and the second process that writes for another backend."""

import importlib.util
import inspect
import pickle

import keras
import pytest
from harness import FAMILIES

import keras_vitx as kv
from keras_vitx.export import process

pytestmark = pytest.mark.backend_free


def test_export_is_a_function():
    """As process pools, editors, and commands, whose names are imported when read, need it."""
    assert pickle.loads(pickle.dumps(kv.export)) is kv.export
    assert list(inspect.signature(kv.export).parameters)[:3] == ["model", "path", "format"]


def test_a_missing_package_is_named(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "onnxruntime" or None)
    with pytest.raises(ImportError, match=r'needs onnxruntime.*pip install "\.\[onnx\]"'):
        kv.export(classifier, tmp_path / "m.onnx", "onnx")


MODULE = """
import keras

@keras.saving.register_keras_serializable("mine")
def soft(x):
    return keras.ops.tanh(x)

@keras.saving.register_keras_serializable("mine")
class Scale(keras.layers.Layer):
    def call(self, x):
        return x * 3.0

class Unregistered(keras.layers.Layer):
    def call(self, x):
        return x + 1.0
"""


def test_classes_of_a_module_and_of_a_session(tmp_path, monkeypatch):
    (tmp_path / "my_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    mine, images = importlib.import_module("my_module"), keras.Input((8, 8, 1))
    x = mine.Unregistered()(mine.Scale()(images))
    x = keras.layers.Dense(2, activation=mine.soft)(keras.layers.Flatten()(x))
    assert kv.export(keras.Model(images, x), tmp_path / "module").difference <= 1e-5
    own = type("Own", (mine.Scale,), {"__module__": "__main__", "__qualname__": "Own"})
    with pytest.raises(ValueError, match=r"not a script, a session .* Received: 'Own'"):
        kv.export(keras.Model(images, own()(images)), tmp_path / "saved")


def test_a_failed_process_says_why_and_ignores_its_directory(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('wrong numpy')")
    monkeypatch.chdir(tmp_path)
    code = "import numpy, sys; print('long story', file=sys.stderr); raise ValueError('the reason')"
    with pytest.raises(ChildProcessError) as failure:
        process.run_python("-c", code, backend="tensorflow")
    assert failure.value.args == ("The second process (tensorflow) failed: ValueError: the reason",)
    assert failure.value.__notes__[0].startswith("long story")
    with pytest.raises(ChildProcessError, match="exit status 3"):
        process.run_python("-c", "raise SystemExit(3)", backend="tensorflow")


def saved(directory, content=b"old"):
    """Write a directory like a SavedModel."""
    directory.mkdir()
    (directory / "saved_model.pb").write_bytes(content)


@pytest.fixture
def quick(monkeypatch):
    """Let exports write a few bytes, without a comparison."""
    module = importlib.import_module("keras_vitx.export.export")

    def write(model, names, format, path, batches):
        path.write_bytes(b"new") if format.suffix else saved(path, b"new")

    monkeypatch.setattr(module, "write", write)
    monkeypatch.setattr(module, "check_equal", lambda *arguments: 0.0)
    monkeypatch.setattr(module, "write_class_names", lambda *arguments: None)
    return module


def test_what_is_there_is_replaced_only_if_asked(quick, classifier, tmp_path):
    file, directory, empty = tmp_path / "m.onnx", tmp_path / "m", tmp_path / "empty"
    file.write_bytes(b"old")
    saved(directory)
    empty.mkdir()
    for path in (file, directory):
        with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
            kv.export(classifier, path)
        kv.export(classifier, path, overwrite=True)
    kv.export(classifier, empty)
    assert file.read_bytes() == b"new"
    for path in (directory, empty):
        assert (path / "saved_model.pb").read_bytes() == b"new"
    assert {each.name for each in tmp_path.iterdir()} == {"m.onnx", "m", "empty"}


def test_what_is_said_of_a_file(quick, tmp_path):
    model = FAMILIES["ViT"](classes=1, classifier_activation="sigmoid")
    model.class_names = ("cat", "dog")
    one, odd = tmp_path / "one.pt2", tmp_path / "odd.pt2"
    assert kv.export(model, one)[4:6] == (("probabilities",), ("cat", "dog"))
    exported = kv.export(model, odd, preprocessing=(35, 29), outputs="logits")
    assert exported.shape == (None, 35, 29, 3) and exported.outputs == ("logits",)


def test_other_directories_are_never_replaced(quick, classifier, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds other things"):
        kv.export(classifier, tmp_path, "saved_model", overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_failure_leaves_what_was_there(quick, classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(quick, "check_equal", lambda *arguments: 1 / 0)
    saved(tmp_path / "old")
    for name in ("old", "new"):
        with pytest.raises(ZeroDivisionError):
            kv.export(classifier, tmp_path / name, overwrite=True)
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old" / "saved_model.pb").read_bytes() == b"old"


@pytest.mark.parametrize("suffix", ["pt2", "safetensors"])
def test_a_full_disk_is_one_error(classifier, empty, suffix):
    write = kv.export if suffix == "pt2" else kv.weights.save_safetensors
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Stands for a full disk: a write fails halfway.
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    try:
        with pytest.raises(OSError):
            write(classifier, empty / f"model.{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
