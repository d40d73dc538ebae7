"""Export of any built image model to formats that run without this package."""

from keras_vitx.export.fuse import fuse
from keras_vitx.export.saved_model import Exported, saved_model
from keras_vitx.export.verify import verify
