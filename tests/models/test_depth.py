"""The loop over depth is equivalent to the list of layers."""

import re

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, close, compiled, numbers
from keras import ops

from keras_vitx import layers as kvl
from keras_vitx.layers.base import Layer, register
from keras_vitx.models import Chain

jax_only = pytest.mark.skipif(BACKEND != "jax", reason="only JAX gains from the loop")
IMAGES = numbers((4, 4, 4, 3))
LABELS = np.array([0, 1, 2, 0])


@register
class NormalizedBlock(Layer):
    """A block with state: running statistics and seed generators."""

    varying = ("drop_path",)

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


def chain(rates=(0.3, 0.3, 0.3, 0.3), frozen=(), **arguments):
    """Blocks between two other layers."""
    blocks = [NormalizedBlock(r, name=f"blocks_{i}", **arguments) for i, r in enumerate(rates)]
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


def values(model):
    parts = (model.trainable_variables, model.non_trainable_variables)
    return [[variable.value for variable in part] for part in parts]


def loops(model):
    """The number of repeats of each loop in the training pass of a model, under JAX."""
    import jax

    state = values(model)
    images = numbers((2, *model.input_shape[1:]))
    text = str(jax.make_jaxpr(lambda x: model.stateless_call(*state, x, training=True))(images))
    return [int(count) for count in re.findall(r"^\s*length=(\d+)$", text, re.MULTILINE)]


