"""Fine-tuning of an encoder for a task, and its score."""

from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vitx.language.glue import Examples, Task, check_examples, task_of
from keras_vitx.language.network import check_batch, classifier
from keras_vitx.language.optimizer import adamw
from keras_vitx.language.tokens import encode


class FineTuned(NamedTuple):
    """What `finetune` returns.

    Attributes:
        model: From encoded texts to logits, or to a value.
        score: The metric of the task on the validation texts, after the last epoch.
        history: `loss` per epoch.
    """

    model: keras.Model
    score: float
    history: dict[str, list[float]]


def finetune(
    network: keras.Model,
    tokenizer: Any,
    task: str | Task,
    train: Examples,
    validation: Examples,
    length: int = 128,
    epochs: int = 3,
    batch_size: int = 32,
    learning_rate: float = 3e-4,
    warmup: float = 0.1,
    dropout: float = 0.1,
    seed: int = 0,
    verbose: Any = "auto",
) -> FineTuned:
    """Train an encoder with a new head on a task, and measure it.

    The defaults are ELECTRA-small's, without its lower learning rates for the lower layers.
    The last epoch counts: the validation texts choose nothing.

    Args:
        network: A model of `BERT`, pre-trained or not, whose weights are changed in place.
        tokenizer: The tokenizer for its vocabulary.
        task: A name of `glue.TASKS`, or a `Task`.
        train: Labelled texts, of `glue.read_folder` or `glue.read_tfds`.
        validation: Labelled texts.
        length: Number of tokens per text; longer texts are cut.
        epochs: Number of passes over `train`.
        batch_size: Texts per step.
        learning_rate: Largest learning rate.
        warmup: Share of the steps in which the learning rate rises.
        dropout: Dropout rate in the head.
        seed: Seed of the head, of the order and of the dropout.
        verbose: As in `keras.Model.fit`.

    Raises:
        ValueError: if GLUE has no such task, the examples are not of the task, or the texts do
            not fit the network.
    """
    task = task_of(task)
    for examples in (train, validation):
        check_examples(task, examples)
    batch = encode(tokenizer, train.texts, train.pairs, length)
    check_batch(network, batch)
    keras.utils.set_random_seed(seed)
    model = classifier(network, task.outputs, dropout)
    steps = epochs * -(-len(train.labels) // batch_size)
    model.compile(
        adamw(learning_rate, steps, warmup),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True) if task.classes else "mse",
    )
    history = model.fit(
        batch, train.labels, batch_size=batch_size, epochs=epochs, verbose=verbose
    ).history
    return FineTuned(model, score(model, tokenizer, task, validation, length), history)


def score(
    model: keras.Model,
    tokenizer: Any,
    task: str | Task,
    examples: Examples,
    length: int = 128,
    batch_size: int = 64,
) -> float:
    """Return the metric of a task on labelled texts.

    Args:
        model: A model of `finetune` or `classifier`.
        tokenizer: The tokenizer for its vocabulary.
        task: A name of `glue.TASKS`, or a `Task`.
        examples: Labelled texts.
        length: Number of tokens per text; longer texts are cut.
        batch_size: Texts per step.
    """
    task = task_of(task)
    check_examples(task, examples)
    batch = encode(tokenizer, examples.texts, examples.pairs, length)
    outputs = model.predict(batch, batch_size=batch_size, verbose=0)
    return task.metric(examples.labels, np.asarray(outputs, "float32"))
