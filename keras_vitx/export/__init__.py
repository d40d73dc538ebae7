"""Export of any built image model to formats that run without this package.

`keras_vitx.export` is the function of this name; its module is `sys.modules[__name__]`.
"""

from keras_vitx.export.check import verify
from keras_vitx.export.export import export
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.predictor import Predictor, predictor
from keras_vitx.export.record import Exported

__all__ = ["FORMATS", "Exported", "Predictor", "export", "predictor", "verify"]

# `keras_vitx.export.verify` is read from the function.
export.Exported, export.Predictor, export.verify = Exported, Predictor, verify
