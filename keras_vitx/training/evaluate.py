"""Evaluate a model on labeled images."""

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.backend import restore_variables
from keras_vitx.checks import check
from keras_vitx.data.loading import ImageBatches
from keras_vitx.data.predictions import unnamed_classes
from keras_vitx.data.sources.names import are_numbers, numbers_of
from keras_vitx.outputs import class_names_of, outputs_of
from keras_vitx.pixels import unpack_images
from keras_vitx.text import shorten
from keras_vitx.training.batches import Batches, as_batches, labels_and_size, length_of
from keras_vitx.training.devices import in_use
from keras_vitx.training.devices.replicas import Replicate, pass_of, shard_of
from keras_vitx.training.source import SplitName, evaluation_split
from keras_vitx.training.task import Task, task_of


class LossPerImage(keras.metrics.Mean):
    """The mean of weight times loss over all images, of which those of weight 0 do not count.

    As Keras's own loss, but for padding and for images that can't be read.
    """

    def __init__(self, loss: Callable):
        super().__init__("loss_per_image", "float32")
        self.loss = loss

    def update_state(self, y_true, y_pred, sample_weight=None):
        losses = ops.cast(self.loss(y_true, y_pred), "float32")
        count = ops.shape(y_pred)[0]
        if len(losses.shape):
            losses = ops.mean(ops.reshape(losses, (count, -1)), -1)
        else:  # One number per batch, as Dice's.
            losses = ops.broadcast_to(losses, (count,))
        weights = ops.ones_like(losses) if sample_weight is None else sample_weight
        weights = ops.cast(ops.reshape(weights, (-1,)), "float32")
        super().update_state(losses * weights, ops.cast(weights != 0, "float32"))


class Evaluator(keras.Model):
    """A wrapper that evaluates a model with other metrics, without recompiling it.

    All metrics use the sample weights: images of weight 0 (padding) do not count.

    Args:
        model: The model to evaluate.
        loss: A loss, its name, or a function `(y_true, y_pred)` that returns one value per image.
        metrics: Keras metrics or their names.
        order: Indices of the outputs in the order of the labels; None leaves the order.
        normalize: Whether the outputs of `order` are divided by their sum.
    """

    def __init__(
        self,
        model: keras.Model,
        loss: keras.losses.Loss | Callable | str,
        metrics: Sequence[Any] = (),
        order: Sequence[int] | None = None,
        normalize: bool = False,
    ):
        super().__init__(autocast=False)
        self.model, self.order, self.normalize = model, order, normalize
        loss = keras.losses.get(loss)
        per_image = loss.call if isinstance(loss, keras.losses.Loss) else loss
        mean_loss = LossPerImage(per_image)
        objects = [mean_loss, *(m for m in metrics if isinstance(m, keras.metrics.Metric))]
        # Closures, because Keras would track metrics in attributes twice.
        self.reset = lambda: [metric.reset_state() for metric in objects]
        self.count = lambda: round(float(ops.convert_to_numpy(mean_loss.count)))
        self.compile(weighted_metrics=[mean_loss, *metrics])

    def call(self, images):
        outputs = self.model(unpack_images(images), training=False)
        if self.order is None:
            return outputs
        if outputs.shape[-1] == 1:  # The probability of the second of two classes.
            return outputs if list(self.order) == [0, 1] else 1 - outputs
        outputs = ops.take(outputs, self.order, axis=-1)
        return outputs / ops.sum(outputs, -1, keepdims=True) if self.normalize else outputs

    def compute_loss(self, *args, **kwargs):
        # `LossPerImage` has it; Keras's own multiplies weights and losses of other shapes.
        return ops.zeros(())

    def measure(self, dataset: Any, verbose: int = 0) -> dict[str, float]:
        """Return the mean loss and the metrics over `dataset`, by name.

        Raises an OSError if none of its images can be decoded.
        """
        # Under TensorFlow, the first `evaluate` does not reset the metrics of training.
        self.reset()
        batches = shard_of(as_batches(dataset), pad=True)
        try:
            results = self.evaluate(
                pass_of(batches),
                steps=length_of(batches),  # Else Keras warns of its end.
                verbose=verbose,
                callbacks=[Replicate()],
                return_dict=True,
            )
        finally:
            restore_variables(self)
        if isinstance(batches, ImageBatches) and batches.loader.unreadable and not self.count():
            error = min(batches.loader.unreadable.values())
            raise OSError(f"no image of the data can be decoded: {error}")
        # Keras's own mean loss includes padding.
        results["loss"] = results.pop("loss_per_image")
        # JAX finds the right class among the best five of NaN.
        return results if results["loss"] == results["loss"] else dict.fromkeys(results, math.nan)


