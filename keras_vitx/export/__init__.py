"""Export of any built image model to formats that run without this package.

`keras_vitx.export` is the function of this name; its module is `sys.modules[__name__]`.
"""

from keras_vitx.export.compare import compare
from keras_vitx.export.export import Exported, export
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.predictor import Predictor, predictor

__all__ = ["FORMATS", "Exported", "Predictor", "compare", "export", "predictor"]

# `keras_vitx.export.compare` is read from the function.
export.Exported, export.Predictor, export.compare = Exported, Predictor, compare
