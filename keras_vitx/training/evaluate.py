"""Evaluate a model on labeled images."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx.backend import restore_variables
from keras_vitx.checks import check_argument
from keras_vitx.data import load_dataset
from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.data.sources.names import numbers_of
from keras_vitx.files import write_csv
from keras_vitx.outputs import class_names_of, outputs_of, reordered, task_of
from keras_vitx.pixels import unpacked
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import shortened
from keras_vitx.training.batches import BatchTransform
from keras_vitx.training.devices import in_use
from keras_vitx.training.devices.replicas import Replicate, shard_of
from keras_vitx.training.scores import (
    best_threshold,
    confusion_of,
    draw_worst,
    predictions_of,
    rows_of,
    scores_of,
)
from keras_vitx.training.source import SplitName, are_numbers, checked, evaluation_split, labels_of


class Evaluator(keras.Model):
    """A wrapper that evaluates a model with other metrics, without recompiling it.

    All metrics use the sample weights: images of weight 0 (padding) do not count.

    Args:
        model: The model to evaluate.
        loss: A loss, its name, or a function `(y_true, y_pred)` that returns one value per image.
        metrics: Keras metrics or their names.
        order: Indices of the outputs in the order of the labels; None leaves the order.
        normalize: Whether the outputs of `order` are divided by their sum.
        flips: Whether the outputs are the mean of those of an image and of its mirror image.
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Any,
        metrics: Sequence[Any] = (),
        order: Sequence[int] | None = None,
        normalize: bool = False,
        flips: bool = False,
    ):
        super().__init__(autocast=False)
        self.model, self.order, self.normalize, self.flips = model, order, normalize, flips
        loss = keras.losses.get(loss)
        per_image = loss.call if isinstance(loss, keras.losses.Loss) else loss
        mean_loss = keras.metrics.MeanMetricWrapper(per_image, name="loss_per_image")
        objects = [mean_loss, *(m for m in metrics if isinstance(m, keras.metrics.Metric))]
        # Closures, because Keras would track metrics in attributes twice.
        self.reset = lambda: [metric.reset_state() for metric in objects]
        self.count = lambda: round(float(keras.ops.convert_to_numpy(mean_loss.count)))
        self.compile(loss=loss, weighted_metrics=[mean_loss, *metrics])

    def call(self, images):
        images = unpacked(images)
        outputs = self.model(images, training=False)
        if self.flips:
            outputs = (outputs + self.model(keras.ops.flip(images, 2), training=False)) / 2
        if self.order is None:
            return outputs
        if outputs.shape[-1] == 1:  # The probability of the second of two classes.
            return outputs if list(self.order) == [0, 1] else 1 - outputs
        outputs = keras.ops.take(outputs, self.order, axis=-1)
        return outputs / keras.ops.sum(outputs, -1, keepdims=True) if self.normalize else outputs

    def measure(
        self,
        dataset: Any,
        verbose: str | int = 0,
        callbacks: Sequence[keras.callbacks.Callback] = (),
    ) -> dict[str, float]:
        """Return the mean loss and the metrics over `dataset`, by name.

        Raises an OSError if none of its images can be decoded.
        """
        # Under TensorFlow, the first `evaluate` does not reset the metrics of training.
        self.reset()
        dataset, callbacks = shard_of(dataset, pad=True), [Replicate(), *callbacks]
        try:
            with getattr(dataset, "as_pixels", nullcontext)():
                results = self.evaluate(
                    dataset, verbose=verbose, callbacks=callbacks, return_dict=True
                )
        finally:
            restore_variables(self)
        errors = getattr(dataset, "unreadable", None)
        if errors and not self.count():
            raise OSError(f"no image of the data can be decoded: {next(iter(errors.values()))}")
        # Keras's own mean loss includes padding.
        results["loss"] = results.pop("loss_per_image")
        return results