def evaluate(
    model: keras.Model,
    source: Any,
    split: SplitName | None = None,
    *,
    batch_size: int = 64,
    crop_ratio: float | None = None,
    restrict: bool = False,
    perturb: Callable[[Any, np.ndarray, int], np.ndarray] | None = None,
    predictions: bool = False,
) -> dict[str, Any]:
    """Evaluate `model` on labeled images, without changing the model.

    The loss and the metrics follow from the head and the labels: for class labels the plain cross
    entropy, the accuracy and, with more than five classes, the top-5 accuracy; for several labels
    per image the binary cross entropy and the binary accuracy at 0.5; for other floats the mean
    squared and the mean absolute error. Batches with weights have the mean of weight times loss.

    If both model and source have class names, labels are matched with outputs by name: the source
    may have another order, or only some of the classes. A model of 1,000 outputs without
    names has ImageNet's classes: directories may be named by WordNet synsets (ImageNet, ImageNet-A,
    ImageNet-R) or by the numbers 0 to 999 (ImageNet-V2).

    Args:
        model: A classifier of the zoo, or a Keras model that ends in one.
        source: Any source that `fit` accepts.
        split: `"test"`, `"validation"` or `"train"`; None is the first of these that the source
            has. Your own batches have no splits.
        batch_size: Images per batch of a source.
        crop_ratio: Replaces that of the model's preprocessing; above 1, images are padded.
        restrict: Whether to use only the outputs of the source's classes, as is usual for the 200
            classes of ImageNet-A and ImageNet-R.
        perturb: A function that changes the images of each batch, such as those of
            `keras_vitx.robustness`. Its arguments are the images, the indices of the outputs of
            their labels, and the index of the batch.
        predictions: Whether to return labels and probabilities; all images are predicted twice.

    Returns:
        A dictionary of `"split"` (`"batches"` for your own), `"images"`, the number of images of a
        weight other than 0, `"loss"`, and the metrics: of `"accuracy"`, `"top_5_accuracy"`,
        `"binary_accuracy"` and `"mean_absolute_error"`. With `predictions`, also `"labels"`,
        integers (n,) or 0 and 1 (n, classes), `"probabilities"`, (n, classes), at least two, and
        `"class_names"`, for the metrics of scikit-learn.

    Raises:
        ValueError: if the model has no classifier, or the data fit neither it nor the arguments.
        OSError: if the data can't be read.
    """
    outputs = outputs_of(model)
    split, batches, class_names = evaluation_split(
        source, model, split, batch_size, crop_ratio, pixels=perturb is None
    )
    names, count = class_names_of(model), max(outputs.classes, 2)
    if names is None and class_names is not None:
        synsets = tuple(synset for synset, _ in unnamed_classes(count))
        names = synsets if set(class_names) <= set(synsets) else None
    order = order_of(class_names, names, count)
    numbers = tuple(map(str, range(count)))
    if order is None:
        names = names or (class_names if len(class_names or ()) == count else numbers)
    else:
        names = (*class_names, *((names or numbers)[i] for i in order[len(class_names) :]))
    if restrict:
        rule = "`restrict` must be False without class names of both model and source."
        check(order is not None, rule, restrict)
        order, names = order[: len(class_names)], names[: len(class_names)]
        outputs = outputs._replace(classes=len(order))
    task = task_of(outputs, labels_and_size(batches)[0])
    rule = "`predictions` must be False for regression."
    check(not predictions or task.kind != "regression", rule, predictions)
    if perturb is not None:
        replicas = in_use().replicas
        check(replicas == 1, "`perturb` must be None on several devices.", replicas)
        batches = batches.map(functools.partial(_perturb, perturb, order))
    normalize = restrict and outputs.kind == "softmax"
    evaluator = Evaluator(model, task.loss(), task.metrics(), order, normalize)
    shows_progress = keras.config.is_interactive_logging_enabled() and sys.stdout.isatty()
    metrics = evaluator.measure(batches, verbose=int(shows_progress))
    results = {"split": split, "images": evaluator.count(), **metrics}
    if predictions:
        labels, probabilities = _predictions_of(evaluator, batches, task)
        results |= {"labels": labels, "probabilities": probabilities, "class_names": tuple(names)}
    return results


