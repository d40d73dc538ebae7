"""What training changes in a model before its first step, from its settings to its compilation."""

import logging
import typing
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.keras_internals import compile_arguments, sublayers
from keras_vitx.losses import PerHead
from keras_vitx.outputs import class_names_of, layers_of, reordered
from keras_vitx.preprocessing import Preprocessing
from keras_vitx.text import shortened
from keras_vitx.training.evaluate import Evaluator
from keras_vitx.training.optimizer import AdamW, Muon, make_schedule
from keras_vitx.training.recipe import Precision, Recipe
from keras_vitx.training.resume import resumable_fit
from keras_vitx.training.source import TrainingData

Head = Literal["match", "keep", "fresh"]
log = logging.getLogger(__name__)

# Marks models compiled by a recipe, as opposed to by the user, also in saved files.
OPTIMIZER = "keras_vitx_recipe"


def apply_settings(model: keras.Model, recipe: Recipe) -> None:
    """Apply the settings of a recipe from `drop_path` to `precision` to `model`, in place.

    Call it before `compile`. `Recipe("mine", drop_path=0.1)` changes only stochastic depth.

    Raises:
        ValueError: if a setting does not apply to the model.
    """
    if recipe.remat is not None and not hasattr(model, "remat"):
        raise ValueError(
            f"`remat` must be None for a model that is not a `Chain`. Received: {recipe.remat}. "
            "Create its layers within `keras.RematScope` instead."
        )
    if recipe.crop_ratio is not None and getattr(model, "preprocessing", None) is None:
        raise ValueError(
            f"`crop_ratio` must be None without `preprocessing`. Received: {recipe.crop_ratio}."
        )
    if recipe.drop_path is not None:
        chains = [
            part for part in sublayers(model) if hasattr(part, "token_layout") and part.blocks
        ]
        if not chains:
            raise ValueError(
                "`drop_path` must be None for a model without a `Chain` of blocks. Received: "
                f"{recipe.drop_path} for {model.name!r}."
            )
        for chain in chains:
            chain.set_drop_path(recipe.drop_path, recipe.drop_path_schedule)
    if recipe.similarity is not None:
        set_similarity(model, recipe.similarity, recipe.similarity_depth or 1)
    if recipe.remat is not None:
        model.remat = recipe.remat
    if recipe.crop_ratio is not None:
        preprocessing = Preprocessing.of(model.preprocessing)
        model.preprocessing = preprocessing.replace(crop_ratio=recipe.crop_ratio)
    if recipe.precision is not None:
        set_precision(model, recipe.precision)


def set_similarity(model: keras.Model, weight: float, depth: int) -> None:
    """Set the weight of the similarity between maps in the loss, in place.

    Each of the first `depth` pairs of blocks has the weight `weight / depth` (DeepViT, Appendix A,
    Equation 6, whose B is `depth`). Raises a ValueError unless the blocks share their maps.
    """
    blocks = blocks_of(model)
    if not 1 <= depth < len(blocks):
        raise ValueError(
            "`similarity_depth` must be at least 1 and below the number of blocks, "
            f"{len(blocks)}. Received: {depth}."
        )
    missing = [b.name for b in blocks[1 : depth + 1] if not getattr(b, "receives_maps", False)]
    if weight and missing:
        raise ValueError(
            "`similarity` must be None for a model whose blocks receive no maps. Received: "
            f"{weight}, for {missing[0]!r} of {model.name!r}. Create the model with "
            f"similarity={weight}, similarity_depth={depth}."
        )
    for index, block in enumerate(blocks):
        if hasattr(block, "similarity"):
            block.similarity = weight / depth if 1 <= index <= depth else 0.0


def set_precision(model: keras.Model, precision: Precision) -> None:
    """Set the precision in which `model` computes; its variables stay in float32.

    The last layer, the classifier, also computes in float32.

    Args:
        model: A model, changed in place.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.

    Raises:
        ValueError: if `precision` is unknown, or not that of a quantized layer (`"mixed_float16"`).
    """
    precisions = typing.get_args(Precision)
    if precision not in precisions:
        raise ValueError(f"`precision` must be one of {precisions}. Received: {precision!r}.")
    classifier = set(map(id, sublayers(model.layers[-1])))
    layers = [layer for layer in sublayers(model) if id(layer) not in classifier]
    # A quantized layer stays so: its policy is `int8_from_float32`.
    schemes = ["".join(layer.dtype_policy.name.rpartition("_from_")[:2]) for layer in layers]
    policies = [keras.dtype_policies.get(scheme + precision) for scheme in schemes]
    for layer, policy in zip(layers, policies, strict=True):
        layer.dtype_policy = policy


