"""The loop over depth is equivalent to the list of layers."""

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, close, numbers, precision
from keras import ops

from keras_vitx.layers import (
    MLP,
    Attention,
    Block,
    ClassToken,
    DropPath,
    HeadMixing,
    TalkingHeadsAttention,
)
from keras_vitx.layers.base import Layer, register
from keras_vitx.models import Chain, depth

jax_only = pytest.mark.skipif(BACKEND != "jax", reason="only JAX gains from the loop")
IMAGES = numbers((4, 4, 4, 3))
LABELS = np.array([0, 1, 2, 0])


@register
class NormalizedBlock(Layer):
    """A block with state: running statistics and seed generators."""

    varying = ("drop_path",)

    def __init__(self, drop_path=0.0, dropout=0.2, penalty=0.0, units=6, **kwargs):
        super().__init__(**kwargs)
        self.drop_path = drop_path
        self.dropout = dropout
        self.penalty = penalty
        self.units = units
        dtype = self.dtype_policy
        regularizer = keras.regularizers.L2(penalty) if penalty else None
        self.fc1 = keras.layers.Dense(
            units,
            "tanh",
            kernel_regularizer=regularizer,
            activity_regularizer=regularizer,
            dtype=dtype,
            name="fc1",
        )
        self.norm = keras.layers.BatchNormalization(momentum=0.5, dtype=dtype, name="norm")
        self.drop = keras.layers.Dropout(dropout, dtype=dtype, name="drop")
        self.fc2 = keras.layers.Dense(6, dtype=dtype, name="fc2")
        self.branch = DropPath(drop_path, dtype=dtype, name="branch")

    def build(self, input_shape):
        hidden = (*input_shape[:-1], self.units)
        self.fc1.build(input_shape)
        self.norm.build(hidden)
        self.fc2.build(hidden)

    def call(self, x, training=False):
        y = self.norm(self.fc1(x), training=training)
        y = self.fc2(self.drop(y, training=training))
        if self.penalty:
            self.add_loss(self.penalty * ops.mean(ops.square(ops.cast(y, "float32"))))
        return x + self.branch(y, training=training)


@keras.saving.register_keras_serializable(package="keras_vitx_tests")
class PlainBlock(keras.layers.Dense):
    """A layer from outside the package."""


def chain(scan=True, rates=(0.3, 0.3, 0.3, 0.3), remat=False, **arguments):
    """Blocks between two other layers."""
    keras.utils.clear_session()
    layers = [
        keras.layers.Dense(6, name="stem"),
        *(NormalizedBlock(rate, name=f"blocks_{i}", **arguments) for i, rate in enumerate(rates)),
        keras.layers.GlobalAveragePooling2D(data_format="channels_last", name="pool"),
        keras.layers.Dense(3, dtype="float32", name="head"),
    ]
    return Chain(layers, (4, 4, 3), scan=scan, remat=remat)


def of_family(family, **changes):
    """A function like `chain`, of a family."""

    def make(scan=True, **more):
        keras.utils.clear_session()
        shape = {"patch_size": 2, "input_shape": (4, 4, 3), "classes": 3, "drop_path": 0.2}
        model = FAMILIES[family](
            **{**shape, "classifier_activation": None, "layer_scale": 0.5, **changes, **more}
        )
        model.scan = scan
        return model

    return make


def pair_of(make=chain, **arguments):
    """Two models with equal variables, states included: with and without the loop."""
    looped, listed = make(scan=True, **arguments), make(scan=False, **arguments)
    for one, other in zip(listed.variables, looped.variables, strict=True):
        one.assign(value(other))
    return looped, listed


def value(variable):
    """The value of a variable, uncast: generator states are large integers."""
    return np.array(ops.convert_to_numpy(variable.value))


@pytest.fixture
def loops(monkeypatch):
    """The runs of blocks executed as loops during the test."""
    found, run = [], depth._run_scanned

    def spy(units, x, remat):
        found.append([layer.name for unit in units for layer in unit])
        return run(units, x, remat)

    monkeypatch.setattr(depth, "_run_scanned", spy)
    return found


