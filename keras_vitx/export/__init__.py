"""Models in formats that run without this package. Any built model of the zoo will do."""

from keras_vitx.export.saved_model import Exported, saved_model
from keras_vitx.export.verify import verify
