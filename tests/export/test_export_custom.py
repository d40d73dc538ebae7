"""User-defined classes and functions in exports from JAX and PyTorch."""

import os
import subprocess
import sys
import types

import keras
import pytest
from harness import BACKEND, ROOT

from keras_vitx.export import saved_model
from keras_vitx.export.elsewhere import custom

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

SCRIPT = """
from __future__ import annotations

import keras
import keras_vitx as kv
import my_module
from pathlib import Path

try:
    import not_installed
except ImportError:
    not_installed = None

HALF = 1 / 2
double = lambda x: keras.ops.add(x, x)
runs = Path(__file__).with_name("runs.txt")
commands = list()

@commands.append
def train(): ...

@keras.saving.register_keras_serializable("mine")
class Own(keras.layers.Layer):
    def call(self, x: not_a_name):
        assert not_installed is None
        return double(x) * HALF

@keras.saving.register_keras_serializable("mine")
def own_activation(x):
    return keras.ops.relu(x) * HALF

with open(runs, "a") as file:
    file.write("run ")
keras.utils.set_random_seed(0)
images = keras.Input((8, 8, 1))
x = my_module.Unregistered()(my_module.Scale()(Own()(images)))
x = keras.layers.Dense(2, activation=own_activation)(keras.layers.Flatten()(x))
x = keras.layers.Dense(2, activation=my_module.soft)(x)
exported = kv.export.saved_model(keras.Model(images, x), Path(__file__).with_name("saved"))
assert exported.difference <= 1e-5
"""

SESSION = """
import keras
import keras_vitx as kv

@keras.saving.register_keras_serializable("mine")
class Scale(keras.layers.Layer):
    def call(self, x):
        return x * 3.0

keras.utils.set_random_seed(0)
images = keras.Input((8, 8, 1))
model = keras.Model(images, Scale()(images))
try:
    kv.export.saved_model(model, "saved")
except ValueError as error:
    print(error)
kv.export.saved_model(model, "saved", imports=("my_module",), verify=False)
"""


def run(folder, *arguments, **options):
    environment = {**os.environ, "KERAS_BACKEND": BACKEND, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@in_two_processes
def test_classes_of_a_script_and_of_a_module(tmp_path):
    (tmp_path / "my_module.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(SCRIPT)
    run(tmp_path, "script.py")
    assert (tmp_path / "saved" / "saved_model.pb").is_file()
    # The second process defined the classes without training again.
    assert (tmp_path / "runs.txt").read_text() == "run "


@in_two_processes
def test_a_class_of_a_session_needs_a_module(tmp_path):
    (tmp_path / "my_module.py").write_text(MODULE)
    said = run(tmp_path, "-", input=SESSION)
    assert "'mine>Scale' is defined in a notebook or an interactive session" in said
    assert "Move it to the top level of a module" in said and 'imports=("my_module",)' in said
    assert (tmp_path / "saved" / "saved_model.pb").is_file()


@in_two_processes
def test_a_class_inside_a_function_is_an_error(tmp_path):
    @keras.saving.register_keras_serializable("test_export")
    class Inner(keras.layers.Layer):
        def call(self, x):
            return x

    images = keras.Input((8, 8, 3))
    with pytest.raises(ValueError, match="'test_export>Inner' is defined inside a function"):
        saved_model(keras.Model(images, Inner()(images)), tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("imports", ["my_module", (1,)])
def test_wrong_imports_are_named(unused, tmp_path, imports):
    with pytest.raises(ValueError, match="imports should be module names"):
        saved_model(unused, tmp_path / "saved", imports=imports)


@pytest.fixture
def described(monkeypatch):
    """Describes a class `mine>Own` of a script, `__main__`."""
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    monkeypatch.setitem(sys.modules, "__mp_main__", None)

    def describe(script):
        objects = {"mine>Own": ("__main__", "Own")}
        return {"imports": [], "objects": objects, "script": str(script), "package": None}

    return describe


def test_a_class_that_needs_more_than_definitions(described, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("layers = list()\n\n@layers.append\nclass Own: ...\n")
    with pytest.raises(ImportError, match=r"script.py \(line 4: name 'layers' .*Move it to"):
        custom.load_custom(described(script))


def test_a_name_that_was_not_defined(described, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("SIZE = int('3')\n\nclass Own:\n    def call(self):\n        return SIZE\n")
    own = custom.load_custom(described(script))["mine>Own"]
    with pytest.raises(NameError, match="'SIZE' is not defined: of a script, only imports"):
        try:
            own().call()
        except NameError as error:
            custom.explain(error)
