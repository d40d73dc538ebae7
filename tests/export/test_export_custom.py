"""User-defined classes and functions in exports from JAX and PyTorch."""

import os
import subprocess
import sys

import keras
import pytest
from harness import BACKEND, ROOT

import keras_vitx as kv
from keras_vitx.export.convert import custom_objects

in_two_processes = pytest.mark.skipif(BACKEND == "tensorflow", reason="exports where it is")

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
exported = kv.export(keras.Model(images, x), "module")
assert exported.difference <= 1e-5

del keras.saving.get_custom_objects()["mine>Scale"]

@keras.saving.register_keras_serializable("mine")
class Scale(keras.layers.Layer):
    def call(self, x):
        return x * 3.0

model = keras.Model(images, Scale()(images))
try:
    kv.export(model, "saved")
except ValueError as error:
    print(error)
kv.export(model, "saved", imports=("my_module",), verify=False)
"""


@in_two_processes
def test_classes_of_a_module_and_of_a_session(tmp_path):
    (tmp_path / "my_module.py").write_text(MODULE)
    environment = {**os.environ, "KERAS_BACKEND": BACKEND, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-"],
        input=SESSION,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "'Scale', defined in a script or a session" in done.stdout
    assert "Move it to the top level of a module" in done.stdout
    assert 'imports=("my_module",)' in done.stdout
    for folder in ("module", "saved"):
        assert (tmp_path / folder / "saved_model.pb").is_file()


@in_two_processes
def test_a_class_inside_a_function_is_an_error(tmp_path):
    @keras.saving.register_keras_serializable("test_export")
    class Inner(keras.layers.Layer):
        def call(self, x):
            return x

    images = keras.Input((8, 8, 3))
    with pytest.raises(ValueError, match=r"Inner', defined in a function"):
        kv.export(keras.Model(images, Inner()(images)), tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.backend_free
def test_what_a_config_only_names_is_not_imported():
    """The config of a file may name any module; only live classes are looked for."""

    @keras.saving.register_keras_serializable("test_export")
    class Noted(keras.layers.Layer):
        def __init__(self, note, **kwargs):
            super().__init__(**kwargs)
            self.note = note

        def call(self, x):
            return x

        def get_config(self):
            return {**super().get_config(), "note": self.note}

    note = {"module": "this", "class_name": "Zen", "registered_name": "Zen", "config": {}}
    images = keras.Input((8, 8, 3))
    model = keras.Model(images, Noted(note)(images))
    Noted.__module__, Noted.__qualname__ = "tests_of_export", "Noted"
    assert custom_objects(model) == {"test_export>Noted": ["tests_of_export", "Noted"]}