def evaluate(
    model: keras.Model | Mapping[str, keras.Model],
    source: Any,
    split: SplitName | None = None,
    *,
    batch_size: int = 64,
    validation_split: float | Iterable[str] = 0.0,
    seed: int = 0,
    strict: bool = False,
    crop_ratio: float | None = None,
    restrict: bool = False,
    confusion: bool = False,
    scores: bool = False,
    predictions: bool = False,
    per_image: str | os.PathLike | None = None,
    flips: bool = False,
    wrong: str | os.PathLike | None = None,
    perturb: Callable[[Any, np.ndarray, int], np.ndarray] | None = None,
    verbose: str | int = 0,
) -> dict[str, Any]:
    """Evaluate `model` on labeled images, without changing the model.

    ```python
    kv.evaluate(model, "photos", validation_split=kv.training.held_out("runs/photos"))
    ```

    The loss and the metrics follow from the head and the labels: for class labels the plain cross
    entropy, the accuracy and, with more than five classes, the top-5 accuracy; for several labels
    per image the binary cross entropy and the binary accuracy at a threshold of 0.5; for other
    floats the mean squared and the mean absolute error.

    If both model and source have class names, labels are matched with outputs by name: the source
    may have another order, or only some of the classes. A model of 1,000 outputs without
    names has ImageNet's classes: directories may be named by WordNet synsets (ImageNet, ImageNet-A,
    ImageNet-R) or by the numbers 0 to 999 (ImageNet-V2).

    Args:
        model: A classifier of the zoo, or a Keras model that ends in one. Its attribute
            `threshold`, if it has one (`choose_threshold`), decides what it predicts. Several
            models by name, `{"CaiT": ..., "ViT": ...}`, are evaluated side by side.
        source: Any source that `fit` accepts.
        split: `"test"`, `"validation"` or `"train"`; None is the first of these that the source
            has. Your own batches have no splits.
        batch_size: Images per batch of a source.
        validation_split: Images to hold out and evaluate from a source without validation images:
            the names in `held_out`, those of a run, or a fraction. 0 holds out none.
        seed: Seed of a fraction, as in `fit`.
        strict: Whether an image that can't be decoded is an error; if not, it does not count.
        crop_ratio: Replaces that of the model's preprocessing; above 1, images are padded.
        restrict: Whether to use only the outputs of the source's classes, as is usual for the 200
            classes of ImageNet-A and ImageNet-R.
        confusion: Whether to return the confusion matrix. This, the next three and `wrong` predict
            all images a second time.
        scores: Whether to compute precision, recall, F1 and the area under the ROC curve, means
            over the classes, by scikit-learn.
        predictions: Whether to return all labels and probabilities.
        per_image: Path of a CSV file with a row per image, those whose label has the lowest
            probability first: the file name or index, label and prediction, whether it is right,
            and the probability of the label and of each class.
        flips: Whether to predict the mean of the outputs for an image and its mirror image.
        wrong: Path of a figure of the 16 images whose label has the lowest probability.
        perturb: A function that changes the images of each batch, such as those of
            `keras_vitx.robustness`. Its arguments are the images, the indices of the outputs of
            their labels, and the index of the batch.
        verbose: As in `keras.Model.evaluate`.

    Returns:
        A dictionary of `"split"` (`"batches"` for your own), `"images"`, their number,
        `"images_per_second"`, from the second batch on, None for fewer than three batches,
        `"loss"`, and the metrics: of `"accuracy"`, `"top_5_accuracy"`, `"binary_accuracy"` and
        `"mean_absolute_error"`. With `scores`, also `"precision"`, `"recall"`, `"f1"` and `"auc"`.
        With `confusion`, also `"class_accuracy"`, the mean of the accuracies of the classes;
        `"confusion"`, counts (classes of the images, predicted classes), for
        `keras_vitx.analysis.plot_confusion`; `"class_names"`; and `"per_class"`, a row per class
        that has images, of `"class"`, `"images"`, `"accuracy"` (the fraction of its images that
        were predicted), `"precision"` (the fraction of its predictions that were right, None
        without any) and `"most_confused_with"`, the most frequent wrong prediction, or None. With
        `predictions`, `"labels"`, integers (n,) or 0 and 1 (n, classes), `"probabilities"`,
        (n, classes), and `"class_names"`. For several models, such a dictionary by name.

    Raises:
        ValueError: if the model has no classifier, or the data fit neither it nor the arguments.
        OSError: if the data can't be read.
    """
    if isinstance(model, Mapping):
        return _side_by_side(dict(model), source, locals())
    outputs = outputs_of(model)
    options = {"validation_split": validation_split, "seed": seed, "strict": strict}
    split, batches, class_names = evaluation_split(
        source, model, split, batch_size, crop_ratio, **options
    )
    first_labels = labels_of(batches)
    task = task_of(outputs, first_labels)
    order, names = _match_outputs(model, class_names, max(outputs.classes, 2))
    if restrict:
        if order is None or outputs.kind == "sigmoid":
            raise ValueError(
                "`restrict` must be False without one class per image, and class names of both "
                "model and source. Received: True."
            )
        order, names = order[: len(class_names)], names[: len(class_names)]
        task = replace(task, outputs=outputs._replace(classes=len(order)))
    if confusion and task.kind not in ("classes", "distributions", "binary"):
        raise ValueError(
            f"`confusion` must be False without one class per image. Received: a {task.kind} task."
        )
    if task.kind == "regression" and (scores or predictions or per_image or wrong):
        raise ValueError(
            "`scores`, `predictions`, `per_image` and `wrong` must not be set without classes. "
            "Received: a regression task."
        )
    if perturb is not None:
        if not isinstance(batches, keras.utils.PyDataset) or in_use().replicas > 1:
            raise ValueError(
                "`source` must be a source or a `keras.utils.PyDataset` with `perturb`, on one "
                f"device. Received: {type(batches).__name__}, on {in_use().count} devices."
            )
        batches = BatchTransform(batches, _perturbation(perturb, order))
    threshold = getattr(model, "threshold", None)
    if threshold is not None and task.kind != "multi-label" and max(outputs.classes, 2) != 2:
        raise ValueError(
            "`model.threshold` must be None without two classes or several labels per image. "
            f"Received: {threshold} for {outputs.classes} outputs."
        )
    threshold = reordered(threshold, order)
    metrics = task.metrics(threshold)
    normalize = restrict and outputs.kind == "softmax"
    evaluator = Evaluator(model, task.loss(), metrics, order, normalize, flips)
    speed = _Speed()
    metrics = evaluator.measure(checked(batches, task), verbose, [speed])
    results = {
        "split": split,
        "images": evaluator.count(),
        "images_per_second": speed.result(len(first_labels)),
        **metrics,
    }
    if confusion or scores or predictions or per_image is not None or wrong is not None:
        found, worst = predictions_of(evaluator, batches, task)
        if confusion:
            results |= confusion_of(found, names, threshold)
        if scores:
            results |= scores_of(found, threshold)
        if predictions:
            results |= {"labels": found[0], "probabilities": found[1], "class_names": tuple(names)}
        if per_image is not None:
            files = _image_names(batches, len(found[0]))
            write_csv(rows_of(found, files, names, threshold), per_image)
        if wrong is not None:
            draw_worst(worst, names, ModelInput.of(model).preprocessing, wrong)
    return results