def fit(model):
    # Under PyTorch, dropout without a seed uses the global generator.
    keras.utils.set_random_seed(0)
    model.compile(
        keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    history = model.fit(IMAGES, LABELS, batch_size=4, epochs=3, shuffle=False, verbose=0)
    return history.history["loss"]


# How to make a model, whether it recomputes, and the repeats of its loops.
CASES = {
    "different rates": (lambda: chain((0.1, 0.2, 0.3, 0.4)), False, [4]),
    "two blocks frozen": (lambda: chain(frozen=("blocks_0", "blocks_1")), False, [2, 2]),
    "losses/remat": (lambda: chain(penalty=0.1), True, [4]),
    "CaiT/remat": (lambda: of_family("CaiT", depth=3, drop_path=0.2), True, [3]),
    "CaiT/products": (lambda: of_family("CaiT", depth=3, drop_path=0.2), "products", []),
    # The first block receives no maps, the last returns none.
    "alternating/remat": (lambda: of_family("RefinedViT", depth=6, conv_stem=False), True, [2]),
}
# Without a loop, only recomputation and losses differ.
HERE = {"jax": CASES, "tensorflow": ("losses/remat",)}.get(
    BACKEND, ("losses/remat", "CaiT/remat", "CaiT/products")
)


def losses_of(model):
    if BACKEND != "jax":
        keras.utils.set_random_seed(0)
        model(IMAGES, training=True)
        return model.losses
    import jax

    options = {"training": True, "return_losses": True}
    return jax.jit(lambda x: model.stateless_call(*values(model), x, **options))(IMAGES)[2]


@pytest.mark.parametrize("case", HERE)
def test_a_loop_trains_like_a_list(case):
    make, remat, repeats = CASES[case]
    looped, listed = make(), make()
    looped.remat, looped.scan, listed.scan = remat, bool(repeats), False
    for one, other in zip(listed.variables, looped.variables, strict=True):
        one.assign(value(other))
    if BACKEND == "jax":
        assert (loops(looped), loops(listed)) == (repeats, [])
    if case.startswith("losses"):
        found, expected = (sum(map(array, losses_of(model))) for model in (looped, listed))
        assert found > 0.01
        close(found, expected, 1e-4)

    before = [value(variable) for variable in looped.variables]
    close(fit(looped), fit(listed))
    frozen = {id(v) for layer in looped.layers if not layer.trainable for v in layer.weights}
    for one, other, old in zip(looped.variables, listed.variables, before, strict=True):
        # Initial maps hardly vary, and normalizing them amplifies rounding errors; gradients
        # of variables without effect are zero up to them.
        limit = 0 if one.dtype == "uint32" else 1e-4 * max(np.abs(value(other)).max(), 0.1)
        assert np.abs(np.float64(value(one)) - value(other)).max() <= limit, one.path
        if case.startswith(("different", "two")):
            # Statistics and seed generators are updated, block by block.
            assert (value(one) != old).any() == (id(one) not in frozen) or "seed" in one.path
    if case.startswith("different"):
        blocks = [layer for layer in looped.layers if isinstance(layer, NormalizedBlock)]
        rates = [(block.drop_path, block.branch.rate) for block in blocks]
        assert rates == [(rate, rate) for rate in (0.1, 0.2, 0.3, 0.4)]
        first, second, *_ = (array(block.norm.moving_mean.value) for block in blocks)
        assert np.abs(first - second).max() > 1e-6


@jax_only
def test_draws_differ_between_blocks_of_a_loop():
    class Recording(Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.branch = kvl.DropPath(0.5)

        def call(self, x, training=False):
            return x + self.branch(ops.ones_like(x), training=training)

    model = Chain([Recording(name=f"blocks_{i}") for i in range(6)], (1,))
    assert loops(model) == [6]
    # Sums of six independent draws, not six times the same draw.
    drawn = array(model(np.zeros((200, 1), "float32"), training=True))
    assert len(np.unique(np.round(drawn))) > 4


def pair(*arguments):
    return [NormalizedBlock(name=f"blocks_{i}", **a) for i, a in enumerate(arguments)]


def attention(layer, name, **arguments):
    return kvl.Block(layer, kvl.MLP(2), name=name, **arguments)


SCALE = keras.initializers.RandomUniform(0.1, 0.2)
# Neighbors, and the repeats of the loops they form.
MERGED = {
    "rate of zero": (lambda: pair({"drop_path": 0.0}, {"drop_path": 0.2}), []),
    "penalty": (lambda: pair({"penalty": 0.1}, {"penalty": 0.2}), []),
    "precision": (lambda: pair({"dtype": "float32"}, {"dtype": "mixed_bfloat16"}), []),
    "another layer": (
        lambda: [*pair({}, {}), keras.layers.Activation("tanh"), *pair({}, {})],
        [2, 2],
    ),
    "outside": (lambda: [keras.layers.Dense(6, "tanh") for _ in range(3)], [3]),
    "shape": (lambda: [kvl.ClassToken(name=f"token_{i}") for i in range(2)], []),
    "scale": (lambda: [attention(kvl.Attention(2), "a", layer_scale=s) for s in (None, 0.1)], []),
    "initializer": (lambda: [attention(kvl.Attention(2), n, layer_scale=SCALE) for n in "ab"], [2]),
}


class Own(kvl.MapLayer):
    """A map layer of a user, in which blocks differ as a description can't see."""

    def __init__(self, table=1.0, **kwargs):
        super().__init__(**kwargs)
        self.table = table

    def call(self, maps):
        return maps * ops.convert_to_tensor(self.table)


def by_array(index):
    table = np.ones((40, 40), "float32")
    table[20, 20] += index
    return Own(table)


def by_gradient(index):
    @ops.custom_gradient
    def scaled(maps):
        def gradient(*args, upstream=None):
            return (args[0] if upstream is None else upstream) * (1.0 + index)

        return maps, gradient

    layer = Own()
    layer.call = lambda maps: scaled(maps)
    return layer


OWN = {"array": by_array, "gradient": by_gradient}


def of_own(make, indices):
    layers = [kvl.Attention(2, on_weights=[make(index)]) for index in indices]
    model = Chain([attention(one, f"blocks_{i}") for i, one in enumerate(layers)], (40, 6))
    for index, variable in enumerate(model.weights):
        variable.assign(numbers(variable.shape, index, 0.3))
    return model


@jax_only
@pytest.mark.parametrize("by", OWN)
def test_blocks_that_differ_train_as_themselves(by):
    make, x = OWN[by], numbers((2, 40, 6))
    model = of_own(make, range(4))
    close(*map(array, compiled(lambda: [model(x, training=mode) for mode in (True, False)])))
    assert loops(model) == []
    assert loops(of_own(make, (0, 0, 0, 1))) == [3]


@jax_only
def test_blocks_that_share_a_variable_are_not_merged():
    """A loop would update a copy per block of the statistics."""

    class Normalized(kvl.MapLayer):
        def __init__(self, norm):
            super().__init__()
            self.norm = norm

        def call(self, maps, training=False):
            return self.norm(maps, training=training)

    norms = [keras.layers.BatchNormalization(axis=1, name=f"norm_{i}") for i in range(4)]
    for norm in norms:
        norm.build((None, 2, 40, 40))
    assert loops(of_own(lambda index: Normalized(norms[0]), range(3))) == []
    assert loops(of_own(lambda index: Normalized(norms[1 + index]), range(3))) == [3]


@jax_only
@pytest.mark.parametrize("case", MERGED)
def test_what_differs_is_not_merged(case):
    make, repeats = MERGED[case]
    layers = make()
    for index, layer in enumerate(layers):
        layer.name = f"{layer.name}_{index}"
    assert loops(Chain(layers, (5, 6))) == repeats


@jax_only
def test_frozen_statistics_are_not_merged():
    model = chain((0.3, 0.3))
    model.get_layer("blocks_1").norm.trainable = False  # It uses its running statistics.
    assert loops(model) == []
