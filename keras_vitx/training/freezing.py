"""Train the head of a model before the rest."""

from typing import Any

import keras

from keras_vitx.training.batches import labels_of
from keras_vitx.training.compiling import compile_for, compiled_by_user
from keras_vitx.training.devices.replicas import Replicate, share_of
from keras_vitx.training.head import classifiers
from keras_vitx.training.network import layers_of
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.resume import CountEpochs


def train_head(
    model: keras.Model,
    batches: Any,
    recipe: Recipe,
    steps: int,
    distillation: Any = None,
    **settings: Any,
) -> None:
    """Train the classifiers of `model` alone, for the `freeze_epochs` of a recipe.

    Args:
        model: The model, whose layers are trainable again in the end.
        batches: The training batches.
        recipe: The recipe.
        steps: Steps per epoch.
        distillation: As in `compile_for`.
        **settings: Further arguments of `model.fit`.

    Raises:
        ValueError: if the user compiled the model, whose optimizer is not for two trainings.
    """
    if compiled_by_user(model):
        raise ValueError(
            "`freeze_epochs` must be 0 for a compiled model. "
            f"Received: {recipe.schedule.freeze_epochs}. Train its head by `fit` of Keras."
        )
    heads = {id(variable) for head in classifiers(model) for variable in head.variables}
    frozen = [
        layer
        for layer in layers_of(model)
        if layer.trainable and not any(id(variable) in heads for variable in layer.variables)
    ]
    for layer in frozen:
        layer.trainable = False
    try:
        epochs = recipe.schedule.freeze_epochs
        recipe = recipe.but(epochs=epochs, cooldown_epochs=0, ema=None)
        compile_for(model, recipe, steps, lambda: labels_of(batches), distillation)
        model.fit(
            share_of(batches),
            epochs=epochs,
            shuffle=False,
            callbacks=[CountEpochs(batches), Replicate()],
            **settings,
        )
    finally:
        for layer in frozen:
            layer.trainable = True
