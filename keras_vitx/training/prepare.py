"""What training changes in a model before its first step, from its settings to its compilation."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx.checks import check, check_argument
from keras_vitx.data.predictions import unnamed_classes
from keras_vitx.data.sources.names import are_numbers
from keras_vitx.keras_internals import compile_arguments, sublayers
from keras_vitx.layers.base import forget_programs, optimizer_of
from keras_vitx.losses import PerHead, as_loss
from keras_vitx.outputs import class_names_of, describe, head_of, is_chain, layers_of
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import shorten
from keras_vitx.training.evaluate import Evaluator
from keras_vitx.training.optimizer import OPTIMIZER, make_optimizer
from keras_vitx.training.recipe import GROUPS, NAMES, Precision, Recipe
from keras_vitx.training.source import TrainingData
from keras_vitx.training.targets import Distillation

log = logging.getLogger(__name__)

RATES = NAMES[NAMES.index("learning_rate") : NAMES.index("cooldown_epochs")]
OF_OPTIMIZER = (*RATES, *GROUPS["optimizer"])
"""The settings of the recipe's optimizer."""
OF_TASKS = ("accuracy", "top_5_accuracy", "binary_accuracy", "mean_absolute_error")
"""Names of the metrics that `Task` gives."""


def user_arguments(model: keras.Model) -> dict[str, Any]:
    """Return what the user passed to `model.compile`, without what an earlier `fit` did.

    Raises a ValueError if that is a loss of a model that is not functional, with one output.
    """
    arguments = {k: v for k, v in compile_arguments(model).items() if v is not None}
    if is_chain(model) and model.compiles_blocks:
        arguments["jit_compile"] = True
    if (optimizer := arguments.get("optimizer")) is not None:
        # Keras's default, that is without an argument; the loss of any recipe has this name.
        default = keras.optimizers.RMSprop(name=optimizer.name).get_config()
        if optimizer.name == OPTIMIZER or optimizer.get_config() == default:
            del arguments["optimizer"]
    if getattr(arguments.get("loss"), "name", None) == OPTIMIZER:
        del arguments["loss"]
        metrics = keras.tree.flatten(arguments.get("metrics"))
        if all(getattr(metric, "name", None) in OF_TASKS for metric in metrics):
            arguments.pop("metrics", None)  # The same, for the labels of this time.
    is_single = isinstance(getattr(model, "output_shape", None), tuple)
    rule = "`model` must be functional, with one output: train any other by `model.fit`."
    check(is_single or "loss" not in arguments, rule, describe(model))
    return arguments


def follow_optimizer(
    recipe: Recipe, compiled: Mapping[str, Any], fixed: Collection[str] = ()
) -> Recipe:
    """Return a recipe with the rate and the accumulation of the optimizer that the user compiled.

    Raises a ValueError if settings in `fixed`, passed by the user, are those of an optimizer or a
    loss, and the model is compiled with another.
    """
    ruled = {"optimizer": OF_OPTIMIZER, "loss": ("label_smoothing",)}
    for argument in [name for name in ruled if name in compiled]:
        passed = {name for name in fixed if name in ruled[argument]}
        if recipe.warmup_epochs == 0:
            passed -= {"warmup_epochs"}
        names = ", ".join(f"`{name}`" for name in sorted(passed))
        rule = f"`model` must not be compiled with an optimizer or a loss for {names} of a recipe."
        check(not passed, rule, argument)
    if "optimizer" not in compiled:
        return recipe
    optimizer = compiled["optimizer"]
    return recipe.replace(
        learning_rate=float(keras.ops.convert_to_numpy(optimizer.learning_rate)) or None,
        base_batch_size=None,
        decay="constant",
        accumulate_steps=optimizer.gradient_accumulation_steps or 1,
    )


def apply_settings(model: keras.Model, recipe: Recipe) -> None:
    """Apply the settings of a recipe from `drop_path` to `precision` to `model`, in place.

    Call it before `compile`. `Recipe("mine", drop_path=0.1)` changes only stochastic depth.

    Raises:
        ValueError: if a setting does not apply to the model.
    """
    chains = [part for part in sublayers(model) if is_chain(part) and part.blocks]
    if recipe.drop_path is not None:
        rule = "`drop_path` must be None for a model without a `Chain` of blocks."
        check(chains, rule, recipe.drop_path)
        for chain in chains:
            chain.set_drop_path(recipe.drop_path, recipe.drop_path_schedule)
    if recipe.remat is not None:
        rule = "`remat` must be None for a model that is not a `Chain`: use `keras.RematScope`."
        check(is_chain(model), rule, recipe.remat)
        model.remat = recipe.remat
    if recipe.crop_ratio is not None:
        preprocessing = ModelInput.of(model).preprocessing
        model.preprocessing = preprocessing.replace(crop_ratio=recipe.crop_ratio)
    if recipe.train is not None:
        model.trainable = True
    if recipe.train == "head":
        head = head_of(model)
        for layer in layers_of(model):
            layer.trainable = layer is head
    if recipe.precision is not None:
        set_precision(model, recipe.precision)


def set_precision(model: keras.Model, precision: Precision) -> None:
    """Set the precision in which `model` computes; its variables stay in float32.

    The classifier and its activation also compute in float32.

    Args:
        model: A model, changed in place.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.

    Raises:
        ValueError: if `precision` is unknown, or not that of a quantized layer (`"mixed_float16"`).
    """
    check_argument("precision", precision, Precision)
    steps = layers_of(model)
    last = [x for x in steps[steps.index(head_of(model)) :] if isinstance(x, keras.layers.Layer)]
    exact = {id(part) for layer in last for part in sublayers(layer)}
    layers = [layer for layer in sublayers(model) if id(layer) not in exact]
    # A quantized layer stays so: its policy is `int8_from_float32`.
    schemes = ["".join(layer.dtype_policy.name.rpartition("_from_")[:2]) for layer in layers]
    policies = [keras.dtype_policies.get(scheme + precision) for scheme in schemes]
    for layer, policy in zip(layers, policies, strict=True):
        layer.dtype_policy = policy
    forget_programs(model)