def _predictions_of(
    model: keras.Model, batches: Batches, task: Task
) -> tuple[np.ndarray, np.ndarray]:
    """Return all labels, and the probabilities of at least two classes."""
    parts = []
    for images, labels, *weights in pass_of(batches):
        outputs = ops.convert_to_tensor(model.predict_on_batch(images))
        values = ops.convert_to_numpy(task.outputs.probabilities(outputs))
        if values.shape[1] == 1:
            values = np.concatenate([1 - values, values], axis=1)
        labels = ops.convert_to_numpy(labels)
        if task.kind == "distributions":
            labels = labels.argmax(-1)
        if task.kind != "multi-label":
            labels = labels.reshape(-1).astype("int64")
        real = ops.convert_to_numpy(weights[0]) > 0 if weights else slice(None)
        parts.append((labels[real], values[real]))
    labels, probabilities = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return labels, probabilities


def _perturb(perturb, order, index, batch):
    """Change the images of a batch; `order` has the output of each label, if any."""
    images, labels, *weights = batch
    outputs = np.asarray(labels)
    if order is not None and outputs.ndim == 1:
        outputs = np.asarray(order)[outputs]
    return perturb(images, outputs, index), labels, *weights


def order_of(
    labels: Sequence[str] | None, names: Sequence[str] | None, count: int
) -> list[int] | None:
    """Return the indices of the outputs of labels, then the others; None is the order as it is.

    | names of the labels | names of the `count` outputs | order |
    |---|---|---|
    | none, or "0", "1", ... | none, or others | as it is |
    | one per output, numbers sorted as text | none | as it is |
    | others | all of these, and perhaps more | by name |
    | numbers | none, or not all of these | by number, of names that are numbers by their value |

    Raises:
        ValueError: if a label has no output.
    """
    known = {name: index for index, name in enumerate(names or ())}
    if labels is None or (are_numbers(labels) and not known.keys() >= set(labels)):
        return None
    keys, numbers = labels, numbers_of(labels)
    is_sorted = not numbers or list(labels) == sorted(labels)
    if names is None and len(labels) == count and is_sorted:
        return None
    if numbers and not known.keys() >= set(labels):
        keys, values = numbers, numbers_of(known) or range(count)
        known = {number: index for index, number in enumerate(values)}
    unknown = [label for label, key in zip(labels, keys, strict=True) if key not in known]
    text = shorten(names or ["none, as it has no `class_names`; set them"], 5)
    rule = f"`source` must have only classes that the model knows: {text}."
    check(not unknown, rule, shorten(unknown, 5))
    rule = "`model.class_names` must be different names."
    check(names is None or len({*names}) == len(names), rule, names)
    order = [known[key] for key in keys]
    return order + sorted(set(range(count)) - set(order))
