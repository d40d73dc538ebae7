"""What a model of every family must do."""

import types

import keras
import numpy as np
import pytest
from harness import (
    BACKEND,
    FAMILIES,
    MIXED,
    PRECISIONS,
    Reloading,
    array,
    close,
    numbers,
    precision,
)
from keras import ops

import keras_vitx as kv

every_family = pytest.mark.parametrize("family", FAMILIES)
IMAGES = numbers((4, 16, 16, 3))
LABELS = np.array([0, 1, 2, 3])


def test_every_family_is_enrolled():
    families = {constructor.family for constructor in kv.models.MODELS.values()}
    families |= {
        name
        for name, value in vars(kv.models).items()
        if isinstance(value, types.FunctionType) and hasattr(value, "__wrapped__")
    }
    assert families == set(FAMILIES)


def trained(model, steps=2):
    """Compile `model` and train it on one batch; return its losses."""
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    history = model.fit(
        IMAGES, LABELS, batch_size=4, epochs=steps, shuffle=False, verbose=0
    ).history
    return history["loss"]


@pytest.fixture(scope="module")
def reloading(tmp_path_factory):
    """Models of each family and precision, trained and saved and read again."""
    reloading = Reloading(tmp_path_factory.mktemp("models"))
    reloading.losses = {}
    for family, make in FAMILIES.items():
        for policy in PRECISIONS:
            with precision(policy):
                model = make(depth=2, name="mine")
            model.class_names = list("abcde")
            reloading.losses[f"{family}@{policy}"] = trained(model)
            reloading.add(f"{family}@{policy}", model)
            for layer in model._flatten_layers(include_self=False):
                assert all(variable.dtype == "float32" for variable in layer.weights)
        reloading.add(f"{family}/plain", make(drop_path=0.0, include_top=False))
    reloading.run()
    return reloading


@every_family
@pytest.mark.parametrize("policy", PRECISIONS)
def test_fit(family, policy, reloading):
    losses = reloading.losses[f"{family}@{policy}"]
    assert len(losses) == 2
    assert np.isfinite(losses).all()


@every_family
@pytest.mark.parametrize("kind", (*(f"@{policy}" for policy in PRECISIONS), "/plain"))
def test_files_in_a_fresh_process(family, kind, reloading):
    reloading.check(f"{family}{kind}")


@every_family
def test_what_a_file_keeps(family, tmp_path):
    model = FAMILIES[family](name="mine")
    model.class_names = list("abcde")
    model.remat = True
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert list(loaded.class_names) == list("abcde")
    for name in ("name", "family", "preprocessing", "scan", "remat"):
        assert getattr(loaded, name) == getattr(model, name), name


@every_family
@pytest.mark.parametrize("policy", MIXED)
def test_mixed_precision(family, policy):
    exact = FAMILIES[family]()
    with precision(policy):
        mixed = FAMILIES[family]()
    mixed.set_weights(exact.get_weights())
    y = mixed(IMAGES, training=False)
    assert keras.backend.standardize_dtype(y.dtype) == "float32", "the head is in float32"
    policies = {layer.dtype_policy.name for layer in mixed.steps[:-2]}
    assert policies == {policy}
    close(array(y), array(exact(IMAGES, training=False)), 0.02)


@every_family
@pytest.mark.parametrize("scan", (False, True) if BACKEND == "jax" else (True,))
def test_remat(family, scan):
    plain = FAMILIES[family](drop_path=0.0)
    remat = type(plain).from_config(plain.get_config())
    remat.set_weights(plain.get_weights())
    plain.scan = remat.scan = scan
    remat.remat = True
    close(trained(remat), trained(plain))
    for one, other in zip(remat.weights, plain.weights, strict=True):
        # Some variables have no effect, and stay at rounding errors from zero.
        np.testing.assert_allclose(array(one.value), array(other.value), 1e-5, 1e-6, one.path)


@every_family
def test_remat_with_draws(family):
    model = FAMILIES[family](drop_path=0.3)
    model.remat = True
    states = [np.array(ops.convert_to_numpy(v.value)) for v in model.non_trainable_variables]
    assert states
    assert np.isfinite(trained(model, steps=1)).all()
    for before, variable in zip(states, model.non_trainable_variables, strict=True):
        assert (ops.convert_to_numpy(variable.value) != before).any(), "the generator went on"


@every_family
def test_images_that_are_not_square(family):
    model = FAMILIES[family](input_shape=(32, 48, 3))
    images = numbers((2, 32, 48, 3))
    y = array(model(images))
    assert y.shape == (2, 5)
    close(y.sum(-1), [1, 1])
    # A patch's place matters, and each patch is seen.
    moved = images.copy()
    moved[:, -8:, -8:] = 0
    assert np.abs(array(model(moved)) - y).max() > 0


