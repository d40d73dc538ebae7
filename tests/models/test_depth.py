"""The loop over depth is equivalent to the list of layers."""

import keras
import numpy as np
import pytest
from harness import BACKEND, array, close, numbers, precision
from keras import ops

import keras_vitx as kv
from keras_vitx.layers import DropPath
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
        self.fc1 = keras.layers.Dense(
            units,
            "tanh",
            kernel_regularizer=keras.regularizers.L2(penalty) if penalty else None,
            activity_regularizer=keras.regularizers.L2(penalty) if penalty else None,
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


def chain(rates=(0.3, 0.3, 0.3, 0.3), block=NormalizedBlock, scan=True, remat=False, **arguments):
    """Blocks between two other layers."""
    keras.utils.clear_session()
    layers = [
        keras.layers.Dense(6, name="stem"),
        *(block(rate, name=f"blocks_{i}", **arguments) for i, rate in enumerate(rates)),
        keras.layers.GlobalAveragePooling2D(data_format="channels_last", name="pool"),
        keras.layers.Dense(3, dtype="float32", name="head"),
    ]
    return Chain(layers, (4, 4, 3), scan=scan, remat=remat)


def pair_of(make=chain, **arguments):
    """Two models with equal variables, states included: with and without the loop."""
    looped = make(scan=True, **arguments)
    listed = make(scan=False, **arguments)
    for one, other in zip(listed.variables, looped.variables, strict=True):
        one.assign(value(other))
    return looped, listed


def value(variable):
    """The value of a variable, uncast: generator states are large integers."""
    return np.array(ops.convert_to_numpy(variable.value))


@pytest.fixture
def loops(monkeypatch):
    """The runs of blocks executed as loops during the test."""
    found = []
    run = depth._run_scanned

    def spy(units, x, remat):
        found.append([layer.name for unit in units for layer in unit])
        return run(units, x, remat)

    monkeypatch.setattr(depth, "_run_scanned", spy)
    return found


def fit(model, steps=3):
    keras.utils.set_random_seed(
        0
    )  # Under PyTorch, dropout without a seed uses the global generator.
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


EQUAL = (0.3, 0.3, 0.3, 0.3)
RUNS = {
    "equal": (EQUAL, [names(0, 1, 2, 3)]),
    "rising": ((0.1, 0.2, 0.3, 0.4), [names(0, 1, 2, 3)]),
    "from_zero": ((0.0, 0.1, 0.2, 0.3), [names(1, 2, 3)]),
    "none": ((0.0, 0.0, 0.0), [names(0, 1, 2)]),
}


@jax_only
@pytest.mark.parametrize("case", RUNS)
def test_fit(case, loops, tmp_path):
    rates, runs = RUNS[case]
    looped, listed = pair_of(rates=rates)
    states = [value(variable) for variable in looped.non_trainable_variables]
    expected = fit(listed)
    assert loops == []
    close(fit(looped), expected)
    assert loops[: len(runs)] == runs
    check_same(looped, listed)
    # Running statistics and seed generators were updated, block by block.
    for before, variable in zip(states, looped.non_trainable_variables, strict=True):
        assert (value(variable) != before).any(), variable.path
    statistics = [array(looped.get_layer(name).norm.moving_mean.value) for name in names(0, 1, 2)]
    assert np.abs(statistics[0] - statistics[1]).max() > 1e-6
    # Temporary state of a step is restored, and files do not depend on the loop.
    for rate, name in zip(rates, names(0, 1, 2, 3), strict=False):
        block = looped.get_layer(name)
        assert (block.drop_path, block.branch.rate) == (rate, rate)
    for model, path in ((looped, "looped"), (listed, "listed")):
        model.save(tmp_path / f"{path}.keras")
    loaded = [keras.saving.load_model(tmp_path / f"{path}.keras") for path in ("looped", "listed")]
    assert [model.scan for model in loaded] == [True, False]
    for one, other in zip(*(model.weights for model in loaded), strict=True):
        close(value(one), value(other), 1e-5, one.path)
    close(array(loaded[0](IMAGES)), array(looped(IMAGES)))


def connect(layers, shape):
    """Make a functional model of layers."""
    x = inputs = keras.Input(shape[1:])
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x)