def match_head(model: keras.Model, class_names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Match the head of a model to the classes of a data set; return the names of its outputs.

    The classifiers are permuted if the names of the classes are the same in another order,
    reinitialized if the names differ, and kept otherwise. `model.class_names` are set.

    Raises:
        ValueError: if the model has another number of outputs than there are names.
    """
    classes, old, new = model.output_shape[-1], class_names_of(model), tuple(class_names or ())
    # One output is the probability of the second of two classes.
    if len(new) != max(classes, 2):
        rule = f"`model` must have classes={len(new)} for the classes {shorten(new)}."
        check(classes == 1 or are_numbers(new), rule, classes)
        return old
    # Checkpoints of ImageNet contain no class names.
    if old is None and is_chain(model) and model.head_loaded:
        old = tuple(synset for synset, _ in unnamed_classes(classes)) or None
    model.class_names = new
    if old is None or old == new:
        return new
    dense = [part for part in sublayers(head_of(model)) if isinstance(part, keras.layers.Dense)]
    heads = [layer for layer in dense if layer.units == classes]
    if sorted(old) == sorted(new):
        log.warning("The head's classes were permuted to the order of the data's classes.")
        _permute(heads, [old.index(name) for name in new])
        return new
    text = "The head was trained for other classes (%s) than the data's (%s) and is reinitialized."
    log.warning(text, ", ".join(old[:5]), ", ".join(new[:5]))
    _initialize(heads)
    return new


def make_distillation(
    teacher: keras.Model | None, recipe: Recipe, names: Sequence[str] | None
) -> Distillation | None:
    """Return the distillation from a teacher: `"hard"` unless the recipe sets a kind."""
    if teacher is None:
        check(not recipe.distillation, "`teacher` must be a model, or `distillation` None.", None)
        return None
    names, teachers = names or (), class_names_of(teacher) or ()
    is_same = are_numbers(names) or are_numbers(teachers) or names == teachers
    rule = f"`teacher` must have the classes of the data, or the model, in order: {names}."
    check(is_same, rule, teachers)
    kind = recipe.distillation or "hard"
    return Distillation(teacher, kind, recipe.temperature, recipe.distillation_weight)


def compile_model(
    model: keras.Model,
    compiled: Mapping[str, Any],
    recipe: Recipe,
    data: TrainingData,
    teacher: Distillation | None,
    callbacks: Sequence[keras.callbacks.Callback],
) -> Evaluator:
    """Compile a model, and return an `Evaluator` of it: by the recipe, unless by the user.

    Raises a ValueError if callbacks set its learning rate, and that has a schedule.
    """
    check(bool(model.trainable_variables), "`model` must have a trainable variable.", model.name)
    arguments, task = dict(compiled), data.task
    if task is not None:
        loss = task.loss(recipe.label_smoothing, data.class_weight)
        arguments = {"loss": loss, "metrics": task.metrics(), **compiled}
    if teacher is not None and not isinstance(compiled.get("loss"), PerHead):
        arguments["loss"] = teacher.loss(model, as_loss(arguments["loss"]))
    if arguments["loss"] is not compiled.get("loss"):
        arguments["loss"].name = OPTIMIZER  # So that it is not the user's in a later run.
    if "optimizer" not in compiled:
        optimizer = make_optimizer(model, recipe, data.steps)
        # Keras goes by the policy of the outer model alone.
        is_half = any(layer.compute_dtype == "float16" for layer in sublayers(model))
        scaled = keras.optimizers.LossScaleOptimizer
        arguments["optimizer"] = scaled(optimizer, name=OPTIMIZER) if is_half else optimizer
    if taken := compiled.keys() & {"optimizer", "loss", "metrics", "weighted_metrics"}:
        name, names = type(arguments["optimizer"]).__name__, ", ".join(sorted(taken))
        log.warning("The model is compiled: its %s stay. The optimizer is %s.", names, name)
    # Again, if all is the user's: half precision scales the loss.
    model.compile(**arguments)
    setters = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
    names = [type(callback).__name__ for callback in callbacks if isinstance(callback, setters)]
    is_fixed = isinstance(optimizer_of(model).get_config()["learning_rate"], dict)
    rule = "`callbacks` must not set a learning rate that has a schedule: compile the model first."
    check(not (names and is_fixed), rule, names)
    loss = compiled["loss"] if task is None else task.loss()
    metrics = [arguments.get(name, []) for name in ("metrics", "weighted_metrics")]
    return Evaluator(model, loss, keras.tree.flatten(metrics))


def _permute(heads, order):
    for variable in (v for layer in heads for v in layer.weights):
        # All variables except LoRA's first factor have one column per class.
        if variable.name != "lora_kernel_a":
            value = keras.ops.convert_to_numpy(variable.value)
            # With one output for two classes, the other class has the negative logit.
            variable.assign(-value if value.shape[-1] == 1 else np.take(value, order, axis=-1))


def _initialize(heads):
    for layer in heads:
        rule = "`model` must have a classifier of the data's classes if it is quantized."
        check(layer.quantization_mode is None, rule, layer.name)
        fresh = type(layer).from_config(layer.get_config())
        fresh.build((None, layer.kernel.shape[0]))
        layer.set_weights(fresh.get_weights())
