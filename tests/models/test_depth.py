"""Layers as pure functions, recomputed or not, train as the list of layers."""

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, close, numbers
from keras import ops

from keras_vitx import layers as kvl
from keras_vitx.layers.base import Layer, register
from keras_vitx.models import Chain

IMAGES = numbers((4, 4, 4, 3))
LABELS = np.array([0, 1, 2, 0])


@register
class NormalizedBlock(Layer):
    """A block with state: running statistics and seed generators."""

    def __init__(self, drop_path=0.0, dropout=0.2, penalty=0.0, units=6, **kwargs):
        super().__init__(**kwargs)
        self.drop_path, self.dropout, self.penalty, self.units = drop_path, dropout, penalty, units
        dtype = self.dtype_policy
        regularizer = keras.regularizers.L2(penalty) if penalty else None
        penalties = dict(kernel_regularizer=regularizer, activity_regularizer=regularizer)
        self.fc1 = keras.layers.Dense(units, "tanh", dtype=dtype, name="fc1", **penalties)
        self.norm = keras.layers.BatchNormalization(momentum=0.5, dtype=dtype, name="norm")
        self.drop = keras.layers.Dropout(dropout, dtype=dtype, name="drop")
        self.fc2 = keras.layers.Dense(6, dtype=dtype, name="fc2")
        self.branch = kvl.DropPath(drop_path, dtype=dtype, name="branch")

    def build(self, input_shape):
        self.fc1.build(input_shape)
        for layer in (self.norm, self.fc2):
            layer.build((*input_shape[:-1], self.units))

    def call(self, x, training=False):
        y = self.norm(self.fc1(x), training=training)
        y = self.fc2(self.drop(y, training=training))
        if self.penalty:
            self.add_loss(self.penalty * ops.mean(ops.square(ops.cast(y, "float32"))))
        return x + self.branch(y, training=training)


class ScalingBlock(NormalizedBlock):
    """Blocks whose programs differ in a rule for derivatives only."""

    def call(self, x, training=False):
        @ops.custom_gradient
        def scaled(y):
            return y, lambda upstream: upstream * 10 * self.drop_path

        return super().call(scaled(x), training)


class TableBlock(NormalizedBlock):
    """Blocks whose programs differ in an array only."""

    def call(self, x, training=False):
        import jax

        table = np.full(6, 1 + self.drop_path, "float32")
        return super().call(jax.jit(lambda x: x * table)(x), training)


def chain(rates=(0.3, 0.3, 0.3, 0.3), frozen=(), kind=NormalizedBlock, **arguments):
    """Blocks between two other layers."""
    blocks = [kind(r, name=f"blocks_{i}", **arguments) for i, r in enumerate(rates)]
    pool = keras.layers.GlobalAveragePooling2D(data_format="channels_last", name="pool")
    head = keras.layers.Dense(3, dtype="float32", name="head")
    model = Chain([keras.layers.Dense(6, name="stem"), *blocks, pool, head], (4, 4, 3))
    for name in frozen:
        model.get_layer(name).trainable = False
    return model


def of_family(family, **changes):
    shape = {"patch_size": 2, "input_shape": (4, 4, 3), "classes": 3, "layer_scale": 0.5}
    return FAMILIES[family](**shape, classifier_activation=None, **changes)


def value(variable):
    """The value of a variable, uncast: generator states are large integers."""
    return np.array(ops.convert_to_numpy(variable.value))


def fit(model):
    # Under PyTorch, dropout without a seed uses the global generator.
    keras.utils.set_random_seed(0)
    model.compile(
        keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    history = model.fit(IMAGES, LABELS, batch_size=4, epochs=3, shuffle=False, verbose=0)
    return history.history["loss"]


CASES = {
    "different rates": (lambda: chain((0.1, 0.2, 0.3, 0.4)), False),
    "two blocks frozen": (lambda: chain(frozen=("blocks_0", "blocks_1")), False),
    "own derivatives": (lambda: chain((0.1, 0.2, 0.3, 0.4), kind=ScalingBlock, dropout=0.0), False),
    "own arrays": (lambda: chain((0.1, 0.2, 0.3, 0.4), kind=TableBlock, dropout=0.0), False),
    "half precision": (lambda: chain(dtype="mixed_bfloat16"), False),
    "losses": (lambda: chain(penalty=0.1), True),
    "CaiT": (lambda: of_family("CaiT", depth=3, drop_path=0.2), True),
    "CaiT/products": (lambda: of_family("CaiT", depth=3, drop_path=0.2), "products"),
    # Blocks take and return pairs.
    "RefinedViT": (lambda: of_family("RefinedViT", depth=4, conv_stem=False), True),
    "inside another": (lambda: inside(chain(penalty=0.1)), False),
}
# Elsewhere, only recomputation and losses differ.
HERE = {"jax": CASES, "tensorflow": ("losses",)}.get(BACKEND, ("losses", "CaiT", "CaiT/products"))


def inside(model):
    """A Keras model around a `Chain`."""
    return keras.Sequential([keras.Input(model.input_shape[1:]), model])


def calls(model):
    """The number of blocks that are calls in a compiled training pass, under JAX."""
    import jax

    state = [
        [v.value for v in part]
        for part in (model.trainable_variables, model.non_trainable_variables)
    ]
    step = jax.jit(lambda x: model.stateless_call(*state, x, training=True)[0])
    lines = step.lower(IMAGES).compile().as_text().splitlines()
    return sum(" call(" in line and 'inlineable="false"' in line for line in lines)


@pytest.mark.parametrize("case", HERE)
def test_pure_functions_train_like_a_list(case, monkeypatch):
    make, remat = CASES[case]
    pure, listed = make(), make()
    pure.remat = remat
    for one, other in zip(listed.variables, pure.variables, strict=True):
        one.assign(value(other))
    before = [value(variable) for variable in pure.variables]
    found = fit(pure)
    if BACKEND == "jax":
        assert calls(pure) >= 3
        monkeypatch.setattr(kvl.ops, "least_remat", lambda remat, x: remat)
        assert not calls(listed)
    # Fused operations round fewer numbers to half precision.
    tolerance = 1e-2 if case == "half precision" else 1e-5
    close(found, fit(listed), tolerance)
    frozen = {id(v) for layer in pure.layers if not layer.trainable for v in layer.weights}
    for one, other, old in zip(pure.variables, listed.variables, before, strict=True):
        # Initial maps hardly vary, and normalizing them amplifies rounding errors; gradients
        # of variables without effect are zero up to them.
        largest = max(np.abs(value(other)).max(), 0.1)
        limit = 0 if one.dtype == "uint32" else 10 * tolerance * largest
        assert np.abs(np.float64(value(one)) - value(other)).max() <= limit, one.path
        if case.startswith(("different", "two")):
            # Statistics and seed generators are updated, block by block.
            assert (value(one) != old).any() == (id(one) not in frozen) or "seed" in one.path
