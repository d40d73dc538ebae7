"""The optimizer that a recipe asks for."""

import keras

from keras_vitx.training.recipe import Recipe

# Marks models compiled by a recipe, as opposed to by the user, also in saved files.
OPTIMIZER = "keras_vitx_recipe"


def make_optimizer(
    model: keras.Model, recipe: Recipe, steps_per_epoch: int
) -> keras.optimizers.Optimizer:
    """Return AdamW with warm-up, cosine decay and weight decay of kernels only.

    Args:
        model: The built model that will be trained.
        recipe: The recipe with its settings.
        steps_per_epoch: Steps per epoch, for the length of the schedule.
    """
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0 if warmup else recipe.learning_rate,
        decay_steps=max(1, recipe.epochs * steps_per_epoch - warmup),
        alpha=recipe.final_learning_rate / recipe.learning_rate,
        warmup_target=recipe.learning_rate if warmup else None,
        warmup_steps=warmup,
    )
    optimizer = keras.optimizers.AdamW(
        schedule,
        weight_decay=recipe.weight_decay,
        global_clipnorm=recipe.clip_norm,
        name=OPTIMIZER,
    )
    optimizer.exclude_from_weight_decay(
        var_list=[variable for variable in model.trainable_variables if not is_decayed(variable)]
    )
    return optimizer


def is_decayed(variable: keras.Variable) -> bool:
    """Return whether weight decay applies to `variable`: only if it is a kernel.

    Biases, norms and LayerScale have one axis; tokens and position embeddings are
    recognized by their names.
    """
    return len(variable.shape) > 1 and variable.name not in ("embeddings", "token")
