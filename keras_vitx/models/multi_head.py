"""The training step of a `Chain`, of several heads and several labels.

In a step of `fit`, the model returns the logits of every classifier by name; otherwise, one
prediction.
"""

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_vitx.layers.heads import MultiHead
from keras_vitx.layers.ops import scalars_on_device
from keras_vitx.losses import FunctionLoss, PerHead, as_loss
from keras_vitx.outputs import kind_of
from keras_vitx.pixels import unpacked


class MultiHeadTraining:
    """How a model with `layers` trains several heads; `Chain` inherits it."""

    _step: contextlib.ExitStack | None = None

    @property
    def in_step(self) -> bool:
        """Whether this is a step of `fit` or `train_on_batch`."""
        return self._step is not None

    @functools.wraps(keras.Model.compile, assigned=())
    def compile(self, optimizer="rmsprop", loss=None, loss_weights=None, *args, **kwargs):
        """Compile as Keras does; losses and their weights may be dictionaries (`PerHead`).

        Their names are those of the heads, or of the labels: `loss={"head": ..., "head_dist":
        ...}, loss_weights={"head": 0.5, "head_dist": 0.5}`.

        Raises:
            ValueError: if `loss_weights` is not a dictionary, or `loss` has none for `"head"`.
        """
        if loss_weights is not None and not isinstance(loss_weights, Mapping):
            raise ValueError(
                "`loss_weights` must be None or a dictionary by the names of the losses, as in "
                f"`PerHead`. Received: {loss_weights!r}."
            )
        if isinstance(loss, Mapping) or loss_weights is not None:
            losses = loss if isinstance(loss, Mapping) else {"head": loss}
            loss = PerHead({name: as_loss(each) for name, each in losses.items()}, loss_weights)
        super().compile(optimizer, loss, None, *args, **kwargs)
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if hasattr(optimizer, "statistics") and optimizer.use_ema:
            statistics = [v for v in self.non_trainable_variables if v.name.startswith("moving_")]
            optimizer.statistics = lambda: statistics

    def __call__(self, inputs, *args, **kwargs):
        # Before Keras compares the names of inputs.
        return super().__call__(unpacked(inputs), *args, **kwargs)

    @functools.wraps(keras.Model.fit, assigned=())
    def fit(self, x=None, *args, **kwargs):
        """Train as Keras does; batches of `keras_vitx.data` cross to the device as pixels."""
        own = type(self).train_step is not MultiHeadTraining.train_step  # It expects images.
        with contextlib.nullcontext() if own else getattr(x, "as_pixels", contextlib.nullcontext)():
            return super().fit(x, *args, **kwargs)

    def train_step(self, *args):
        """Run a step of `fit` or `train_on_batch`, in which `call` returns logits by head.

        Unless a subclass has a `call`, `compute_loss` or `compute_metrics` of its own, and labels
        are no dictionary: as in any Keras model, it then gets the prediction, which is trained.
        """
        # The batch is the last argument; under JAX, the state comes before it.
        *state, batch = args
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        x = unpacked(x)
        if not self.optimizer.built:  # Averages begin with the statistics before the step.
            self.optimizer.build(self.trainable_variables)
        try:
            with contextlib.ExitStack() as step:
                self._step = step if isinstance(y, dict) or self._is_own_step() else None
                result = super().train_step(*state, (x, y, sample_weight))
        finally:
            self._step = None
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if state and getattr(optimizer, "averages", ()):
            logs, (trainable, others, values, metrics) = result
            variables = [*self.non_trainable_variables, *self.optimizer.variables]
            pairs = zip(variables, [*others, *values], strict=True)
            with keras.StatelessScope(list(pairs)) as scope:
                optimizer.average_statistics()
            values = [scope.get_current_value(v) for v in self.optimizer.variables]
            return logs, (trainable, others, values, metrics)
        if hasattr(optimizer, "averages"):
            optimizer.average_statistics()
        return result

    def _is_own_step(self) -> bool:
        """Return whether the methods of a step are those of this package, not a subclass's."""
        methods = (getattr(self, name) for name in ("call", "compute_loss", "compute_metrics"))
        return all(one.__module__.startswith("keras_vitx.") for one in methods)

    def logits_in_step(self, inputs: Any) -> dict[str, Any]:
        """Return the logits of each head by name."""
        x, (*body, head) = self.as_images(inputs), self.layers
        x = self.run(body, x, True)
        activation, is_several = getattr(head, "activation", None), isinstance(head, MultiHead)
        if not is_several and kind_of(activation) in (None, "logits"):
            return {"head": self.run([head], x, True)}
        head.activation = keras.activations.linear
        try:
            if is_several:
                return head(x, by_head=True)
            return {"head": self.run([head], x, True)}
        finally:
            head.activation = activation

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return the compiled loss; in training, the weighted sum of the losses of all heads.

        Labels and sample weights, `(batch,)`, may be dictionaries with `"head"`, the only one that
        counts in evaluation. Other names are those of the model's heads, a missing one of which
        takes the labels of `"head"`; for a model with one classifier, those of the losses
        (`PerHead`). Others raise a ValueError.
        """
        labels, weights = self._by_name(y), self._by_name(sample_weight)
        head, loss = self.layers[-1], self.loss
        outputs = y_pred if isinstance(y_pred, dict) else {"head": y_pred}
        if self.in_step:
            # For the rest of the step: the loss, the metrics and the optimizer.
            self._step.enter_context(scalars_on_device())
            activation = _activation_of(head)
            # Near 0 and 1, probabilities in float32 lose what their logits tell.
            loss = _of_logits(loss, kind_of(activation))
            if loss is None:
                loss = self.loss
                outputs = {name: activation(output) for name, output in outputs.items()}
        is_plain = len(outputs) == 1 and (len(labels) == 1 or not training)
        if loss is None or (is_plain and loss is self.loss):
            return super().compute_loss(
                x, labels["head"], outputs["head"], weights["head"], training
            )
        loss = loss if isinstance(loss, PerHead) else PerHead({"head": as_loss(loss)})
        if len(outputs) == 1:
            if not set(labels) <= set(loss.losses):
                raise ValueError(
                    "`y` must have no names but those of the losses for a model with one "
                    "classifier: compile it with a dictionary of losses, or a "
                    f"`keras_vitx.losses.PerHead`. Received: labels {sorted(labels)}, and "
                    f"losses for {sorted(loss.losses)}."
                )
            outputs = dict.fromkeys(labels, outputs["head"])
        factors = {**getattr(head, "loss_weights", {}), **loss.weights}
        total = 0.0
        for name, output in outputs.items():
            compare = loss.losses.get(name, loss.losses["head"])
            label = labels[name] if name in labels else _per_output(labels["head"], output)
            weight = weights.get(name, weights["head"])
            if weight is not None and len(weight.shape) == 1:
                weight = _per_output(weight, output)
            total = total + factors.get(name, 1.0) * compare(label, output, weight)
        for added in self.losses:
            # A loss scales by the number of replicas, as mirrored strategies expect.
            total = total + FunctionLoss(lambda _, loss: loss)(added, ops.sum(added))
        return total

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Update the metrics of `"head"`."""
        label = self._by_name(y)["head"]
        if isinstance(y_pred, dict):
            y_pred = y_pred["head"]
        if self.in_step:
            y_pred = _activation_of(self.layers[-1])(y_pred)
        return super().compute_metrics(x, label, y_pred, self._by_name(sample_weight)["head"])

    def _by_name(self, values: Any) -> dict[str, Any]:
        """Return labels or sample weights by name."""
        if not isinstance(values, dict):
            return {"head": values}
        names = getattr(self.layers[-1], "names", None)
        if "head" not in values or (names and not set(values) <= set(names)):
            raise ValueError(
                "A dictionary of labels or sample weights must have 'head', and no names but "
                f"{', '.join(map(repr, names or ['those of the losses']))}. "
                f"Received: {sorted(values)}."
            )
        return values


def _of_logits(loss: Any, activation: str | None) -> keras.losses.Loss | None:
    """Return a loss of probabilities as the same one of logits, or None."""
    if isinstance(loss, PerHead):
        losses = {name: _of_logits(each, activation) for name, each in loss.losses.items()}
        return None if None in losses.values() else PerHead(losses, loss.weights)
    if getattr(loss, "activation", None) != activation or loss.from_logits:
        return None
    return type(loss).from_config({**loss.get_config(), "from_logits": True})


def _activation_of(head: keras.layers.Layer) -> Any:
    """Return the activation that the outputs in a step lack."""
    activation = keras.activations.get(getattr(head, "activation", None))
    is_left_out = isinstance(head, MultiHead) or kind_of(activation) is not None
    return activation if is_left_out else keras.activations.linear


def _per_output(values, output):
    """Repeat `(batch, ...)` to `(batch, patches, ...)` if there is one output per patch."""
    if values is None or len(output.shape) < 3:
        return values
    return ops.repeat(ops.expand_dims(values, 1), output.shape[1], axis=1)
