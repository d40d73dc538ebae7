"""A loss per classifier or label, which `Chain.compile` makes of a dictionary of losses."""

from collections.abc import Mapping
from typing import Any

import keras


@keras.saving.register_keras_serializable(package="keras_vitx")
class PerHead(keras.losses.Loss):
    r"""A loss per classifier or label, by name: $\sum_i w_i\, \mathrm{loss}_i(y_i, \hat y_i)$.

    `model.compile(loss={...}, loss_weights={...})` makes one. DeiT's hard distillation
    (Section 3) smooths only the labels of the class token's head. Each image has two labels, of
    which the second is the teacher's most probable class:

    ```python
    losses = {"head": SmoothedCrossentropy(0.1), "head_dist": SmoothedCrossentropy()}
    model.compile("adamw", losses, loss_weights={"head": 0.5, "head_dist": 0.5})
    model.fit(images, {"head": labels, "head_dist": teacher.predict(images).argmax(-1)})
    ```

    DeiT's soft distillation takes the teacher's probabilities as labels, and
    `"head_dist": SoftDistillation(3.0)` with the weights 0.9 and 0.1.

    A model with one classifier may be given several labels per image, too: its prediction is
    compared with each of them. Without a distillation token, hard distillation (CaiT's
    $\Upsilon$ models, ConViT's Table 4) has the labels `{"head": ..., "teacher": ...}` and losses
    of these names. `Distillation` makes the labels and the loss of each of these.

    In evaluation the loss is that of `"head"`.

    Args:
        losses: Loss per head or label, by name, including `"head"`. A head without an entry
            uses the loss of `"head"`.
        weights: Weights in the sum of losses, by name, in place of the model's own. For a
            model with one classifier they are 1 by default.
        name: Name of the loss.

    Raises:
        ValueError: if `losses` has no `"head"`, or a loss is not a `keras.losses.Loss`.
    """

    def __init__(
        self,
        losses: Mapping[str, keras.losses.Loss],
        weights: Mapping[str, float] | None = None,
        name: str = "per_head",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        if "head" not in losses:
            raise ValueError(f"`losses` must have a loss for 'head'. Received: {sorted(losses)}.")
        for head, loss in losses.items():
            if not isinstance(loss, keras.losses.Loss):
                raise ValueError(
                    "`losses` must have a `keras.losses.Loss` for each head. "
                    f"Received: {loss!r} for {head!r}."
                )
        self.losses = dict(losses)
        self.weights = dict(weights or {})

    def call(self, y_true, y_pred):
        return self.losses["head"].call(y_true, y_pred)

    def get_config(self):
        losses = {
            name: keras.saving.serialize_keras_object(loss) for name, loss in self.losses.items()
        }
        return {**super().get_config(), "losses": losses, "weights": self.weights}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PerHead":
        """Make the loss that `config` describes."""
        losses = {
            name: keras.saving.deserialize_keras_object(loss)
            for name, loss in config["losses"].items()
        }
        return cls(**{**config, "losses": losses})


@keras.saving.register_keras_serializable(package="keras_vitx")
class FunctionLoss(keras.losses.Loss):
    """The mean of a loss function over a batch, weighted by sample.

    Args:
        function: A function of labels and predictions.
        name: Name of the loss.
    """

    def __init__(self, function: Any, name: str = "function_loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.function = function

    def call(self, y_true, y_pred):
        return self.function(y_true, y_pred)

    def get_config(self):
        function = keras.saving.serialize_keras_object(self.function)
        return {**super().get_config(), "function": function}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "FunctionLoss":
        """Make the loss that `config` describes."""
        return cls(
            **{**config, "function": keras.saving.deserialize_keras_object(config["function"])}
        )


def as_loss(loss: Any) -> keras.losses.Loss:
    """Return one compiled loss as an object that averages over a batch."""
    losses = keras.tree.flatten(loss)
    if len(losses) != 1:
        raise ValueError(
            "`loss` must be one loss, or a dictionary with one per head, as in "
            f"`keras_vitx.training.PerHead`. Received: {loss!r}."
        )
    loss = keras.losses.get(losses[0])
    return loss if isinstance(loss, keras.losses.Loss) else FunctionLoss(loss)
