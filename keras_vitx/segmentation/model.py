"""`Segmenter`, a backbone and a head as one model."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_vitx.layers.ops import scalars_on_device
from keras_vitx.models.chain import ImageModel
from keras_vitx.preprocessing import Preprocessing

AUXILIARY_WEIGHT = 0.4
"""Weight of the auxiliary head's loss (Zhao et al., 2017; Xiao et al., 2018, as released)."""


@keras.saving.register_keras_serializable(package="keras_vitx")
class Segmenter(ImageModel):
    """A model from images `(batch, height, width, channels)` to logits of the same size.

    A functional Keras model, as returned by `UperNet` and `LinearHead`, for plain `compile` and
    `fit` with integer masks `(batch, height, width)`. If the head returns a second, auxiliary
    output, its loss is added in training, times 0.4.

    Args:
        backbone: A model that returns one or more feature maps `(batch, rows, columns, dim)`, as
            from `keras_vitx.features`.
        head: A model from these maps to logits `(batch, height, width, classes)`, or to a pair of
            logits, those of the auxiliary head last.
        preprocessing: Preprocessing of the images; None is the backbone's, without a crop.
        class_names: Names of the classes.
        name: Name of the model.
    """

    def __init__(
        self,
        backbone: keras.Model,
        head: keras.Model,
        preprocessing: Preprocessing | dict[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
        name: str | None = None,
        **kwargs,
    ):
        images = keras.Input(backbone.input_shape[1:], name="images")
        outputs = keras.tree.flatten(head(backbone(images)))
        if preprocessing is None and getattr(backbone, "preprocessing", None):
            preprocessing = Preprocessing.of(backbone.preprocessing).replace(crop_ratio=1.0)
        super().__init__(images, outputs[0], None, preprocessing, class_names, name=name, **kwargs)
        self._names = backbone.name, head.name
        self._in_train_step = False

    @property
    def backbone(self) -> keras.Model:
        """The model of the feature maps."""
        return self.get_layer(self._names[0])

    @property
    def head(self) -> keras.Model:
        """The model on the feature maps."""
        return self.get_layer(self._names[1])

    def call(self, inputs, training=None, mask=None):
        maps = self.backbone(inputs, training=training)
        outputs = keras.tree.flatten(self.head(maps, training=training))
        return outputs if self._in_train_step and training and len(outputs) > 1 else outputs[0]

    def train_step(self, *args):
        """Run a step of `fit`, in which `call` returns the logits of both heads."""
        self._in_train_step = True
        try:
            with scalars_on_device():
                return super().train_step(*args)
        finally:
            self._in_train_step = False

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return the compiled loss of the logits, plus 0.4 times that of the auxiliary logits."""
        if not isinstance(y_pred, list):
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        total = super().compute_loss(x, y, y_pred[0], sample_weight, training)
        loss = keras.losses.get(self.loss)
        for auxiliary in y_pred[1:]:
            total = total + AUXILIARY_WEIGHT * loss(y, auxiliary, sample_weight)
        return total

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Update the metrics on the logits of the main head."""
        main = y_pred[0] if isinstance(y_pred, list) else y_pred
        return super().compute_metrics(x, y, main, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "trainable": self.trainable,
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "head": keras.saving.serialize_keras_object(self.head),
            "preprocessing": self.preprocessing and self.preprocessing.to_dict(),
            "class_names": self.class_names and list(self.class_names),
        }


def check_segmenter(model: keras.Model) -> None:
    """Raise a ValueError unless a model has one output of the height and width of the images."""
    images, outputs = (getattr(model, f"{x}_shape", None) for x in ("input", "output"))
    if not isinstance(outputs, tuple) or len(outputs) != 4 or outputs[1:3] != images[1:3]:
        raise ValueError(
            "`model` must return logits (batch, height, width, classes) of the images' size, as "
            f"UperNet and LinearHead do. Received: {model.name!r} with outputs {outputs}."
        )
