"""The model class, the families and their sizes."""

from keras_vitx.models.arguments import Layers as Layers
from keras_vitx.models.arguments import ModelArguments as ModelArguments
from keras_vitx.models.build import MODELS as MODELS
from keras_vitx.models.build import create_model as create_model
from keras_vitx.models.build import family as family
from keras_vitx.models.build import list_models as list_models
from keras_vitx.models.build import model_input as model_input
from keras_vitx.models.build import variant as variant
from keras_vitx.models.chain import Chain as Chain
from keras_vitx.models.cut import as_chain as as_chain
from keras_vitx.models.features import Features as Features
from keras_vitx.models.features import features as features
from keras_vitx.models.sizes import *  # noqa: F403 - every family and size
