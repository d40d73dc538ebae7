"""Which part of the package may import which, and what an import loads."""

import ast
import sys

import pytest
from harness import BACKEND, BACKENDS, ROOT, run_python

PACKAGE = ROOT / "keras_vitx"

# The parts of the package, and the parts that each may import.
LEAVES = {"files", "text", "backend", "keras_internals", "classifier"}
ARROWS = {
    "layers": set(),
    "weights": set(),
    "models": {"layers", "weights"},
    "data": set(),
    "training": {"data"},
    "export": {"data"},
    "analysis": {"data"},
    "cli": {"layers", "weights", "models", "data", "training", "export", "analysis"},
    "files": set(),
    "text": set(),
    "backend": set(),
    "keras_internals": set(),
    "classifier": set(),
}


def files():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


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
            known = parts[0] if (PACKAGE / parts[0]).exists() or parts[0] in LEAVES else ""
            yield line, known


def test_every_part_is_known():
    assert {part_of(path) for path in files()} <= set(ARROWS)


@pytest.mark.parametrize("part", ARROWS)
def test_arrows(part):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported or 'the whole package'}"
        for path in files()
        if part_of(path) == part
        for line, imported in parts_imported(path)
        if imported not in ARROWS[part] | LEAVES | {part}
        # The command line is a user of the package like any other.
        and not (part == "cli" and imported == "")
    ]
    assert not wrong, wrong


def test_a_wrong_arrow_would_be_found(tmp_path):
    file = tmp_path / "x.py"
    file.write_text(
        "def f():\n    from keras_vitx.models import CaiT\n"
        "    from keras_vitx import models, text\n    import keras_vitx.data.arrays\n"
        "    import keras_vitx\n    from keras_vitx import CaiT\n"
    )
    assert [part for _, part in parts_imported(file)] == [
        "models",
        "models",
        "text",
        "data",
        "",
        "",
    ]


@pytest.mark.parametrize("part", ("layers", "models"))
def test_no_backend_in(part):
    allowed = {"keras", "numpy", "keras_vitx", *sys.stdlib_module_names}
    for path in (PACKAGE / part).rglob("*.py"):
        for line, module, _ in imports(path):
            door = path.name == "fast.py" and module in {"torch", "jax"}
            assert door or module.split(".")[0] in allowed, f"{path}:{line} imports {module}"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr != "numpy", f"{path}:{node.lineno} takes .numpy"


def test_only_plots_import_matplotlib():
    users = {
        str(path.relative_to(PACKAGE))
        for path in files()
        for _, module, _ in imports(path)
        if module.split(".")[0] == "matplotlib"
    }
    assert users <= {"analysis/plots.py"}


LOADED = """
import sys
import {module}
print(*sorted({{name.split(".")[0] for name in sys.modules}}))
"""


def loaded(module):
    return set(run_python(LOADED.format(module=module)).stdout.split())


def test_what_an_import_loads():
    beyond = loaded("keras_vitx") - loaded("keras")
    # Keras itself loads TensorFlow's parts under other backends where it is installed.
    assert not beyond & set(BACKENDS), "no backend but the chosen one"
    lazy = {
        "tensorflow_datasets",
        "matplotlib",
        "huggingface_hub",
        "typer",
        "click",
        "timm",
        "torchvision",
        "scipy",
        "onnx",
    }
    assert not beyond & lazy
    if BACKEND == "tensorflow":
        assert not beyond & {"torch", "jax"}


CHOICE = """
import importlib.util, os, sys
installed = sys.argv[1].split(",")
find = importlib.util.find_spec
backends = ("tensorflow", "jax", "torch")
importlib.util.find_spec = lambda name, *rest: (
    None if name in backends and name not in installed else find(name, *rest)
)
if sys.argv[2]:
    os.environ["KERAS_BACKEND"] = sys.argv[2]
else:
    os.environ.pop("KERAS_BACKEND", None)
os.environ["KERAS_HOME"] = sys.argv[3]
try:
    from keras_vitx import backend  # noqa
    print(os.environ["KERAS_BACKEND"])
except ImportError as error:
    print("ImportError:", error)
"""


def choose(installed, chosen, home):
    return run_python(CHOICE, installed, chosen, home).stdout


def test_no_backend_is_installed(tmp_path):
    said = choose("none", "", tmp_path)
    assert "ImportError" in said
    for backend in BACKENDS:
        assert f'"{backend}"' in said


def test_the_chosen_backend_is_not_installed(tmp_path):
    said = choose("none", "torch", tmp_path)
    assert "ImportError" in said
    assert "'torch'" in said
    assert '".[torch]"' in said
    assert "jax" not in said


def test_an_installed_backend_is_taken(tmp_path):
    pytest.importorskip(BACKEND)
    assert choose(BACKEND, "", tmp_path).split()[-1] == BACKEND
    (tmp_path / "keras.json").write_text(f'{{"backend": "{BACKEND}"}}')
    assert choose(",".join(BACKENDS), "", tmp_path).split()[-1] == BACKEND
