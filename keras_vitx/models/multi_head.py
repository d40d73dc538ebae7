"""The training step of a `Chain`: losses get logits, of each classifier where there are several."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import keras
from keras import ops

from keras_vitx.checks import check
from keras_vitx.layers.base import optimizer_of
from keras_vitx.layers.ops import COMPILES_BLOCKS, scalars_on_device, without_modes
from keras_vitx.layers.recording import Tensor
from keras_vitx.losses import FunctionLoss, PerHead, as_loss, loss_of_logits
from keras_vitx.outputs import ACTIVATIONS, kind_of
from keras_vitx.pixels import unpack_images


class StepImages(NamedTuple):
    """The images of a training step, for which a `Chain` returns logits, by head if it has several.

    A loss, a metric or a layer that calls the model has other images, and gets the prediction.
    """

    images: Any


@runtime_checkable
class AveragesStatistics(Protocol):
    """An optimizer whose moving average has the statistics of normalization, too."""

    statistics: Callable[[], Sequence[keras.Variable]]
    averages: Sequence[keras.Variable]

    def average_statistics(self) -> None: ...


class MultiHeadTraining:
    """How a `Chain` runs and trains several heads; it inherits this."""

    _loss_factor = 1.0

    @functools.wraps(keras.Model.compile, assigned=())
    def compile(
        self, optimizer="rmsprop", loss=None, loss_weights=None, metrics=None, *args, **kwargs
    ):
        """Compile as Keras does; losses and their weights may be dictionaries (`PerHead`).

        Their names are those of the heads, or of the labels: `loss={"head": ..., "head_dist":
        ...}, loss_weights={"head": 0.5, "head_dist": 0.5}`. Metrics are those of `"head"`.

        Under PyTorch, `jit_compile=True` compiles each kind of block, not the step, which would
        be many graphs.

        Raises:
            ValueError: if a name is unknown, or `loss` has none for `"head"`.
        """
        if isinstance(loss, Mapping) or isinstance(loss_weights, Mapping):
            losses = loss if isinstance(loss, Mapping) else {"head": loss}
            loss = PerHead({name: as_loss(value) for name, value in losses.items()}, loss_weights)
            loss_weights = None
        if isinstance(loss, PerHead):
            known = self.heads or tuple(loss.losses)
            _check_names("loss", loss.losses, known)
            _check_names("loss_weights", loss.weights, known)
        if isinstance(metrics, Mapping):
            _check_names("metrics", metrics, ("head",))
            metrics = metrics["head"]
        self.compiles_blocks = COMPILES_BLOCKS and kwargs.get("jit_compile") is True
        if self.compiles_blocks:
            kwargs["jit_compile"] = False
        super().compile(optimizer, loss, loss_weights, metrics, *args, **kwargs)
        self._loss_factor = 1.0 if loss_weights is None else keras.tree.flatten(loss_weights)[0]
        optimizer = optimizer_of(self)
        if isinstance(optimizer, AveragesStatistics) and optimizer.use_ema:
            statistics = [v for v in self.non_trainable_variables if v.name.startswith("moving_")]
            optimizer.statistics = lambda: statistics

    def __call__(self, inputs, *args, **kwargs):
        if isinstance(inputs, StepImages):
            with without_modes():
                return super().__call__(inputs.images, *args, by_head=True, **kwargs)
        # Before Keras compares the names of inputs.
        return super().__call__(unpack_images(inputs), *args, **kwargs)

    def call(self, inputs, training=None, mask=None, by_head=False):
        if isinstance(inputs, StepImages):  # Keras calls this directly under JAX.
            inputs, by_head = inputs.images, True
        x = self.as_images(inputs)
        if not by_head:
            return self.run(self.layers, x, training)
        if not self.heads:
            return self.run(self.logit_layers, x, training)
        *body, head = self.logit_layers
        return head(self.run(body, x, training), by_head=True)

    def make_train_function(self, force=False):
        self.optimizer.built or self.optimizer.build(self.trainable_variables)  # Not in a trace.
        return super().make_train_function(force)

    @property
    def takes_pixels(self) -> bool:
        """Whether a step of `fit` normalizes pixels (`keras_vitx.pixels`); a user's does not."""
        return type(self).train_step is MultiHeadTraining.train_step

    def train_step(self, *args):
        """Run a step of `fit` or `train_on_batch`, whose losses get logits.

        In a subclass with a `call`, `compute_loss` or `compute_metrics` of its own they get the
        prediction, as in any Keras model.
        """
        # The batch is the last argument; under JAX, the state comes before it.
        *state, batch = args
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        x = unpack_images(x)
        methods = ("call", "compute_loss", "compute_metrics")
        if all(getattr(type(self), name) is getattr(MultiHeadTraining, name) for name in methods):
            x = StepImages(keras.tree.flatten(x)[0])
        with scalars_on_device():
            result = super().train_step(*state, (x, y, sample_weight))
        optimizer = optimizer_of(self)
        if not (isinstance(optimizer, AveragesStatistics) and optimizer.averages):
            return result
        if state:
            logs, (trainable, others, values, metrics) = result
            variables = [*self.non_trainable_variables, *self.optimizer.variables]
            pairs = zip(variables, [*others, *values], strict=True)
            with keras.StatelessScope(list(pairs)) as scope:
                optimizer.average_statistics()
            values = [scope.get_current_value(v) for v in self.optimizer.variables]
            return logs, (trainable, others, values, metrics)
        optimizer.average_statistics()
        return result

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return the compiled loss; in training, the weighted sum of the losses of all heads.

        Labels and sample weights, `(batch,)`, may be dictionaries with `"head"`, the only one that
        counts in evaluation. Other names are those of the model's heads, a missing one of which
        takes the labels of `"head"`; for a model with one classifier, those of the losses
        (`PerHead`). Others raise a ValueError.
        """
        labels = self._by_name(y)
        weights = self._by_name(sample_weight)
        loss, outputs = self.loss, {"head": y_pred}
        if isinstance(x, StepImages):
            loss, outputs = self._of_logits(y_pred)
        is_plain = len(outputs) == 1 and (len(labels) == 1 or not training)
        if loss is None or (is_plain and loss is self.loss):
            return super().compute_loss(
                x, labels["head"], outputs["head"], weights["head"], training
            )
        loss = loss if isinstance(loss, PerHead) else PerHead({"head": as_loss(loss)})
        if len(outputs) == 1:
            known = sorted(loss.losses)
            rule = f"`y` must have no names but those of the losses, {known} (`losses.PerHead`)."
            check(set(labels) <= set(known), rule, sorted(labels))
            outputs = dict.fromkeys(labels, outputs["head"])
        own = self.logit_layers[-1].loss_weights if self.heads else {}
        factors = {**own, **loss.weights}
        total = 0.0
        for name, output in outputs.items():
            compare = loss.losses.get(name, loss.losses["head"])
            label = labels[name] if name in labels else _per_output(labels["head"], output)
            weight = weights.get(name, weights["head"])
            if weight is not None and len(weight.shape) == 1:
                weight = _per_output(weight, output)
            factor = self._loss_factor * factors.get(name, 1.0)
            total = total + factor * compare(label, output, weight)
        for added in self.losses:
            # A loss scales by the number of replicas, as mirrored strategies expect.
            total = total + FunctionLoss(lambda _, loss: loss)(added, ops.sum(added))
        return total

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Update the metrics of `"head"`."""
        if isinstance(x, StepImages):
            y_pred = self._activation(_by_head(y_pred)["head"])
        label = self._by_name(y)["head"]
        weight = self._by_name(sample_weight)["head"]
        return super().compute_metrics(x, label, y_pred, weight)

    def _activation(self, logits: Tensor | dict[str, Tensor]) -> Any:
        last = self.layers[-1]
        return last(logits) if isinstance(last, ACTIVATIONS) else logits

    def _of_logits(self, logits: Tensor | dict[str, Tensor]) -> tuple[Any, dict[str, Any]]:
        """Return the compiled loss and what it compares: logits if it can, or predictions."""
        outputs, kind = _by_head(logits), "logits"
        if isinstance(self.layers[-1], ACTIVATIONS):
            kind = kind_of(self.layers[-1])
        if kind in ("softmax", "sigmoid") and (loss := loss_of_logits(self.loss, kind)):
            return loss, outputs
        return self.loss, {name: self._activation(output) for name, output in outputs.items()}

    def _by_name(self, values: Tensor | dict[str, Tensor] | None) -> dict[str, Any]:
        """Return labels or sample weights by name."""
        if not isinstance(values, dict):
            return {"head": values}
        is_known = "head" in values and (not self.heads or set(values) <= set(self.heads))
        known = [*self.heads] or "those of the losses"
        rule = f"Labels or sample weights by name must have 'head', and no names but {known}."
        check(is_known, rule, sorted(values))
        return values


def _check_names(argument, names, known):
    check(set(names) <= set(known), f"`{argument}` must have the names {[*known]}.", [*names])


def _by_head(logits: Tensor | dict[str, Tensor]) -> dict[str, Any]:
    return logits if isinstance(logits, dict) else {"head": logits}


def _per_output(values, output):
    """Repeat `(batch, ...)` to `(batch, patches, ...)` if there is one output per patch."""
    if values is None or len(output.shape) < 3:
        return values
    return ops.repeat(ops.expand_dims(values, 1), output.shape[1], axis=1)
