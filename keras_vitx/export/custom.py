"""A user's own classes and functions, brought into the process that runs TensorFlow."""

import ast
import importlib
import operator
import re
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras

KNOWN = {"keras", "keras_vitx", "builtins"}
"""Packages whose classes and functions need no help to be found."""

DEFINITIONS = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
"""Statements of a script that are run, besides simple assignments."""

MOVE = "Move it to the top level of a module and import it from there"


def check_imports(imports: Sequence[str]) -> None:
    """Check that `imports` is a sequence of names.

    Raises:
        ValueError: when it is not.
    """
    if isinstance(imports, str) or not all(isinstance(name, str) for name in imports):
        raise ValueError(f'imports should be module names such as ("my_module",), not {imports!r}.')


def find_custom(model: keras.Model, imports: Sequence[str] = ()) -> dict[str, Any]:
    """Return what another process needs in order to load `model`.

    Args:
        model: A model that `keras.saving.serialize_keras_object` can serialize.
        imports: Names of modules to import in that process first.

    Returns:
        A description for `load_custom`, in JSON's types.

    Raises:
        ValueError: when the model has a class or function that was defined inside a function,
            in a notebook or in an interactive session, and `imports` is empty.
    """
    main = sys.modules["__main__"]
    script = Path(getattr(main, "__file__", None) or "")
    script = str(script.resolve()) if script.is_file() else None
    objects = dict(_custom_objects(keras.saving.serialize_keras_object(model)))
    for name, (module, path) in objects.items():
        place = None
        if "<locals>" in path:
            place = "inside a function"
        elif module == "__main__" and not script:
            place = "in a notebook or an interactive session"
        if place and not imports:
            raise ValueError(
                f"{name!r} is defined {place}, out of reach of the process that runs TensorFlow. "
                f'{MOVE}, or pass imports=("my_module",), the module that registers it.'
            )
    return {
        "imports": list(imports),
        "objects": objects,
        "script": script,
        "package": getattr(main, "__package__", None),
    }


def load_custom(custom: dict[str, Any]) -> dict[str, Any]:
    """Import or define the objects that `find_custom` described.

    Modules are imported. Of a script, only the definitions are run: see `define`.

    Returns:
        The `custom_objects` of `keras.saving.load_model`.

    Raises:
        ImportError: when a module can't be imported, or an object is not found.
    """
    registered, script = keras.saving.get_registered_object, custom["script"]
    modules = [module for module, _ in custom["objects"].values() if module != "__main__"]
    for module in (*custom["imports"], *modules):
        importlib.import_module(module)
    failures = {}
    if script and any(
        module == "__main__" and not registered(name)
        for name, (module, _) in custom["objects"].items()
    ):
        failures = define(script, custom["package"])
    objects = {}
    for name, (module, path) in custom["objects"].items():
        try:
            objects[name] = registered(name) or operator.attrgetter(path)(sys.modules[module])
        except AttributeError:
            where = script if module == "__main__" and script else module
            reason = f" ({failures[path]})" if path in failures else ""
            raise ImportError(f"{name!r} was not found in {where}{reason}. {MOVE}.") from None
    return objects


def define(script: str, package: str | None = None) -> dict[str, str]:
    """Define the classes and functions of a script without running the rest of it.

    What is run of its top level is imports, classes, functions and assignments without a call,
    also inside `try`. The result is the module `__mp_main__` in the place of `__main__`, named
    as by `multiprocessing`, so that code which asks for `__main__` does not run.

    Args:
        script: Path of the file.
        package: Its `__package__`, for relative imports.

    Returns:
        By name, the line and the error of each class and function that could not be defined.
        (Others than the model's may well fail, such as the commands of a command line.)
    """
    module = types.ModuleType("__mp_main__")
    module.__file__, module.__package__ = script, package
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    statements = _definitions(ast.parse(Path(script).read_bytes(), script).body)
    futures = [each for each in statements if getattr(each, "module", None) == "__future__"]
    failures = {}
    for statement in statements:
        code = ast.Module([*futures, statement], type_ignores=[])
        try:
            exec(compile(code, script, "exec", dont_inherit=True), vars(module))
        except Exception as error:
            name = getattr(statement, "name", "")
            failures[name] = f"line {statement.lineno}: {error}"
    return failures


def explain(error: Exception) -> None:
    """Raise a plainer error when `error` comes of a name that `define` left out.

    Raises:
        NameError: which says so.
    """
    name = re.search(r"name '(\w+)' is not defined", str(error))
    if name and "__mp_main__" in sys.modules:
        raise NameError(
            f"{name[1]!r} is not defined: of a script, only imports, classes, functions and "
            "constants are run. Move the custom class to a module, with all that it uses."
        ) from error


def _custom_objects(config: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each custom object of a config: its name in files, its module, its path there."""
    if isinstance(config, (list, tuple)):
        for value in config:
            yield from _custom_objects(value)
    if not isinstance(config, dict):
        return
    # Keras may leave out the module of what is registered.
    module, path = config.get("module") or "", config.get("class_name")
    if isinstance(path, str) and (module or config.get("registered_name")):
        name = config.get("registered_name") or path
        if path == "function":
            name = config["config"]
            path = name.rpartition(">")[2]
        found = keras.saving.get_registered_object(name)
        found = found or getattr(sys.modules.get(module), path, None)
        module, path = getattr(found, "__module__", module), getattr(found, "__qualname__", path)
        if module and module.partition(".")[0] not in KNOWN:
            yield name, (module, path)
    for key, value in config.items():
        if key != "compile_config":  # An export needs nothing of how the model was trained.
            yield from _custom_objects(value)


def _definitions(statements):
    chosen = []
    for statement in statements:
        if isinstance(statement, ast.Try):
            for part in (statement, *statement.handlers):
                part.body = _definitions(part.body) or [ast.Pass(lineno=0, col_offset=0)]
            statement.orelse = _definitions(statement.orelse)
            statement.finalbody = _definitions(statement.finalbody)
            chosen.append(statement)
        elif isinstance(statement, DEFINITIONS) or _is_simple(statement):
            chosen.append(statement)
    return chosen


def _is_simple(statement):
    """Tell whether a statement assigns to names, and calls nothing."""
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return (
        isinstance(statement, (ast.Assign, ast.AnnAssign))
        and all(isinstance(target, (ast.Name, ast.Tuple)) for target in targets)
        and not _calls(statement)
    )


def _calls(node):
    if isinstance(node, ast.Lambda):
        return False
    return isinstance(node, ast.Call) or any(map(_calls, ast.iter_child_nodes(node)))