@jax_only
def test_draws_differ_between_blocks_of_a_loop():
    class Recording(Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.branch = DropPath(0.5)

        def call(self, x, training=False):
            ones = ops.ones_like(x)
            return x + self.branch(ones, training=training)

    layers = [Recording(name=f"blocks_{i}") for i in range(6)]
    x = np.zeros((200, 1), "float32")
    connect(layers, x.shape)
    y, _ = depth.run(layers, ops.convert_to_tensor(x), training=True, scan=True, remat=False)
    # Sums of six independent draws, not six times the same draw.
    assert len(np.unique(np.round(array(y)))) > 4


@jax_only
@pytest.mark.parametrize("remat", (False, True))
def test_the_step_holds_one_block(remat):
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

    def products(text):
        return text.count("dot_general")

    shallow, deep = chain((0.3,) * 3, remat=remat), chain((0.3,) * 9, remat=remat)
    assert "scan[" in step(deep, True)
    assert products(step(deep, True)) == products(step(shallow, True))
    assert "scan[" not in step(deep, False)
    deep.scan = False
    assert "scan[" not in step(deep, True)
    assert products(step(deep, True)) > products(step(shallow, True))


def cait(scan, **changes):
    keras.utils.clear_session()
    model = kv.CaiT(
        **{
            "dim": 8,
            "depth": 3,
            "num_heads": 2,
            "patch_size": 2,
            "layer_scale": 0.5,
            "drop_path": 0.2,
            "input_shape": (4, 4, 3),
            "classes": 3,
            "classifier_activation": None,
            **changes,
        }
    )
    model.scan = scan
    return model


@jax_only
def test_cait(loops):
    looped, listed = pair_of(cait)
    # A training pass without random draws is the same, too.
    looped_logits, logits = (array(m(IMAGES, training=True)) for m in (looped, listed))
    close(looped_logits, logits)
    assert loops == [names(0, 1, 2), ["blocks_token_only_0", "blocks_token_only_1"]]
    close(fit(looped), fit(listed))
    check_same(looped, listed)


@jax_only
def test_layer_scale_from_an_initializer_and_number_alike(loops):
    model = cait(True, layer_scale=keras.initializers.RandomUniform(0.1, 0.2))
    model(IMAGES, training=True)
    assert loops[0] == names(0, 1, 2)


@jax_only
def test_mixed_precision(loops):
    with precision("mixed_bfloat16"):
        looped, listed = pair_of()
    x, y = (array(model(IMAGES, training=True)) for model in (looped, listed))
    assert loops == [names(0, 1, 2, 3)]
    close(x, y, 0.02)
    check_same(looped, listed, 0.02)
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
    expected = fit(listed)
    close(fit(looped), expected)
    check_same(looped, listed)


@jax_only
@pytest.mark.parametrize("scan", (True, False))
def test_remat(scan, loops):
    _, listed = pair_of()
    remat = chain(scan=scan, remat=True)
    for one, other in zip(remat.variables, listed.variables, strict=True):
        one.assign(value(other))
    close(fit(remat), fit(listed))
    assert bool(loops) == scan
    check_same(remat, listed)


@jax_only
def test_frozen_blocks_are_a_run_of_their_own(loops):
    looped, listed = pair_of(rates=EQUAL)
    for model in (looped, listed):
        for name in names(0, 1):
            model.get_layer(name).trainable = False
    frozen = [array(v.value) for v in looped.get_layer("blocks_0").weights[:2]]
    expected = fit(listed)
    close(fit(looped), expected)
    assert loops[:2] == [names(0, 1), names(2, 3)]
    check_same(looped, listed)
    for before, variable in zip(frozen, looped.get_layer("blocks_0").weights, strict=False):
        np.testing.assert_array_equal(before, array(variable.value))


def runs_of(layers, loops, x=None):
    x = ops.convert_to_tensor(numbers((2, 6)) if x is None else x)
    connect(layers, x.shape)
    loops.clear()
    depth.run(layers, x, training=True, scan=True, remat=False)
    return loops


@jax_only
def test_what_differs_is_not_merged(loops):
    def blocks(*arguments, first=0):
        return [NormalizedBlock(name=f"blocks_{i}", **a) for i, a in enumerate(arguments, first)]

    different = [
        ({"units": 6}, {"units": 5}),
        ({"dropout": 0.1}, {"dropout": 0.2}),
        ({"dropout": 0.0}, {"dropout": 0.2}),
        ({"drop_path": 0.0}, {"drop_path": 0.2}),
        ({"penalty": 0.1}, {"penalty": 0.2}),
        ({"dtype": "float32"}, {"dtype": "mixed_bfloat16"}),
    ]
    for pair in different:
        assert runs_of(blocks(*pair), loops) == [], pair
    assert runs_of(blocks({}, {}), loops) == [names(0, 1)]
    # A run of blocks ends at any other layer.
    layers = [*blocks({}, {}), keras.layers.Activation("tanh"), *blocks({}, {}, first=2)]
    assert runs_of(layers, loops) == [names(0, 1), names(2, 3)]

    half = blocks({}, {})
    connect(half, (None, 6))
    half[1].norm.trainable = False  # It uses its running statistics.
    assert runs_of(half, loops) == []


@jax_only
def test_structure_of_attention_counts(loops):
    def block(attention, **arguments):
        return kv.layers.Block(attention, kv.layers.MLP(2), **arguments)

    Attention, Mixing = kv.layers.Attention, kv.layers.HeadMixing
    pairs = [
        (block(Attention(2)), block(Attention(4))),
        (block(Attention(2)), block(kv.layers.TalkingHeadsAttention(2))),
        (
            block(Attention(2, on_logits=[Mixing()])),
            block(Attention(2, on_weights=[Mixing()])),
        ),
        (block(Attention(2)), block(Attention(2, qkv_bias=False))),
        (block(Attention(2), epsilon=1e-6), block(Attention(2), epsilon=1e-5)),
        (block(Attention(2)), block(Attention(2), layer_scale=0.1)),
        (
            block(Attention(2), layer_scale=0.1),
            block(Attention(2), layer_scale=0.1, scalar_scale=True),
        ),
    ]
    x = numbers((2, 5, 8))
    for pair in pairs:
        assert runs_of(pair, loops, x) == []
    same = block(Attention(2), name="a"), block(Attention(2), name="b")
    assert runs_of(same, loops, x) == [["a", "b"]]


@jax_only
def test_what_changes_the_form_is_not_looped(loops):
    tokens = [kv.layers.ClassToken(name=f"token_{i}") for i in range(2)]
    assert runs_of(tokens, loops, numbers((2, 5, 8))) == []


def refined(scan, **changes):
    keras.utils.clear_session()
    model = kv.RefinedViT(
        **{
            "dim": 8,
            "depth": 6,
            "num_heads": 2,
            "patch_size": 2,
            "layer_scale": 0.5,
            "drop_path": 0.2,
            "conv_stem": False,
            "input_shape": (4, 4, 3),
            "classes": 3,
            "classifier_activation": None,
            **changes,
        }
    )
    model.scan = scan
    return model


@jax_only
@pytest.mark.parametrize("remat", (False, True))
def test_blocks_that_alternate(loops, remat):
    looped, listed = pair_of(refined)
    looped.remat = remat
    close(fit(looped), fit(listed))
    # The first block receives no carried maps, the last returns none.
    assert loops[0] == names(1, 2, 3, 4)
    # Initial maps hardly vary, and normalizing them amplifies rounding errors.
    check_same(looped, listed, 1e-4)


def similar(scan, **changes):
    arguments = {"refiner": "paper", "similarity": 0.5, "similarity_depth": 5, "drop_path": 0.0}
    return refined(scan, **arguments, **changes)


@jax_only
@pytest.mark.parametrize("remat", (False, True))
def test_similarity_of_blocks_in_a_loop(loops, remat):
    looped, listed = pair_of(similar)
    looped.remat = remat
    for model in (looped, listed):
        model(IMAGES, training=True)
    assert loops == [names(1, 2, 3, 4)]
    found, expected = (float(sum(map(array, model.losses))) for model in (looped, listed))
    close(found, expected, 1e-4)
    assert 0.1 < found <= 0.5
    close(fit(looped, 1), fit(listed, 1))
    check_same(looped, listed, 1e-4)


@jax_only
def test_layers_of_others_are_looped_too(loops):
    layers = [PlainBlock(6, "tanh", name=f"dense_{i}") for i in range(3)]
    assert runs_of(layers, loops) == [["dense_0", "dense_1", "dense_2"]]
    layers = [PlainBlock(6, activation) for activation in ("tanh", "relu")]
    assert runs_of(layers, loops) == []


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has the loop")
def test_elsewhere_the_list_is_run(loops):
    looped, listed = pair_of(rates=(0.1, 0.2, 0.3))
    np.testing.assert_array_equal(fit(looped, 2), fit(listed, 2))
    assert loops == []
    for one, other in zip(looped.variables, listed.variables, strict=True):
        np.testing.assert_array_equal(array(one.value), array(other.value), err_msg=one.path)


@pytest.mark.skipif(BACKEND == "jax", reason="tested with the loop")
def test_remat_elsewhere():
    remat, listed = pair_of(penalty=0.1)
    remat.remat = True
    close(fit(remat), fit(listed))
    check_same(remat, listed)


def test_inference_is_a_list(loops):
    model = chain()
    model(IMAGES, training=False)
    model.predict(IMAGES, verbose=0)
    assert loops == []