def choose_threshold(
    model: keras.Model,
    source: Any,
    split: SplitName | None = "validation",
    *,
    metric: Literal["f1", "accuracy"] = "f1",
    **options: Any,
) -> float | tuple[float, ...]:
    """Choose and return `model.threshold` on validation images; `evaluate` then predicts by it.

    ```python
    kv.training.choose_threshold(model, "photos", validation_split=kv.training.held_out(run))
    kv.evaluate(model, "photos_of_another_day")
    ```

    A model of several labels per image has a threshold per class, another that of the second of its
    two classes. It is stored with the model.

    Args:
        model: A classifier with independent classes, or of two classes.
        source, split: As in `evaluate`. Choose on images that are neither trained on nor tested.
        metric: What is best at the threshold: `"f1"` or `"accuracy"`.
        **options: Further arguments of `evaluate`.

    Raises:
        ValueError: if the model predicts one of more than two classes, or as `evaluate`.
    """
    check_argument("metric", metric, Literal["f1", "accuracy"])
    before, model.threshold = getattr(model, "threshold", None), None
    try:
        found = evaluate(model, source, split, predictions=True, **options)
    finally:
        model.threshold = before
    labels, values = found["labels"], found["probabilities"]
    if labels.ndim == 1 and values.shape[1] != 2:
        raise ValueError(
            "`model` must predict two classes or several labels per image. Received: one of "
            f"{values.shape[1]} classes."
        )
    if labels.ndim == 1:
        threshold = best_threshold(labels, values[:, 1], metric)
    else:
        columns = zip(labels.T, values.T, strict=True)
        threshold = tuple(best_threshold(*column, metric) for column in columns)
    names, own = found["class_names"], class_names_of(model) or ()
    order = [names.index(name) for name in own] if sorted(own) == sorted(names) else None
    model.threshold = reordered(threshold, order)
    return model.threshold