@every_family
def test_input_tensor(family):
    inputs = keras.Input((16, 16, 3), name="mine")
    model = FAMILIES[family](input_tensor=inputs)
    assert model.input is inputs
    assert isinstance(model, kv.models.Chain)

    inputs = keras.Input((8, 8, 3))
    larger = keras.layers.UpSampling2D(data_format="channels_last")(inputs)
    around = FAMILIES[family](input_tensor=larger, name="around")
    assert around.name == "around"
    assert around.input_shape == (None, 8, 8, 3)
    inner = next(layer for layer in around.layers if isinstance(layer, kv.models.Chain))
    small = numbers((2, 8, 8, 3))
    close(array(around(small)), array(inner(small.repeat(2, 1).repeat(2, 2))))


@every_family
def test_without_a_classifier(family):
    make = FAMILIES[family]
    tokens = make(include_top=False)
    assert tokens.output_shape[2:] == (8,)
    assert tokens.layers[-1].name == "norm"
    y = array(tokens(IMAGES))
    for pooling in ("token", "avg", "max"):
        pooled = make(include_top=False, pooling=pooling)
        assert pooled.output_shape == (None, 8)
        pooled.set_weights(tokens.get_weights())
        patches = y[:, -4:]
        expected = {"token": y[:, 0], "avg": patches.mean(1), "max": patches.max(1)}[pooling]
        close(array(pooled(IMAGES)), expected)


@every_family
def test_pooling_under_a_classifier(family):
    for pooling in ("token", "avg", "max"):
        model = FAMILIES[family](pooling=pooling, classifier_activation=None)
        features = FAMILIES[family](include_top=False, pooling=pooling)
        features.set_weights(model.get_weights()[:-2])
        kernel, bias = model.get_weights()[-2:]
        close(array(model(IMAGES)), array(features(IMAGES)) @ kernel + bias)


@every_family
def test_features_can_be_cut_out(family):
    model = FAMILIES[family]()
    cut = keras.Model(model.input, model.get_layer("blocks_1").output)
    x = keras.ops.convert_to_tensor(IMAGES)
    for layer in model.steps:
        x = layer(x)
        if layer.name == "blocks_1":
            break
    close(array(cut(IMAGES)), array(x))


@every_family
@pytest.mark.parametrize("how", ("config", "clone_model"))
def test_clones(family, how):
    model = FAMILIES[family]()
    if how == "config":
        twin = type(model).from_config(model.get_config())
        assert type(twin) is type(model)
        assert twin.get_config() == model.get_config()
    else:
        # Keras 3.15 clones the graph of every functional model, whatever its class.
        twin = keras.models.clone_model(model)
    assert [v.path for v in twin.weights] == [v.path for v in model.weights]
    assert not {id(layer) for layer in twin.layers} & {id(layer) for layer in model.layers}
    assert np.abs(array(twin(IMAGES)) - array(model(IMAGES))).max() > 0, "new weights"
    twin.set_weights(model.get_weights())
    close(array(twin(IMAGES)), array(model(IMAGES)))


@every_family
def test_summary_reads_a_row_a_block(family):
    lines = []
    FAMILIES[family]().summary(print_fn=lines.append)
    text = "\n".join(map(str, lines))
    assert "blocks_0 (" in text
    assert "blocks_2 (" in text


@pytest.mark.parametrize(
    "arguments",
    [
        {"class_depth": 2},
        {"class_token_at": 0},
        {"class_token_at": 1, "class_depth": 0},
        {"class_depth": 0, "pooling": "avg"},
        {"class_in_keys": False},
        {"class_layer_scale": None},
        {"class_layer_scale": 1.0},
        {"layer_scale": None},
        {"layer_scale": 0.0, "scalar_scale": True},
        {"layer_scale": keras.initializers.RandomUniform(0.0, 0.2)},
        {"dropout": 0.2},
        {"mlp_ratio": 2.5},
    ],
    ids=str,
)
def test_variants_of_cait(arguments):
    model = FAMILIES["CaiT"](**{"depth": 2, **arguments})
    names = [layer.name for layer in model.steps]
    entry = arguments.get("class_token_at", 2)
    if arguments.get("pooling"):
        assert "cls_token" not in names
    else:
        assert names.index("cls_token") == 2 + entry
    assert names.count("blocks_token_only_0") == (arguments.get("class_depth", 1) > 0)
    y = array(model(IMAGES, training=True))
    assert np.isfinite(y).all()
    y = array(model(IMAGES))
    if arguments.get("layer_scale") != 0.0:
        assert np.abs(y[0] - y[1]).max() > 0, "the classifier sees the image"
    twin = kv.models.Chain.from_config(model.get_config())
    twin.set_weights(model.get_weights())
    close(array(twin(IMAGES)), y)
    if "class_in_keys" in arguments:
        _, maps = model.get_layer("blocks_token_only_0")(
            numbers((1, 5, 8)), return_attention_scores=True
        )
        assert maps.shape == (1, 2, 1, 4)
    block = model.get_layer("blocks_0")
    if arguments.get("scalar_scale"):
        assert block.ls1.gamma.shape == (1,)
    if "class_layer_scale" in arguments:
        class_block = model.get_layer("blocks_token_only_0")
        assert (class_block.ls1 is None) == (arguments["class_layer_scale"] is None)
        assert block.ls1 is not None
