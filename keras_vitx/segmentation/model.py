"""`Segmenter`, a backbone and a head, trained as one model."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_vitx.models.chain import ImageModel
from keras_vitx.preprocessing import Preprocessing

AUXILIARY_WEIGHT = 0.4
"""Weight of the auxiliary head's loss (Zhao et al., 2017; Xiao et al., 2018, as released)."""


@keras.saving.register_keras_serializable(package="keras_vitx")
class Segmenter(ImageModel):
    """A model from images `(batch, height, width, channels)` to logits of the same sides.

    A functional Keras model, for plain `compile` and `fit` with masks `(batch, height, width)`
    of integers. `UperNet` and `LinearHead` make it. If the head returns a second, auxiliary
    output, its loss is added in training, times 0.4.

    Args:
        backbone: A model that returns one feature map `(batch, rows, columns, dim)` or several,
            such as `keras_vitx.features` makes.
        head: A model from these maps to logits `(batch, height, width, classes)`, or to a pair
            of logits, those of the auxiliary head last.
        preprocessing: Preprocessing of the images; None is the backbone's.
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
        super().__init__(images, outputs[0], name=name, **kwargs)
        self.autocast = False
        if preprocessing is None:
            preprocessing = getattr(backbone, "preprocessing", None)
        self.preprocessing = preprocessing
        self.class_names = None if class_names is None else tuple(class_names)
        self._parts = backbone.name, head.name
        self._in_train_step = False

    @property
    def backbone(self) -> keras.Model:
        """The model that makes the feature maps."""
        return self.get_layer(self._parts[0])

    @property
    def head(self) -> keras.Model:
        """The model on the feature maps."""
        return self.get_layer(self._parts[1])

    def call(self, inputs, training=None, mask=None):
        outputs = self.head(self.backbone(inputs, training=training), training=training)
        outputs = keras.tree.flatten(outputs)
        return outputs if self._in_train_step and training and len(outputs) > 1 else outputs[0]

    def train_step(self, *args):
        """Run a step of `fit`, in which `call` returns the logits of both heads."""
        self._in_train_step = True
        try:
            return super().train_step(*args)
        finally:
            self._in_train_step = False

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return the compiled loss of the logits, plus 0.4 times that of the auxiliary ones."""
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
        """Return the config from which `from_config` makes an equal model with new weights."""
        return {
            "name": self.name,
            "trainable": self.trainable,
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "head": keras.saving.serialize_keras_object(self.head),
            "preprocessing": self.preprocessing and self.preprocessing.to_dict(),
            "class_names": self.class_names and list(self.class_names),
        }
