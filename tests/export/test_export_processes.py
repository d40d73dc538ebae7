"""`kv.export` as a function, and the second process that writes for another backend."""

import importlib.util
import inspect
import os
import pickle
import subprocess
import sys

import keras
import pytest
from harness import BACKEND, ROOT, run_python

import keras_vitx as kv
from keras_vitx.export import convert
from keras_vitx.serialized import packed

pytestmark = pytest.mark.backend_free


def test_export_is_a_function():
    """As process pools, editors, and commands, whose names are imported when read, need it."""
    assert pickle.loads(pickle.dumps(kv.export)) is kv.export
    assert list(inspect.signature(kv.export).parameters)[:3] == ["model", "path", "format"]
    command = "import sys; sys.argv = ['keras-vitx']; import keras_vitx as kv; "
    assert run_python(f"{command} print(type(kv.export).__name__)").stdout.split() == ["function"]


def test_a_missing_package_is_named(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "onnxruntime" or None)
    with pytest.raises(ImportError, match=r'needs onnxruntime.*pip install "\.\[onnx\]"'):
        kv.export(classifier, tmp_path / "m.onnx", "onnx", verbose=False)


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
SESSION = """
import keras
import keras_vitx as kv
import my_module

images = keras.Input((8, 8, 1))
x = my_module.Unregistered()(my_module.Scale()(images))
x = keras.layers.Dense(2, activation=my_module.soft)(keras.layers.Flatten()(x))
assert kv.export(keras.Model(images, x), "module").difference <= 1e-5

del keras.saving.get_custom_objects()["mine>Scale"]

@keras.saving.register_keras_serializable("mine")
class Scale(my_module.Scale):
    pass

model = keras.Model(images, Scale()(images))
try:
    kv.export(model, "saved")
except ValueError as error:
    print(error)
kv.export(model, "saved", imports=("my_module",), verify=False)
"""


def test_classes_of_a_module_and_of_a_session(tmp_path):
    (tmp_path / "my_module.py").write_text(MODULE)
    done = subprocess.run(
        [sys.executable, "-"],
        input=SESSION,
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": BACKEND, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "'Scale', defined in a script or a session" in done.stdout
    assert 'imports=("my_module",)' in done.stdout
    assert len(list(tmp_path.glob("*/saved_model.pb"))) == 2


def test_only_classes_that_live_in_a_module_are_imported():
    """The config of a file may name any module."""

    @keras.saving.register_keras_serializable("test_export")
    class Noted(keras.layers.Identity):
        note = {"module": "this", "class_name": "Zen", "registered_name": "Zen", "config": {}}

        def get_config(self):
            return {**super().get_config(), "note": self.note}

    def imported():
        config, _, classes = packed(model)
        return convert.custom_objects(config, classes)

    images = keras.Input((8, 8, 3))
    model = keras.Model(images, Noted()(images))
    with pytest.raises(ValueError, match=r"Noted', defined in a function"):
        imported()
    Noted.__module__, Noted.__qualname__ = "tests_of_export", "Noted"
    assert imported() == {"test_export>Noted": ["tests_of_export", "Noted"]}


def test_a_failed_process_says_why_and_ignores_its_directory(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('wrong numpy')")
    monkeypatch.chdir(tmp_path)
    code = "import numpy, sys; print('long story', file=sys.stderr); raise ValueError('the reason')"
    with pytest.raises(ChildProcessError) as failure:
        convert.run_python("-c", code, backend="tensorflow")
    assert failure.value.args == ("The second process (tensorflow) failed: ValueError: the reason",)
    assert failure.value.__notes__[0].startswith("long story")
    with pytest.raises(ChildProcessError, match="exit status 3"):
        convert.run_python("-c", "raise SystemExit(3)", backend="tensorflow")