def _side_by_side(models, source, arguments):
    """Return the results of each model on the same images."""
    paths = [name for name in ("wrong", "per_image") if arguments.pop(name) is not None]
    if paths:
        raise ValueError(f"`{paths[0]}` must be None for several models, which share a path.")
    if isinstance(source, (str, os.PathLike)):
        names = ("validation_split", "seed", "strict")
        source = load_dataset(source, **{name: arguments[name] for name in names})
    arguments = {name: arguments[name] for name in arguments.keys() - {"model", "source"}}
    return {name: evaluate(model, source, **arguments) for name, model in models.items()}


def _image_names(batches, count):
    """Return the names of the images that were evaluated: of files, or indices."""
    split = getattr(batches, "split", None)
    if split is None:
        return [str(index) for index in range(count)]
    unreadable = getattr(batches, "unreadable", {})
    return [n for i, n in enumerate(split.names()) if split.id(i) not in unreadable]


def _perturbation(perturb, order):
    """Return `perturb` as a transform of batches; `order` has the output of each label, if any."""

    def transform(images, labels, index):
        outputs = np.asarray(labels)
        if order is not None and outputs.ndim == 1:
            outputs = np.asarray(order)[outputs]
        return perturb(images, outputs, index), labels

    return transform


class _Speed(keras.callbacks.Callback):
    """Measure images per second, without the first batch, in which Keras compiles."""

    def on_test_begin(self, logs=None):
        self.times = []

    def on_test_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter())

    def result(self, batch_size):
        if len(self.times) < 3:
            return None
        # Without the last batch, which may be smaller and is then compiled again.
        return batch_size * (len(self.times) - 2) / (self.times[-2] - self.times[0])


def _match_outputs(
    model: keras.Model, labels: Sequence[str] | None, classes: int
) -> tuple[list[int] | None, tuple[str, ...]]:
    """Return the outputs' indices in the order of the labels, then the others, and their names.

    Labels are matched by the names of the outputs, else by number if they are numbers, else, if
    there is one per output, in their order, which is None. It is also None for numbers from 0.
    """
    outputs = class_names_of(model)
    if outputs is None and labels is not None and model.output_shape[-1] == len(imagenet_classes()):
        synsets = tuple(synset for synset, _ in imagenet_classes())
        outputs = synsets if set(labels) <= set(synsets) else None
    names = outputs or tuple(map(str, range(classes)))
    numbers = None if labels is None else numbers_of(labels)
    if labels is None or (are_numbers(labels) and not set(labels) <= set(names)):
        return None, names if len(names) == classes else tuple(map(str, range(classes)))
    if not set(labels) <= set(names) and numbers:
        by_number = numbers_of(names) or range(classes)
        names = [
            labels[numbers.index(n)] if n in numbers else names[i] for i, n in enumerate(by_number)
        ]
    in_order = not numbers or list(labels) == sorted(labels)
    if outputs is None and in_order and len(labels) == classes:
        return None, tuple(labels)
    if unknown := [name for name in labels if name not in names]:
        known = shortened(outputs or ["none, as it has no `class_names`"], 5)
        next_step = "" if outputs else " Set `model.class_names`, in the order of its outputs."
        raise ValueError(
            f"`source` must have only classes that the model knows: {known}. "
            f"Received: {shortened(unknown, 5)}.{next_step}"
        )
    order = [names.index(name) for name in labels]
    order += sorted(set(range(len(names))) - set(order))
    is_same = are_numbers(labels) and order == list(range(len(names)))
    return None if is_same else order, tuple(names[i] for i in order)
