"""Allowed imports between the parts of the package, and the modules that an import loads."""

import ast
import importlib.util
import json
import os
import sys

import pytest
from harness import BACKEND, BACKENDS, ROOT, run_python

from keras_vitx import backend

pytestmark = pytest.mark.backend_free
PACKAGE = ROOT / "keras_vitx"

# The parts of the package, and the parts that each of them may import.
LEAVES = {"files", "text", "backend", "keras_internals", "outputs", "losses"}
LEAVES |= {"checks", "pixels", "positions", "preprocessing"}
ARROWS = {
    **{part: set() for part in (*LEAVES, "layers", "weights", "data")},
    "models": {"layers", "weights"},
    "training": {"data", "layers"},
    "export": {"data", "layers"},
    "analysis": {"data", "layers"},
    "robustness": {"training"},
}
ALL = ARROWS.keys() - LEAVES
ARROWS |= {"cli": ALL, "api": ALL}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Every (line, module, name or None) that a file imports, lazily or not."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            for alias in node.names:
                yield node.lineno, node.module, alias.name


def parts_imported(path):
    """(line, part) for each import of the package itself; "" is its root."""
    for line, module, name in imports(path):
        if module == "keras_vitx" or module.startswith("keras_vitx."):
            parts = module.split(".")[1:] or [name or ""]
            known = parts[0] if (PACKAGE / parts[0]).exists() or parts[0] in LEAVES | ALL else ""
            yield line, known


@pytest.mark.parametrize("part", sorted({part_of(path) for path in FILES}))
def test_arrows(part):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported or 'the whole package'}"
        for path in FILES
        if part_of(path) == part
        for line, imported in parts_imported(path)
        if imported not in ARROWS[part] | LEAVES | {part}
        # The command line is a user of the package like any other.
        and not (part == "cli" and imported == "")
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("part", ("layers", "models"))
def test_no_backend_in(part):
    allowed = {"keras", "numpy", "keras_vitx", *sys.stdlib_module_names}
    for path in (PACKAGE / part).rglob("*.py"):
        if path.parent.name == "kernels":
            continue
        for line, module, _ in imports(path):
            assert module.split(".")[0] in allowed, f"{path}:{line} imports {module}"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                where = f"{path}:{node.lineno}"
                assert node.attr != "numpy", f"{where} takes .numpy"
                asks = ast.unparse(node) == "keras.backend.backend"
                assert not asks or path.name == "ops.py", f"{where} asks for the backend"


LOADED = """
import sys
import keras
packages = {name.partition(".")[0] for name in sys.modules}
import keras_vitx
print(*{name.partition(".")[0] for name in sys.modules} - packages)
"""


@pytest.mark.parametrize("name", ("tensorflow", "jax"))
def test_what_an_import_loads(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    beyond = set(run_python(LOADED, backend=name).stdout.split())
    # Keras itself loads TensorFlow's parts under other backends where it is installed.
    assert not beyond & set(BACKENDS), "no backend but the chosen one"
    lazy = {"tensorflow_datasets", "matplotlib", "huggingface_hub", "cyclopts", "timm"}
    lazy |= {"torchvision", "scipy", "onnx", "tokenizers", "sklearn"}
    assert not beyond & lazy
    if name == "tensorflow":
        assert not beyond & {"torch", "jax"}


@pytest.fixture
def choose(monkeypatch, tmp_path):
    """Let the package choose a backend before Keras is imported; return its choice."""

    def choose(installed, chosen=None, in_file=None, wanted=None):
        monkeypatch.delitem(sys.modules, "keras", raising=False)
        monkeypatch.setattr(backend, "_is_installed", lambda name: name in installed)
        monkeypatch.setenv("KERAS_BACKEND", chosen or "")
        monkeypatch.setenv("KERAS_HOME", str(tmp_path))
        if in_file is not None:
            text = in_file if isinstance(in_file, str) else json.dumps(in_file)
            (tmp_path / "keras.json").write_text(text)
        backend.choose(wanted)
        return os.environ["KERAS_BACKEND"]

    return choose


def test_no_backend_is_installed(choose):
    with pytest.raises(ImportError, match="needs JAX, PyTorch or TensorFlow"):
        choose([])


@pytest.mark.parametrize(
    ("choices", "taken"),
    [
        ({"wanted": "torch", "chosen": "jax", "in_file": {"backend": "tensorflow"}}, "torch"),
        ({"chosen": "torch", "in_file": {"backend": "tensorflow"}}, "torch"),
        ({"in_file": {"backend": "tensorflow"}}, "tensorflow"),
        ({"in_file": {**backend.WRITTEN_BY_KERAS, "floatx": "float16"}}, "tensorflow"),
        ({"chosen": "numpy"}, "numpy"),
    ],
)
def test_the_choice_of_the_user(choose, caplog, choices, taken):
    assert choose(BACKENDS, **choices) == taken
    assert not caplog.records


@pytest.mark.parametrize(
    "in_file",
    [None, backend.WRITTEN_BY_KERAS, {}, "[]", "no JSON", '"jax"'],
)
def test_a_backend_without_any_choice(choose, caplog, in_file):
    assert choose(["torch"], in_file=in_file) == "torch"
    assert not caplog.records
    # The extras `data` and `export` install TensorFlow in addition to the intended backend.
    assert choose(["tensorflow", "torch"], in_file=in_file) == "torch"
    assert "torch, tensorflow" in caplog.text and "KERAS_BACKEND" in caplog.text


IMPORT = """
import importlib.util, os, sys
find = importlib.util.find_spec
absent = {"tensorflow", "jax", "torch"} - {sys.argv[1]}
importlib.util.find_spec = lambda name, *rest: None if name in absent else find(name, *rest)
os.environ.pop("KERAS_BACKEND")
os.environ["KERAS_HOME"] = sys.argv[2]
import keras_vitx
print(sys.modules['keras'].backend.backend())
"""


def test_the_only_backend_is_found(tmp_path):
    assert run_python(IMPORT, BACKEND, tmp_path).stdout.split()[-1] == BACKEND
    # Written by Keras, with its own default: no choice of the user.
    assert json.loads((tmp_path / "keras.json").read_text()) == backend.WRITTEN_BY_KERAS
