"""Measure a model on labelled images."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_vitx.classifier import outputs_of
from keras_vitx.training.batches import PartName, are_numbers, labels_of, part_of
from keras_vitx.training.task import task_of

# Names under which the evaluation keeps the mean loss per image.
LOSS = "loss_per_image"


class Measured(keras.Model):
    """A model at inference with metrics of its own: what the model was compiled with stays.

    Every metric is weighted by the sample weights, so that an image of weight 0
    (padding) does not count.

    Args:
        model: The model to measure.
        loss: A loss, its name, or a function `(y_true, y_pred)` that gives one
            value per image.
        metrics: Keras metrics or their names.
        order: The outputs in the order of the labels; None leaves them.
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
        # Functions, since Keras would track attributes that are metrics a second time.
        self.reset = lambda: [metric.reset_state() for metric in objects]
        self.count = lambda: round(float(mean_loss.count))
        self.compile(loss=loss, weighted_metrics=[mean_loss, *metrics])

    def call(self, images):
        outputs = self.model(images, training=False)
        return outputs if self.order is None else keras.ops.take(outputs, self.order, axis=-1)

    def measures(self, dataset: Any, verbose: str | int = 0) -> dict[str, float]:
        """Return the mean loss and the metrics over `dataset`, by name."""
        # Under TensorFlow, the first `evaluate` does not: metrics shared with the model would
        # go on from its training.
        self.reset()
        measures = self.evaluate(dataset, verbose=verbose, return_dict=True)
        # Keras's own mean of the loss counts padding.
        measures["loss"] = measures.pop(LOSS)
        return measures

    @property
    def images(self) -> int:
        """Number of images that were measured last."""
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
    """Measure `model` on labelled images; nothing about the model changes.

    What is measured follows from the head and the labels (see
    `keras_vitx.training.task.Task`): for class labels the plain cross entropy,
    the accuracy, and the accuracy among the five most probable classes where
    there are more than five; for several labels per image the binary cross
    entropy and the share of right decisions at .5; for other floats the mean
    squared and the mean absolute error.

    Where model and source both have class names, labels are matched with outputs
    by name: the source may have them in another order, or have some of them only.

    Args:
        model: A classifier of the zoo, or a Keras model that ends in one.
        source: What `fit` takes.
        part: `"test"`, `"validation"` or `"train"`. None is the first of these that
            the source has. Your own batches have no parts.
        batch_size: Images per batch of a source.
        validation_split: As `fit` got it, to find its validation images. With 0,
            the training part of a source that isn't split has all its images.
        seed: As `fit` got it, likewise.
        strict: Whether an image that can't be decoded is an error.
        verbose: As in `keras.Model.evaluate`.

    Returns:
        `"part"`, the part that was measured (`"batches"` for your own); `"images"`,
        the number of images; `"loss"`; and the metrics by name, of `"accuracy"`,
        `"top_5_accuracy"`, `"binary_accuracy"` and `"mean_absolute_error"`.

    Raises:
        ValueError: for a model without a classifier, or data that doesn't fit it.
        OSError: for data that can't be read.
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
    """Return the outputs' indices in the order of the labels, the outputs without labels last.

    Labels that are numbers, as arrays have them, are indices already.
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
