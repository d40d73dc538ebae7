"""Evaluate a model on labelled images."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_vitx.classifier import outputs_of
from keras_vitx.training.batches import PartName, are_numbers, labels_of, part_of
from keras_vitx.training.replicas import Replicate, share_of
from keras_vitx.training.task import task_of

# Name of the metric that holds the mean loss per image.
LOSS = "loss_per_image"


class Measured(keras.Model):
    """A wrapper that evaluates a model with other metrics, without recompiling it.

    All metrics are weighted by the sample weights, so images of weight 0 (padding) do
    not count.

    Args:
        model: The model to evaluate.
        loss: A loss, its name, or a function `(y_true, y_pred)` that returns one
            value per image.
        metrics: Keras metrics or their names.
        order: Indices of the outputs in the order of the labels; None leaves the order.
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Any,
        metrics: Sequence[Any] = (),
        order: Sequence[int] | None = None,
    ):
        super().__init__()
        self.model = model
        self.order = order
        loss = keras.losses.get(loss)
        per_image = loss.call if isinstance(loss, keras.losses.Loss) else loss
        mean_loss = keras.metrics.MeanMetricWrapper(per_image, name=LOSS)
        objects = [mean_loss, *(m for m in metrics if isinstance(m, keras.metrics.Metric))]
        # Closures, because Keras would track metrics in attributes a second time.
        self.reset = lambda: [metric.reset_state() for metric in objects]
        self.count = lambda: round(float(keras.ops.convert_to_numpy(mean_loss.count)))
        self.compile(loss=loss, weighted_metrics=[mean_loss, *metrics])

    def call(self, images):
        outputs = self.model(images, training=False)
        return outputs if self.order is None else keras.ops.take(outputs, self.order, axis=-1)

    def measures(self, dataset: Any, verbose: str | int = 0) -> dict[str, float]:
        """Return the mean loss and the metrics over `dataset`, by name."""
        # Under TensorFlow, the first `evaluate` does not reset metrics: those shared with the
        # model would continue from its training.
        self.reset()
        shared = share_of(dataset, pad=True)
        measures = self.evaluate(shared, verbose=verbose, callbacks=[Replicate()], return_dict=True)
        # Keras's own mean loss includes padding.
        measures["loss"] = measures.pop(LOSS)
        return measures

    @property
    def images(self) -> int:
        """Number of images in the last evaluation."""
        return self.count()


def evaluate(
    model: keras.Model,
    source: Any,
    part: PartName | None = None,
    *,
    batch_size: int = 64,
    validation_split: float = 0.1,
    seed: int = 0,
    strict: bool = False,
    verbose: str | int = 0,
) -> dict[str, Any]:
    """Evaluate `model` on labelled images, without changing the model.

    The loss and the metrics follow from the head and the labels (see
    `keras_vitx.training.task.Task`): for class labels the plain cross entropy, the
    accuracy and, with more than five classes, the top-5 accuracy; for several labels
    per image the binary cross entropy and the binary accuracy at a threshold of 0.5;
    for other floats the mean squared and the mean absolute error.

    If both model and source have class names, labels are matched with outputs by
    name: the source may have them in another order, or have only some of them.

    Args:
        model: A classifier of the zoo, or a Keras model that ends in one.
        source: Any source that `fit` accepts.
        part: `"test"`, `"validation"` or `"train"`. None is the first of these that
            the source has. Your own batches have no parts.
        batch_size: Images per batch of a source.
        validation_split: The value given to `fit`, to get the same validation images.
            With 0, the training part of an unsplit source has all its images.
        seed: The value given to `fit`, for the same reason.
        strict: Whether an image that can't be decoded is an error.
        verbose: As in `keras.Model.evaluate`.

    Returns:
        A dictionary of `"part"`, the evaluated part (`"batches"` for your own);
        `"images"`, the number of images; `"loss"`; and the metrics by name, of
        `"accuracy"`, `"top_5_accuracy"`, `"binary_accuracy"` and
        `"mean_absolute_error"`.

    Raises:
        ValueError: if the model has no classifier, or the data do not fit it.
        OSError: if the data can't be read.
    """
    outputs = outputs_of(model)
    part, batches, class_names = part_of(
        source,
        model,
        part,
        batch_size,
        validation_split=validation_split,
        seed=seed,
        strict=strict,
    )
    task = task_of(outputs, labels_of(batches))
    order = _order(getattr(model, "class_names", None), class_names)
    measured = Measured(model, task.loss(), task.metrics(top_5=True), order)
    measures = measured.measures(batches, verbose)
    return {"part": part, "images": measured.images, **measures}


def _order(outputs: Sequence[str] | None, labels: Sequence[str] | None) -> list[int] | None:
    """Return the indices of the outputs in the order of the labels, those without labels last.

    Class names that are numbers, as of arrays, are indices already.
    """
    if outputs is None or labels is None or are_numbers(labels):
        return None
    outputs = list(outputs)
    unknown = [name for name in labels if name not in outputs]
    if unknown:
        raise ValueError(
            f"source: it has classes that the model does not know: {', '.join(unknown[:5])}. "
            f"`model.class_names` has {', '.join(outputs[:5])}, ..."
        )
    order = [outputs.index(name) for name in labels]
    return order + [i for i in range(len(outputs)) if i not in set(order)]
