"""Training: recipes, `fit`, `evaluate` and losses."""

from keras_vitx.training.distillation import Distillation as Distillation
from keras_vitx.training.distillation import Taught as Taught
from keras_vitx.training.evaluate import evaluate as evaluate
from keras_vitx.training.fit import fit as fit
from keras_vitx.training.losses import PerHead as PerHead
from keras_vitx.training.losses import SmoothedCrossentropy as SmoothedCrossentropy
from keras_vitx.training.losses import SoftDistillation as SoftDistillation
from keras_vitx.training.precision import set_precision as set_precision
from keras_vitx.training.recipe import Network as Network
from keras_vitx.training.recipe import Optimizer as Optimizer
from keras_vitx.training.recipe import Recipe as Recipe
from keras_vitx.training.recipe import Schedule as Schedule
from keras_vitx.training.recipe import Targets as Targets
from keras_vitx.training.recipes import list_recipes as list_recipes
from keras_vitx.training.sigmoid import SigmoidCrossentropy as SigmoidCrossentropy
