"""User-defined classes and functions in exports that another process writes."""

import os
import subprocess
import sys

import keras
import pytest
from harness import BACKEND, ROOT

from keras_vitx.export.convert import custom_objects
from keras_vitx.serialized import packed

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


@pytest.mark.backend_free
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
    for directory in ("module", "saved"):
        assert (tmp_path / directory / "saved_model.pb").is_file()


def locations(model):
    config, _, classes = packed(model)
    return custom_objects(config, classes)


@pytest.mark.backend_free
def test_only_classes_that_live_in_a_module_are_imported():
    """The config of a file may name any module."""

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
    with pytest.raises(ValueError, match=r"Noted', defined in a function"):
        locations(model)
    Noted.__module__, Noted.__qualname__ = "tests_of_export", "Noted"
    assert locations(model) == {"test_export>Noted": ["tests_of_export", "Noted"]}
