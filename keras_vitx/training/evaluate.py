"""Evaluate a model on labeled images."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.outputs import class_names_of, outputs_of, task_of
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import shortened
from keras_vitx.training.batches import (
    BatchTransform,
    SplitName,
    are_numbers,
    checked,
    evaluation_split,
    labels_of,
)
from keras_vitx.training.devices import in_use
from keras_vitx.training.devices.replicas import Replicate, shard_of
from keras_vitx.training.scores import confusion_of, draw_worst, predictions_of, scores_of


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
        loss: Any,
        metrics: Sequence[Any] = (),
        order: Sequence[int] | None = None,
        normalize: bool = False,
    ):
        super().__init__()
        self.model, self.order, self.normalize = model, order, normalize
        loss = keras.losses.get(loss)
        per_image = loss.call if isinstance(loss, keras.losses.Loss) else loss
        mean_loss = keras.metrics.MeanMetricWrapper(per_image, name="loss_per_image")
        objects = [mean_loss, *(m for m in metrics if isinstance(m, keras.metrics.Metric))]
        # Closures, because Keras would track metrics in attributes twice.
        self.reset = lambda: [metric.reset_state() for metric in objects]
        self.count = lambda: round(float(keras.ops.convert_to_numpy(mean_loss.count)))
        self.compile(loss=loss, weighted_metrics=[mean_loss, *metrics])

    def call(self, images):
        outputs = self.model(images, training=False)
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
            results = self.evaluate(dataset, verbose=verbose, callbacks=callbacks, return_dict=True)
        finally:  # Under JAX, an error of the data would leave the model without its variables.
            getattr(self, "jax_state_sync", lambda: None)()
        errors = getattr(dataset, "unreadable", None)
        if errors and not self.count():
            raise OSError(f"no image of the data can be decoded: {next(iter(errors.values()))}")
        # Keras's own mean loss includes padding.
        results["loss"] = results.pop("loss_per_image")
        return results


def evaluate(
    model: keras.Model,
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
    wrong: str | os.PathLike | None = None,
    perturb: Callable[[Any, np.ndarray, int], np.ndarray] | None = None,
    verbose: str | int = 0,
) -> dict[str, Any]:
    """Evaluate `model` on labeled images, without changing the model.

    All images are evaluated, or those of one split if the source has several. To evaluate those
    that a run held out from a source without splits:

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
        model: A classifier of the zoo, or a Keras model that ends in one.
        source: Any source that `fit` accepts.
        split: `"test"`, `"validation"` or `"train"`; None is the first of these that the source
            has. Your own batches have no splits.
        batch_size: Images per batch of a source.
        validation_split: Images to hold out and evaluate from a source without validation images:
            the names in `held_out`, or a fraction. 0 holds out none.
        seed: Seed of a fraction, as in `fit`.
        strict: Whether an image that can't be decoded is an error.
        crop_ratio: Replaces that of the model's preprocessing; above 1, images are padded.
        restrict: Whether to use only the outputs of the source's classes, as is usual for the 200
            classes of ImageNet-A and ImageNet-R.
        confusion: Whether to return the confusion matrix. This and the next two predict all images
            a second time.
        scores: Whether to compute precision, recall, F1 and the area under the ROC curve, means
            over the classes, by scikit-learn.
        wrong: Path of a figure of the 16 images whose label has the lowest probability.
        perturb: A function that changes the images of each batch, such as those of
            `keras_vitx.robustness`. Its arguments are the images, the indices of the outputs of
            their labels, and the index of the batch.
        verbose: As in `keras.Model.evaluate`.

    Returns:
        A dictionary of `"split"`, the evaluated split (`"batches"` for your own); `"images"`, the
        number of images; `"images_per_second"`, from the second batch on, None for fewer than three
        batches; `"loss"`; and the metrics by name, of `"accuracy"`, `"top_5_accuracy"`,
        `"binary_accuracy"` and `"mean_absolute_error"`. With `scores`, also `"precision"`,
        `"recall"`, `"f1"` and `"auc"`. With `confusion`, also `"class_accuracy"`, the mean of the
        accuracies of the classes; `"confusion"`, the counts (classes, classes) of predicted classes
        (columns) by class of the images (rows), for `keras_vitx.analysis.plot_confusion`;
        `"class_names"`, the names of both; and `"per_class"`, one row per class that has images, of
        `"class"`, `"images"`, `"accuracy"` (the fraction of its images that were predicted),
        `"precision"` (the fraction of its predictions that were right, None without predictions)
        and `"most_confused_with"`, the most frequent wrong prediction, or None.

    Raises:
        ValueError: if the model has no classifier or the data don't fit it; or for `confusion`
            without one class per image, `crop_ratio` with your own batches, `perturb` with batches
            without an index, and `restrict` without class names or with independent outputs.
        OSError: if the data can't be read.
    """
    outputs = outputs_of(model)
    options = {"validation_split": validation_split, "seed": seed, "strict": strict}
    split, batches, class_names = evaluation_split(
        source, model, split, batch_size, crop_ratio, **options
    )
    task = task_of(outputs, labels_of(batches))
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
    if task.kind == "regression" and (scores or wrong is not None):
        raise ValueError(
            "`scores` must be False and `wrong` None without classes. Received: a regression task."
        )
    if perturb is not None:
        if not isinstance(batches, keras.utils.PyDataset) or in_use().replicas > 1:
            raise ValueError(
                "`source` must be a source or a `keras.utils.PyDataset` with `perturb`, on one "
                f"device. Received: {type(batches).__name__}, on {in_use().count} devices."
            )
        batches = Perturbed(batches, perturb, order)
    metrics = task.metrics(top_5=True)
    if getattr(source, "multiple_labels", False):
        metrics = [keras.metrics.MeanMetricWrapper(is_any_label, name="accuracy")]
    normalize = restrict and outputs.kind == "softmax"
    evaluator, speed = Evaluator(model, task.loss(), metrics, order, normalize), _Speed()
    metrics = evaluator.measure(checked(batches, task), verbose, [speed])
    results = {
        "split": split,
        "images": evaluator.count(),
        "images_per_second": speed.result(len(labels_of(batches))),
        **metrics,
    }
    if confusion or scores or wrong is not None:
        predictions, worst = predictions_of(evaluator, batches, task)
        if confusion:
            results |= confusion_of(predictions, names)
        if scores:
            results |= scores_of(predictions)
        if wrong is not None:
            draw_worst(worst, names, ModelInput.of(model).preprocessing, wrong)
    return results


class Perturbed(BatchTransform):
    """Batches changed by `perturb`; `order`, if any, has the index of the output of each label."""

    def __init__(self, batches: Any, perturb: Callable, order: Sequence[int] | None):
        super().__init__(batches)
        self.perturb, self.order = perturb, order

    def transform(self, images, labels, index):
        outputs = np.asarray(labels)
        if self.order is not None and outputs.ndim == 1:
            outputs = np.asarray(self.order)[outputs]
        return self.perturb(images, outputs, index), labels


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


def is_any_label(labels: Any, outputs: Any) -> Any:
    """Return, per image, whether the predicted class is one of its labels (above 0)."""
    best = keras.ops.argmax(outputs, axis=-1)[:, None]
    return keras.ops.cast(keras.ops.take_along_axis(labels, best, axis=-1)[:, 0] > 0, "float32")


def _match_outputs(
    model: keras.Model, labels: Sequence[str] | None, classes: int
) -> tuple[list[int] | None, tuple[str, ...]]:
    """Return the outputs' indices in the order of the labels, then the others, and their names.

    The order is None if names are unknown, or if they are numbers, which are indices already.
    """
    outputs = class_names_of(model)
    has_names = labels is not None and not are_numbers(labels)
    if outputs is None and labels is not None and model.output_shape[-1] == len(imagenet_classes()):
        synsets = [synset for synset, _ in imagenet_classes()]
        numbers = list(map(str, range(len(synsets))))
        outputs = next((names for names in (synsets, numbers) if set(labels) <= set(names)), None)
    if outputs is None or not has_names:
        for names in (labels if has_names else None, outputs):
            if names is not None and len(names) == classes and not are_numbers(names):
                return None, tuple(names)
        return None, tuple(map(str, range(classes)))
    outputs = list(outputs)
    unknown = [name for name in labels if name not in outputs]
    if unknown:
        raise ValueError(
            f"`source` must have only classes that the model knows: {shortened(outputs, 5)}. "
            f"Received: {shortened(unknown, 5)}."
        )
    order = [outputs.index(name) for name in labels]
    order += sorted(set(range(len(outputs))) - set(order))
    return order, tuple(outputs[i] for i in order)
