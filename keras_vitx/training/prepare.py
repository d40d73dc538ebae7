"""What training changes in a model before its first step, from its settings to its compilation."""

import logging
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.keras_internals import compile_arguments, sublayers
from keras_vitx.layers.block import Block
from keras_vitx.layers.sharing import SharedMapsBlock
from keras_vitx.losses import PerHead
from keras_vitx.outputs import Outputs, Task, class_names_of, is_chain, layers_of, outputs_of
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import shortened
from keras_vitx.training.evaluate import Evaluator
from keras_vitx.training.optimizer import AdamW, Muon, make_schedule
from keras_vitx.training.recipe import Precision, Recipe
from keras_vitx.training.source import are_numbers
from keras_vitx.training.targets import Distillation

log = logging.getLogger(__name__)

# Marks models compiled by a recipe, as opposed to by the user, also in saved files.
OPTIMIZER = "keras_vitx_recipe"


@dataclass(frozen=True)
class Classifier:
    """What training reads of a model and the models inside it, once.

    Attributes:
        model: The model.
        compiled: What the user passed to `model.compile`; empty after an earlier call of `fit`.
        outputs: The kind and number of the outputs; None with a loss of the user's own.
        heads: The Dense layers with one output per class: one, or several in `DistilledHead`.
        blocks: The blocks in order.
    """

    model: keras.Model
    compiled: dict[str, Any]
    outputs: Outputs | None
    heads: tuple[keras.layers.Dense, ...]
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, model: keras.Model) -> "Classifier":
        """Read a model; a ValueError if it is no classifier and has no loss of the user's own."""
        compiled = {k: v for k, v in compile_arguments(model).items() if v is not None}
        optimizer = compiled.get("optimizer")
        if isinstance(optimizer, keras.optimizers.Optimizer) and optimizer.name == OPTIMIZER:
            compiled = {}
        outputs = None if "loss" in compiled else outputs_of(model)
        return cls(model, compiled, outputs, heads_of(model), blocks_of(model))


def apply_settings(model: keras.Model, recipe: Recipe) -> None:
    """Apply the settings of a recipe from `drop_path` to `precision` to `model`, in place.

    Call it before `compile`. `Recipe("mine", drop_path=0.1)` changes only stochastic depth.

    Raises:
        ValueError: if a setting does not apply to the model.
    """
    chains = [part for part in sublayers(model) if is_chain(part) and part.blocks]
    if recipe.drop_path is not None and not chains:
        raise ValueError(
            f"`drop_path` must be None for a model without a `Chain` of blocks. Received: "
            f"{recipe.drop_path} for {model.name!r}."
        )
    if recipe.remat is not None and not is_chain(model):
        raise ValueError(
            f"`remat` must be None for a model that is not a `Chain`. Received: {recipe.remat}. "
            "Create its layers within `keras.RematScope` instead."
        )
    if recipe.drop_path is not None:
        for chain in chains:
            chain.set_drop_path(recipe.drop_path, recipe.drop_path_schedule)
    if recipe.similarity is not None:
        set_similarity(model, recipe.similarity, recipe.similarity_depth or 1)
    if recipe.remat is not None:
        model.remat = recipe.remat
    if recipe.crop_ratio is not None:
        preprocessing = ModelInput.of(model).preprocessing
        model.preprocessing = preprocessing.replace(crop_ratio=recipe.crop_ratio)
    if recipe.precision is not None:
        set_precision(model, recipe.precision)


def set_similarity(model: keras.Model, weight: float, depth: int) -> None:
    """Set the weight of the similarity between maps in the loss, in place.

    Each of the first `depth` pairs of blocks has the weight `weight / depth` (DeepViT, Appendix A,
    Equation 6, whose B is `depth`). Raises a ValueError unless the blocks share their maps.
    """
    blocks = blocks_of(model)
    compared = blocks[1 : depth + 1]
    are_shared = all(isinstance(one, SharedMapsBlock) and one.receives_maps for one in compared)
    if weight and not (len(compared) == depth and are_shared):
        raise ValueError(
            f"`similarity` must be None for a model without {depth + 1} blocks that share maps. "
            f"Received: {weight}, for {model.name!r}. Create the model with similarity={weight}, "
            f"similarity_depth={depth}."
        )
    for block in blocks:
        block.similarity = weight / depth if block in compared else 0.0


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
    model: keras.Model, class_names: Sequence[str] | None
) -> Literal["kept", "permuted", "fresh"]:
    """Match the head of `model` to a data set, set `model.class_names`, and return the change.

    The classifiers are permuted if the names of the classes are the same in another order,
    reinitialized if the names differ, and kept otherwise.
    """
    old, new = _trained_names(model), None if class_names is None else tuple(class_names)
    outputs = model.output_shape[-1]
    # One output is the probability of the second of two classes.
    if new is None or len(new) != (2 if outputs == 1 else outputs):
        return "kept"
    model.class_names = new
    if old is None or old == new:
        return "kept"
    if sorted(old) == sorted(new):
        log.warning("The head's classes were permuted to the order of the data's classes.")
        _permute(heads_of(model), [old.index(name) for name in new])
        return "permuted"
    text = "The head was trained for other classes (%s) than the data's (%s) and is reinitialized."
    log.warning(text, shortened(old), shortened(new))
    _initialize(heads_of(model))
    return "fresh"