def fit(model, steps=3):
    # Under PyTorch, dropout without a seed uses the global generator.
    keras.utils.set_random_seed(0)
    model.compile(
        keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    history = model.fit(IMAGES, LABELS, batch_size=4, epochs=steps, shuffle=False, verbose=0)
    return history.history["loss"]


def check_same(looped, listed, tolerance=1e-5):
    for one, other in zip(looped.variables, listed.variables, strict=True):
        if one.dtype == "uint32":
            np.testing.assert_array_equal(value(one), value(other))
        else:
            # Gradients of variables without effect are zero up to rounding errors.
            worst = np.abs(value(one) - value(other)).max()
            assert worst <= tolerance * max(np.abs(value(other)).max(), 0.1), one.path


def names(*indices):
    return [f"blocks_{i}" for i in indices]


@jax_only
@pytest.mark.parametrize(
    ("rates", "run"),
    [((0.1, 0.2, 0.3, 0.4), names(0, 1, 2, 3)), ((0.0, 0.1, 0.2, 0.3), names(1, 2, 3))],
)
def test_fit(rates, run, loops, tmp_path):
    looped, listed = pair_of(rates=rates)
    states = [value(variable) for variable in looped.non_trainable_variables]
    expected = fit(listed)
    assert loops == []
    close(fit(looped), expected)
    assert loops[0] == run
    check_same(looped, listed)
    # Running statistics and seed generators were updated, block by block.
    for before, variable in zip(states, looped.non_trainable_variables, strict=True):
        assert (value(variable) != before).any(), variable.path
    statistics = [array(looped.get_layer(name).norm.moving_mean.value) for name in names(0, 1)]
    assert np.abs(statistics[0] - statistics[1]).max() > 1e-6
    # The rates of a step are restored, and files do not depend on the loop.
    blocks = [looped.get_layer(name) for name in names(0, 1, 2, 3)]
    assert [(block.drop_path, block.branch.rate) for block in blocks] == [(r, r) for r in rates]
    looped.save(tmp_path / "looped.keras")
    loaded = keras.saving.load_model(tmp_path / "looped.keras")
    assert loaded.scan
    close(array(loaded(IMAGES)), array(looped(IMAGES)))


FAMILY = {
    "CaiT": (of_family("CaiT", depth=3), [names(0, 1, 2)]),
    # The first block receives no maps, the last returns none.
    "alternating": (
        of_family("RefinedViT", depth=6, conv_stem=False),
        [names(1, 2, 3, 4)],
    ),
    "similarity": (
        of_family(
            "RefinedViT",
            depth=6,
            conv_stem=False,
            refiner="paper",
            similarity=0.5,
            similarity_depth=5,
            drop_path=0.0,
        ),
        [names(1, 2, 3, 4)],
    ),
}


@pytest.mark.parametrize(
    ("case", "remat"),
    [("CaiT", True), pytest.param("alternating", True, marks=jax_only), ("similarity", False)],
)
def test_families(loops, case, remat):
    make, runs = FAMILY[case]
    looped, listed = pair_of(make)
    looped.remat = remat
    for model in (looped, listed):
        model(IMAGES, training=True)
    assert loops[: len(runs)] == (runs if BACKEND == "jax" else [])
    found, expected = (sum(float(array(loss)) for loss in m.losses) for m in (looped, listed))
    close(found, expected, 1e-4)
    assert (found > 0.1) == (case == "similarity")
    close(fit(looped), fit(listed))
    # Initial maps hardly vary, and normalizing them amplifies rounding errors.
    check_same(looped, listed, 1e-4)


@jax_only
def test_the_step_holds_one_block():
    import jax

    def step(model, training):
        def loss(trainable, rest, x):
            y, states = model.stateless_call(trainable, rest, x, training=training)
            return y.sum(), states

        values = [
            [v.value for v in part]
            for part in (model.trainable_variables, model.non_trainable_variables)
        ]
        return str(jax.make_jaxpr(jax.grad(loss, has_aux=True))(*values, IMAGES))

    shallow, deep = chain(rates=(0.3,) * 3), chain(rates=(0.3,) * 9)
    counts = [step(model, True).count("dot_general") for model in (shallow, deep)]
    assert counts[0] == counts[1]
    assert "scan[" in step(deep, True) and "scan[" not in step(deep, False)
    deep.scan = False
    assert "scan[" not in step(deep, True)


@jax_only
def test_mixed_precision(loops):
    with precision("mixed_bfloat16"):
        looped, listed = pair_of()
    close(*(array(model(IMAGES, training=True)) for model in (looped, listed)), 0.02)
    assert loops == [names(0, 1, 2, 3)]
    close(fit(looped, 2), fit(listed, 2), 0.02)
    assert all(v.dtype == "float32" for v in looped.trainable_variables)


@jax_only
def test_losses_count_once(loops):
    looped, listed = pair_of(penalty=0.1, dropout=0.0, rates=(0.0, 0.0, 0.0))
    for model in (looped, listed):
        model(IMAGES, training=True)
    assert loops == [names(0, 1, 2)]
    close(sum(map(array, looped.losses)), sum(map(array, listed.losses)))
    assert float(sum(map(array, listed.losses))) > 0.01
    close(fit(looped), fit(listed))
    check_same(looped, listed)


@pytest.mark.parametrize("scan", (True, False) if BACKEND == "jax" else (True,))
def test_remat(scan, loops):
    _, listed = pair_of(penalty=0.1)
    remat = chain(scan=scan, remat=True, penalty=0.1)
    for one, other in zip(remat.variables, listed.variables, strict=True):
        one.assign(value(other))
    close(fit(remat), fit(listed))
    assert bool(loops) == (scan and BACKEND == "jax")
    check_same(remat, listed)


@jax_only
def test_frozen_blocks_are_a_run_of_their_own(loops):
    looped, listed = pair_of()
    for model in (looped, listed):
        for name in names(0, 1):
            model.get_layer(name).trainable = False
    frozen = [array(v.value) for v in looped.get_layer("blocks_0").weights[:2]]
    close(fit(looped), fit(listed))
    assert loops[:2] == [names(0, 1), names(2, 3)]
    check_same(looped, listed)
    for before, variable in zip(frozen, looped.get_layer("blocks_0").weights, strict=False):
        np.testing.assert_array_equal(before, array(variable.value))


def connect(layers, shape):
    """Call layers on symbolic inputs, as in a functional model."""
    x = keras.Input(shape[1:])
    for layer in layers:
        x = layer(x)


def output_of(layers, x):
    connect(layers, x.shape)
    y, _ = depth.run(layers, ops.convert_to_tensor(x), training=True, scan=True, remat=False)
    return array(y)


@jax_only
def test_draws_differ_between_blocks_of_a_loop():
    class Recording(Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.branch = DropPath(0.5)

        def call(self, x, training=False):
            return x + self.branch(ops.ones_like(x), training=training)

    layers = [Recording(name=f"blocks_{i}") for i in range(6)]
    # Sums of six independent draws, not six times the same draw.
    assert len(np.unique(np.round(output_of(layers, np.zeros((200, 1), "float32"))))) > 4


@jax_only
def test_what_differs_is_not_merged(loops):
    def runs(layers, shape=(2, 6)):
        loops.clear()
        output_of(layers, numbers(shape))
        return list(loops)

    def blocks(*arguments, first=0):
        return [NormalizedBlock(name=f"blocks_{i}", **a) for i, a in enumerate(arguments, first)]

    different = [
        ({"units": 6}, {"units": 5}),
        ({"dropout": 0.0}, {"dropout": 0.2}),
        ({"drop_path": 0.0}, {"drop_path": 0.2}),
        ({"penalty": 0.1}, {"penalty": 0.2}),
        ({"dtype": "float32"}, {"dtype": "mixed_bfloat16"}),
    ]
    for pair in different:
        assert runs(blocks(*pair)) == [], pair
    # A run of blocks ends at any other layer.
    layers = [*blocks({}, {}), keras.layers.Activation("tanh"), *blocks({}, {}, first=2)]
    assert runs(layers) == [names(0, 1), names(2, 3)]
    half = blocks({}, {})
    connect(half, (None, 6))
    half[1].norm.trainable = False  # It uses its running statistics.
    assert runs(half) == []
    # Layers from outside the package.
    assert runs([PlainBlock(6, "tanh", name=f"dense_{i}") for i in range(3)]) == [
        ["dense_0", "dense_1", "dense_2"]
    ]
    assert runs([PlainBlock(6, activation) for activation in ("tanh", "relu")]) == []
    # What changes the shape.
    assert runs([ClassToken(name=f"token_{i}") for i in range(2)], (2, 5, 8)) == []


@jax_only
def test_structure_of_attention_counts(loops):
    def block(attention, **arguments):
        return Block(attention, MLP(2), **arguments)

    scale = keras.initializers.RandomUniform(0.1, 0.2)
    pairs = [
        (block(Attention(2)), block(Attention(4))),
        (block(Attention(2)), block(TalkingHeadsAttention(2))),
        (
            block(Attention(2, on_logits=[HeadMixing()])),
            block(Attention(2, on_weights=[HeadMixing()])),
        ),
        (block(Attention(2)), block(Attention(2, qkv_bias=False))),
        (block(Attention(2), epsilon=1e-6), block(Attention(2), epsilon=1e-5)),
        (block(Attention(2)), block(Attention(2), layer_scale=0.1)),
    ]
    for pair in pairs:
        output_of(pair, numbers((2, 5, 8)))
        assert loops == []
    same = [block(Attention(2), layer_scale=scale, name=name) for name in "ab"]
    output_of(same, numbers((2, 5, 8)))
    assert loops == [["a", "b"]]


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has the loop")
def test_elsewhere_the_list_is_run(loops):
    looped, listed = pair_of(rates=(0.1, 0.2, 0.3))
    np.testing.assert_array_equal(fit(looped, 2), fit(listed, 2))
    assert loops == []


def test_inference_is_a_list(loops):
    model = chain()
    model(IMAGES, training=False)
    model.predict(IMAGES, verbose=0)
    assert loops == []
