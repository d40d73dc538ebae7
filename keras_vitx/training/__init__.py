"""Training: recipes, `fit`, `evaluate` and losses."""

from keras_vitx import losses as losses
from keras_vitx.losses import SigmoidCrossentropy as SigmoidCrossentropy
from keras_vitx.losses import SmoothedCrossentropy as SmoothedCrossentropy
from keras_vitx.renamed import renamed_names as _renamed_names
from keras_vitx.training.callbacks import KeepBest as KeepBest
from keras_vitx.training.callbacks import StopAtNonFinite as StopAtNonFinite
from keras_vitx.training.callbacks import Validate as Validate
from keras_vitx.training.devices import is_chief as is_chief
from keras_vitx.training.devices import use_devices as use_devices
from keras_vitx.training.distillation import Distillation as Distillation
from keras_vitx.training.evaluate import Evaluator as Evaluator
from keras_vitx.training.evaluate import evaluate as evaluate
from keras_vitx.training.fit import fit as fit
from keras_vitx.training.network import set_network as set_network
from keras_vitx.training.network import set_precision as set_precision
from keras_vitx.training.optimizer import AdamW as AdamW
from keras_vitx.training.optimizer import Muon as Muon
from keras_vitx.training.optimizer import make_optimizer as make_optimizer
from keras_vitx.training.optimizer import make_schedule as make_schedule
from keras_vitx.training.rates import find_learning_rate as find_learning_rate
from keras_vitx.training.recipe import Recipe as Recipe
from keras_vitx.training.recipes import list_recipes as list_recipes
from keras_vitx.training.resume import resumable_fit as resumable_fit
from keras_vitx.training.run import held_out as held_out
from keras_vitx.training.targets import MixToken as MixToken
from keras_vitx.training.token_labels import TokenLabels as TokenLabels

__getattr__ = _renamed_names(
    __name__,
    Measured="Evaluator",
    LayerwiseAdamW="optimizer.LayerwiseAdamW",
    PerHead="losses.PerHead",
    SoftDistillation="losses.SoftDistillation",
    TeacherLabels="distillation.TeacherLabels",
    WarmupCosine="optimizer.WarmupCosine",
    set_drop_path="network.set_drop_path",
    set_similarity="network.set_similarity",
)
