"""Making a user's custom classes and functions available to the TensorFlow process."""

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
"""Packages whose classes and functions every process can find."""

DEFINITIONS = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
"""Statements of a script that are executed, besides simple assignments."""

MOVE = "Move it to the top level of a module and import it from there"


def check_imports(imports: Sequence[str]) -> None:
    """Check that `imports` is a sequence of module names.

    Raises:
        ValueError: if it is not.
    """
    if isinstance(imports, str) or not all(isinstance(name, str) for name in imports):
        raise ValueError(f'imports should be module names such as ("my_module",), not {imports!r}.')


def find_custom(model: keras.Model, imports: Sequence[str] = ()) -> dict[str, Any]:
    """Describe the custom objects that another process needs to load `model`.

    Args:
        model: A model that `keras.saving.serialize_keras_object` can serialize.
        imports: Names of modules to import in that process first.

    Returns:
        A JSON-serializable description for `load_custom`.

    Raises:
        ValueError: if the model uses a class or function that was defined inside a function,
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
                f"{name!r} is defined {place}, where the TensorFlow process can't find it. "
                f'{MOVE}, or pass imports=("my_module",), the module that registers it.'
            )
    return {
        "imports": list(imports),
        "objects": objects,
        "script": script,
        "package": getattr(main, "__package__", None),
    }


def load_custom(custom: dict[str, Any]) -> dict[str, Any]:
    """Import or define the objects described by `find_custom`.

    Modules are imported. Of a script, only the definitions are executed: see `define`.

    Returns:
        The `custom_objects` of `keras.saving.load_model`.

    Raises:
        ImportError: if a module can't be imported or an object is not found.
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

    Of its top level, only imports, classes, functions and assignments without calls are
    executed, including those inside `try`. The resulting module replaces `__main__` and is
    named `__mp_main__`, as in `multiprocessing`, so that code guarded by
    `if __name__ == "__main__"` does not run.

    Args:
        script: Path of the file.
        package: Its `__package__`, for relative imports.

    Returns:
        The line and the error of each class and function that could not be defined, by name.
        (Some that the model does not use may well fail, such as command line commands.)
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
    """Raise a clearer error if `error` is caused by a name that `define` left out.

    Raises:
        NameError: if it is.
    """
    name = re.search(r"name '(\w+)' is not defined", str(error))
    if name and "__mp_main__" in sys.modules:
        raise NameError(
            f"{name[1]!r} is not defined: of a script, only imports, classes, functions and "
            "constants are run. Move the custom class to a module, with all that it uses."
        ) from error


def _custom_objects(config: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (registered name, (module, qualified name)) of each custom object in a config."""
    if isinstance(config, (list, tuple)):
        for value in config:
            yield from _custom_objects(value)
    if not isinstance(config, dict):
        return
    # Keras may omit the module of registered objects.
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
        if key != "compile_config":  # Not needed for an export.
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
    """Return whether a statement assigns to names, without any calls."""
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