def with_teacher(
    model: keras.Model,
    teacher: keras.Model | None,
    recipe: Recipe,
    class_names: Sequence[str] | None,
) -> Distillation | None:
    """Return the distillation from a teacher: `"hard"` unless the recipe sets a kind."""
    if teacher is None:
        if recipe.distillation is not None:
            raise ValueError(
                "`teacher` must be a model, or `distillation` None. Received: None, with "
                f"distillation={recipe.distillation!r}."
            )
        return None
    names, own = class_names_of(model), class_names_of(teacher)
    if names and own and names != own and not are_numbers(names) and not are_numbers(own):
        raise ValueError(
            "`teacher` must have the classes of the data in the same order, "
            f"({shortened(names)}). Received: ({shortened(own)})."
        )
    kind = recipe.distillation or "hard"
    return Distillation(teacher, kind, recipe.temperature, recipe.distillation_weight)


def compile_model(
    classifier: Classifier,
    task: Task | None,
    recipe: Recipe,
    steps: int,
    teacher: Distillation | None,
) -> Evaluator:
    """Compile a model with what its user did not; return an `Evaluator` without label smoothing."""
    model, arguments, changes = classifier.model, classifier.compiled, {}
    if arguments:
        text = "The model is compiled: its optimizer (%s), loss and metrics replace the recipe's."
        log.warning(text, type(model.optimizer).__name__)
    loss = arguments.get("loss")
    if task is not None:
        loss, changes["loss"] = task.loss(), task.loss(recipe.label_smoothing)
        changes["metrics"] = arguments.get("metrics", task.metrics())
    if teacher is not None and not isinstance(loss, PerHead):
        changes["loss"] = teacher.loss(model, changes.get("loss", loss))
    if "optimizer" not in arguments:
        changes["optimizer"] = make_optimizer(model, recipe, steps)
    arguments = arguments | changes
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
    layers = [
        x for x in layers_of(model) if isinstance(x, keras.layers.Layer) and x.trainable_variables
    ]
    blocks = [i for i, layer in enumerate(layers) if isinstance(layer, Block)]
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


def heads_of(model: keras.Model) -> tuple[keras.layers.Dense, ...]:
    """Return the Dense layers with one output per class in the last layer before an activation."""
    activations = (keras.layers.Activation, keras.layers.Softmax)
    layers = (layer for layer in reversed(layers_of(model)) if not isinstance(layer, activations))
    last = next(layers)
    parts = sublayers(last) if isinstance(last, keras.layers.Layer) else []
    classes = model.output_shape[-1]
    return tuple(x for x in parts if isinstance(x, keras.layers.Dense) and x.units == classes)


def blocks_of(model: keras.Model) -> tuple[Block, ...]:
    """Return the blocks of a model in order, including those of nested models."""
    return tuple(layer for layer in layers_of(model) if isinstance(layer, Block))


def _trained_names(model):
    """Return the class names of a trained head; None if unknown."""
    names = class_names_of(model)
    # ImageNet checkpoints contain no class names.
    is_loaded = getattr(model, "head_loaded", False)
    if names is None and is_loaded and model.output_shape[-1] == len(imagenet_classes()):
        names = tuple(synset for synset, _ in imagenet_classes())
    return names


def _permute(heads, order):
    for variable in (v for layer in heads for v in layer.weights):
        # All variables except LoRA's first factor have one column per class.
        if variable.name != "lora_kernel_a":
            value = keras.ops.convert_to_numpy(variable.value)
            # With one output for two classes, the other class has the negative logit.
            variable.assign(-value if value.shape[-1] == 1 else np.take(value, order, axis=-1))


def _initialize(heads):
    for layer in heads:
        if layer.quantization_mode is not None:
            raise ValueError(
                "`model` must have a classifier of the data's classes if it is quantized, as its "
                f"kernel can't be changed. Received: {layer.name!r} of others. Quantize the model "
                "after its training."
            )
        initializers = {
            "kernel": layer.kernel_initializer,
            "bias": layer.bias_initializer,
            "lora_kernel_b": keras.initializers.Zeros(),
        }
        for variable in layer.weights:
            if variable.name in initializers:
                variable.assign(initializers[variable.name](variable.shape, variable.dtype))