def match_head(
    model: keras.Model, class_names: Sequence[str] | None, head: Head = "match"
) -> Literal["kept", "permuted", "fresh"]:
    """Match the head of `model` to a data set, set `model.class_names`, and return the change.

    `"match"` permutes the classifiers if the names are the same in another order, reinitializes
    them if the names differ, and keeps them otherwise. The result is also `"fresh"` for a head that
    was not in the checkpoint.
    """
    old, new = _names(model), None if class_names is None else tuple(class_names)
    outputs = model.output_shape[-1]
    # One output is the probability of the second of two classes.
    if new is not None and len(new) != (2 if outputs == 1 else outputs):
        new = None  # There are more outputs than labels.
    change = "fresh" if head == "fresh" else "kept"
    if head == "match" and old is not None and new is not None and old != new:
        if sorted(old) == sorted(new) and len(set(new)) == len(new):
            change = "permuted"
            log.warning("The head's classes were permuted to the order of the data's classes.")
        else:
            change = "fresh"
            log.warning(
                "The head was trained for other classes (%s) than the data's (%s) and is "
                'reinitialized. head="keep" keeps it.',
                shortened(old),
                shortened(new),
            )
    elif head == "match" and (old is None) != (new is None) and (old or _is_loaded(model)):
        log.warning(
            'The head was kept: whether its classes fit is unknown. head="fresh" reinitializes it.'
        )
    is_drawn = change == "fresh" or (change == "permuted" and outputs == 1)
    if is_drawn and any(getattr(x, "quantization_mode", None) for x in classifiers(model)):
        raise ValueError(
            "`head` must be 'keep' for a quantized classifier, whose kernel can't be changed. "
            f"Received: {head!r}, and other classes. Quantize the model after its training."
        )
    if change == "permuted":
        order = [old.index(name) for name in new]
        _permute(model, order)
        model.threshold = reordered(getattr(model, "threshold", None), order)
    elif change == "fresh":
        _initialize(model)
        model.threshold = None
    if new is not None:
        model.class_names = new
    if change == "kept" and getattr(model, "head_loaded", None) is False:
        # Not False from now on, since the next `fit` has a trained head.
        model.head_loaded, change = None, "fresh"
    return change


def train_head(model: keras.Model, data: TrainingData, **settings: Any) -> None:
    """Train only the classifiers for the recipe's `freeze_epochs`."""
    epochs = data.recipe.freeze_epochs
    if users_arguments(model):
        raise ValueError(f"`freeze_epochs` must be 0 for a compiled model. Received: {epochs}.")
    heads = {id(variable) for head in classifiers(model) for variable in head.variables}
    # What is frozen inside a layer, such as the kernels of LoRA, stays frozen.
    layers = sublayers(model)
    states = [(each, each.trainable) for each in (*layers, *model.variables)]
    for layer in layers:
        if heads.isdisjoint(map(id, layer.variables)):
            layer.trainable = False
    try:
        recipe = data.recipe.replace(epochs=epochs, cooldown_epochs=0, ema=None)
        compile_for(model, data._replace(recipe=recipe))
        resumable_fit(model, data.batches.train, epochs=epochs, directory=None, **settings)
    finally:
        # A layer sets all that is inside it, which comes after it.
        for each, trainable in states:
            each.trainable = trainable


def users_arguments(model: keras.Model) -> dict[str, Any]:
    """Return what the user passed to `model.compile`; empty after an earlier call of our `fit`."""
    arguments = compile_arguments(model)
    if getattr(arguments.get("optimizer"), "name", None) == OPTIMIZER:
        return {}
    return {name: value for name, value in arguments.items() if value is not None}


def compile_for(model: keras.Model, data: TrainingData) -> Evaluator:
    """Compile `model`, and return an `Evaluator` for validation, without label smoothing."""
    if arguments := users_arguments(model):
        text = "The model is compiled: its optimizer (%s), loss and metrics replace the recipe's."
        log.warning(text, type(model.optimizer).__name__)
    changes: dict[str, Any] = {}
    loss = arguments.get("loss")
    if loss is None:
        task = data.task
        loss, changes["loss"] = task.loss(), task.loss(data.recipe.label_smoothing)
        if "metrics" not in arguments:
            changes["metrics"] = task.metrics()
    if data.distillation is not None and not isinstance(loss, PerHead):
        changes["loss"] = data.distillation.loss(model, changes.get("loss", loss))
    if "optimizer" not in arguments:
        changes["optimizer"] = make_optimizer(model, data.recipe, data.steps)
    arguments |= changes
    if changes:
        model.compile(**arguments)
    metrics = keras.tree.flatten([arguments.get("metrics"), arguments.get("weighted_metrics")])
    return Evaluator(model, loss, [metric for metric in metrics if metric is not None])


