"""Vision transformers with modified attention, for Keras 3."""

__version__ = "0.1.0"

from keras_vitx import backend

if backend.is_command() or backend.is_worker():
    # `keras-vitx` parses its options, `--backend` among them, before Keras is imported; processes
    # that make batches do without it.
    def __getattr__(name: str):
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib.util

        if name != "export" and importlib.util.find_spec(f"{__name__}.{name}"):
            # For a part of the package, all others would be a cycle.
            return importlib.import_module(f"{__name__}.{name}")
        if backend.is_worker():
            backend.choose()
        api = importlib.import_module("keras_vitx.api")
        # The import has bound the name of this function to its module.
        globals()["export"] = api.export
        return getattr(api, name)

else:
    backend.choose()
    from keras_vitx.api import *  # noqa: F403 - the public names
