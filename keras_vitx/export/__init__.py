"""Export of any built image model to formats that run without this package.

The module can be called: `keras_vitx.export(model, path, format="onnx")`.
"""

import sys
import types

from keras_vitx.export.check import verify
from keras_vitx.export.export import export
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.predictor import Predictor, predictor
from keras_vitx.export.record import Exported
from keras_vitx.folding import fuse

__all__ = ["Exported", "Predictor", "export", "fuse", "predictor", "verify"]


class _CallableModule(types.ModuleType):
    """A module that is called like `export`: Python looks up `__call__` on the type."""

    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = _CallableModule
