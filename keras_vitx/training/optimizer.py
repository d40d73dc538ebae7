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
    times, settings = recipe.schedule, recipe.optimizer
    warmup = round(times.warmup_epochs * steps_per_epoch)
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=times.warmup_learning_rate if warmup else times.peak,
        decay_steps=max(1, times.epochs * steps_per_epoch - warmup),
        alpha=min(times.final_learning_rate, times.peak) / times.peak,
        warmup_target=times.peak if warmup else None,
        warmup_steps=warmup,
    )
    optimizer = keras.optimizers.AdamW(
        schedule,
        weight_decay=settings.weight_decay,
        beta_1=settings.beta_1,
        beta_2=settings.beta_2,
        epsilon=settings.epsilon,
        global_clipnorm=settings.clip_norm,
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