def make_optimizer(
    model: keras.Model, recipe: Recipe, steps_per_epoch: int
) -> keras.optimizers.Optimizer:
    """Return the optimizer of a recipe, with its schedule.

    Args:
        model: The built model to train.
        recipe: The recipe.
        steps_per_epoch: Number of batches per epoch of `model.fit`, each of
            `batch_size / accumulate_steps` images.
    """
    accumulate_steps, ema = recipe.accumulate_steps, recipe.ema
    updates = recipe.all_epochs * steps_per_epoch / accumulate_steps
    if ema is not None and updates * (1 - ema) < 3:
        text = (
            "The moving average of the weights (ema=%g) spans about %.0f updates, but the run has "
            "%.0f: its result will be close to the initial weights. Set a smaller `ema`, or None."
        )
        log.warning(text, ema, 1 / (1 - ema), updates)
    arguments: dict[str, Any] = {
        "learning_rate": make_schedule(recipe, steps_per_epoch),
        "weight_decay": recipe.weight_decay,
        "epsilon": recipe.epsilon,
        "global_clipnorm": recipe.clip_norm,
        "use_ema": ema is not None,
        # Keras updates the average in every step, not in every update.
        "ema_momentum": (ema or 0.0) ** (1 / accumulate_steps),
        "gradient_accumulation_steps": accumulate_steps if accumulate_steps > 1 else None,
        "name": OPTIMIZER,
    }
    if recipe.layer_decay is not None:
        arguments["rate_factors"] = rate_factors(model, recipe.layer_decay)
    if recipe.algorithm == "muon":
        arguments["matrices"] = matrices_of(model)
        return Muon(adam_beta_1=recipe.beta_1, adam_beta_2=recipe.beta_2, **arguments)
    return AdamW(beta_1=recipe.beta_1, beta_2=recipe.beta_2, **arguments)


def rate_factors(model: keras.Model, decay: float) -> tuple[float, ...]:
    """Return the factor of the learning rate for each of `model.trainable_variables`.

    With L blocks, it is `decay ** (L + 1)` before the first block, `decay ** (L + 1 - i)` in block
    i (from 1) and in layers between it and the next, and 1 after the last block (BEiT, Appendix).
    In a model without blocks, each layer with weights counts as one.
    """
    layers = [x for x in layers_of(model) if getattr(x, "trainable_variables", ())]
    blocks = [i for i, layer in enumerate(layers) if hasattr(layer, "drop_path")]
    blocks = blocks or range(1, len(layers))
    last_block = max(blocks, default=0)
    depths = {}
    for index, layer in enumerate(layers):
        # Layers after the last block are one deeper.
        depth = sum(i <= index for i in blocks) + (index > last_block)
        for variable in layer.trainable_variables:
            depths.setdefault(id(variable), depth)
    deepest = max(depths.values())
    return tuple(decay ** (deepest - depths.get(id(v), deepest)) for v in model.trainable_variables)


def matrices_of(model: keras.Model) -> tuple[int, ...]:
    """Return the indices of the blocks' `Dense` kernels; without blocks, all but the last."""
    blocks = blocks_of(model)
    layers = [layer for parent in blocks or [model] for layer in sublayers(parent)]
    dense = [layer for layer in layers if isinstance(layer, keras.layers.Dense)]
    kernels = {id(layer.kernel) for layer in (dense if blocks else dense[:-1])}
    return tuple(i for i, v in enumerate(model.trainable_variables) if id(v) in kernels)


def _names(model):
    """Return the class names of a trained head; None if unknown."""
    names = class_names_of(model)
    # ImageNet checkpoints contain no class names.
    if names is None and _is_loaded(model) and model.output_shape[-1] == len(imagenet_classes()):
        names = tuple(synset for synset, _ in imagenet_classes())
    return names


def _is_loaded(model):
    return getattr(model, "head_loaded", False)


def classifiers(model: keras.Model) -> list[keras.layers.Dense]:
    """Return the Dense layers with one output per class: one, or several in `DistilledHead`."""
    last = layers_of(model)[-1]
    layers = [last, *(getattr(last, name, None) for name in getattr(last, "names", ()))]
    layers = [layer for layer in layers if isinstance(layer, keras.layers.Dense)]
    if not layers:
        raise ValueError(
            "`head` must be 'keep' for a model whose last layer is not a classifier. Received: a "
            f"model that ends in {last.name!r} ({type(last).__name__})."
        )
    return layers


def _permute(model, order):
    for variable in (v for layer in classifiers(model) for v in layer.weights):
        # All variables except LoRA's first factor have one column per class.
        if variable.name != "lora_kernel_a":
            value = keras.ops.convert_to_numpy(variable.value)
            # With one output for two classes, the other class has the negative logit.
            variable.assign(-value if value.shape[-1] == 1 else np.take(value, order, axis=-1))


def _initialize(model):
    for layer in classifiers(model):
        initializers = {
            "kernel": layer.kernel_initializer,
            "bias": layer.bias_initializer,
            "lora_kernel_b": keras.initializers.Zeros(),
        }
        for variable in layer.weights:
            if variable.name in initializers:
                variable.assign(initializers[variable.name](variable.shape, variable.dtype))


def blocks_of(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the blocks of a model in order, including those of nested models."""
    return [layer for layer in layers_of(model) if hasattr(layer, "drop_path")]
