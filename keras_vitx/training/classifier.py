"""What training reads of a model, once."""

from dataclasses import dataclass
from typing import Any

import keras

from keras_vitx.keras_internals import compile_arguments, sublayers
from keras_vitx.layers.block import Block
from keras_vitx.outputs import ACTIVATIONS, Outputs, class_names_of, layers_of, outputs_of
from keras_vitx.training.optimizer import OPTIMIZER


@dataclass(frozen=True)
class Classifier:
    """A model with what training needs to know of it and of the models inside it.

    Attributes:
        model: The model.
        compiled: What the user passed to `model.compile`; empty after an earlier call of `fit`.
        outputs: The kind and number of the outputs; None with a loss of the user's own.
        class_names: The class names of the model, or of a model that it ends in; None without.
        heads: The Dense layers with one output per class: one, or several in `DistilledHead`.
        blocks: The blocks in order.
    """

    model: keras.Model
    compiled: dict[str, Any]
    outputs: Outputs | None
    class_names: tuple[str, ...] | None
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
        layers = layers_of(model)
        blocks = tuple(layer for layer in layers if isinstance(layer, Block))
        return cls(model, compiled, outputs, class_names_of(model), _heads(model, layers), blocks)


def _heads(model, layers):
    """Return the Dense layers with one output per class in the last layer before an activation."""
    last = next(layer for layer in reversed(layers) if not isinstance(layer, ACTIVATIONS))
    parts = sublayers(last) if isinstance(last, keras.layers.Layer) else []
    classes = model.output_shape[-1]
    return tuple(x for x in parts if isinstance(x, keras.layers.Dense) and x.units == classes)
