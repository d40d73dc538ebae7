"""The contract of every family's models."""

import keras
import numpy as np
import pytest
from harness import (
    BACKEND,
    FAMILIES,
    FAMILIES_HERE,
    WITHOUT_EXAMPLE,
    Reloading,
    array,
    blocks,
    close,
    compiled,
    numbers,
    precision,
    randomize,
    trained,
)

import keras_vitx as kv
from keras_vitx.keras_internals import sublayers

every_family = pytest.mark.parametrize("family", FAMILIES)
once = pytest.mark.backend_free
IMAGES = numbers((4, 16, 16, 3))
# The precision knows no family: one, and the one that normalizes maps. float16 has, besides what
# bfloat16 has, Keras's scaling of the loss.
HALF = [("RefinedViT", "mixed_bfloat16"), ("CaiT", "mixed_float16")]
TRAINED = [*((family, "float32") for family in sorted(FAMILIES_HERE - dict(HALF).keys())), *HALF]


def test_every_family_is_enrolled():
    example = "kv.ViT(dim=8, depth=2, num_heads=2, patch_size=8, input_shape=(16, 16, 3))"
    assert not WITHOUT_EXAMPLE, f"write a tiny model into the docstring, such as >>> {example}"
    assert {constructor.family for constructor in kv.models.MODELS.values()} == set(FAMILIES)
    assert all(getattr(kv, family).__wrapped__ for family in FAMILIES)


@pytest.fixture(scope="module")
def reloading(tmp_path_factory):
    """Models of each family, trained, saved and loaded again."""
    reloading = Reloading(tmp_path_factory.mktemp("models"))
    reloading.losses = {}
    for family, policy in TRAINED:
        with precision(policy):
            model = FAMILIES[family](name="mine")
        model.class_names = list("abcde")
        reloading.losses[f"{family}@{policy}"] = trained(model)
        reloading.add(f"{family}@{policy}", model)
        parts = sublayers(model)[1:]
        assert {variable.dtype for part in parts for variable in part.weights} == {"float32"}
    reloading.run()
    return reloading


@pytest.mark.parametrize("name", ["@".join(pair) for pair in TRAINED])
def test_trained_models_in_a_fresh_process(name, reloading):
    assert len(reloading.losses[name]) == 2 and np.isfinite(reloading.losses[name]).all()
    reloading.check(name)


@pytest.mark.parametrize("family", sorted(FAMILIES_HERE))
def test_the_head_alone_is_trained(family):
    """As docs/guides/plain-keras.md freezes a classifier, whose last layer is a softmax."""
    model = FAMILIES[family]()
    for layer in model.layers:
        layer.trainable = layer.name == "head"
    before = {v.path: array(v) for v in model.trainable_variables}
    # The seeds of dropout go on.
    rest = [v for v in model.non_trainable_variables if v.name != "seed_generator_state"]
    frozen = [array(v) for v in rest]
    trained(model)
    assert {path.split("/")[-2] for path in before} <= {"head", "head_dist"}
    for variable in model.trainable_variables:
        assert np.abs(array(variable) - before[variable.path]).max() > 0, variable.path
    for variable, value in zip(rest, frozen, strict=True):
        np.testing.assert_array_equal(array(variable), value)


@pytest.mark.parametrize("family", sorted(FAMILIES_HERE))
def test_half_precision(family):
    exact, policy = FAMILIES[family](), "mixed_float16"
    with precision(policy):
        mixed = FAMILIES[family]()
    mixed.set_weights(exact.get_weights())
    y, expected = compiled(lambda: [model(IMAGES, training=False) for model in (mixed, exact)])
    assert keras.backend.standardize_dtype(y.dtype) == "float32", "the head is in float32"
    policies = {
        layer.dtype_policy.name
        for layer in mixed.layers
        if layer.name not in ("head", "prediction")
    }
    assert policies == {policy}
    close(array(y), array(expected), 0.02)


# Queries and keys are projected together in the first, and values, too, in the second.
@once
@pytest.mark.parametrize("family", ("ConViT", "RefinedViT"))
def test_lora_is_trained_and_merged_into_what_is_saved(family, tmp_path):
    model = FAMILIES[family](drop_path=0.0)
    randomize(model)
    paths = [variable.path for variable in model.trainable_variables]
    parts = (part for block in blocks(model) for part in sublayers(block))
    denses = [part for part in parts if isinstance(part, keras.layers.Dense)]
    for index, dense in enumerate(denses):
        dense.enable_lora(2, lora_alpha=3)
        dense.lora_kernel_b.assign(numbers(dense.lora_kernel_b.shape, index, 0.2))

    def values():
        return [{v.name: array(v.value) for v in dense.weights} for dense in denses]

    before = values()
    trained(model)
    for old, new in zip(before, values(), strict=True):
        changed = {name for name in old if (old[name] != new[name]).any()} - {"bias"}
        assert changed == {"lora_kernel_a", "lora_kernel_b"}
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    close(array(loaded(IMAGES)), array(model(IMAGES)), 1e-4)
    assert [variable.path for variable in loaded.trainable_variables] == paths


@once
@every_family
def test_images_that_are_not_square(family):
    model = FAMILIES[family](input_shape=(32, 48, 3))
    randomize(model)  # A LayerScale of 1e-5 would leave too little.
    images = numbers((2, 32, 48, 3))
    # The output depends on every patch.
    changed = images.copy()
    changed[:, -8:, -8:] = 0
    y, other = array(model(images)), array(model(changed))
    assert y.shape == (2, 5)
    close(y.sum(-1), [1, 1])
    assert np.abs(other - y).max() > 0


@once
@every_family
def test_no_images(family):
    model = FAMILIES[family]()
    assert model(np.zeros((0, *model.input_shape[1:]), "float32")).shape == (0, 5)


@once
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


@once
@every_family
def test_without_a_classifier(family):
    make = FAMILIES[family]
    tokens = make(include_top=False)
    width = 16 if family in ("PiT", "RotaryViT") else 8
    assert tokens.output_shape == (None, 4 + (family != "Mixer"), width)
    assert tokens.layers[-1].name == "norm"
    y = array(tokens(IMAGES))
    for pooling in ("token", "avg", "max")[family == "Mixer" :]:
        pooled = make(include_top=False, pooling=pooling)
        assert pooled.output_shape == (None, width)
        pooled.set_weights(tokens.get_weights())
        patches = y[:, -4:]
        expected = {"token": y[:, 0], "avg": patches.mean(1), "max": patches.max(1)}[pooling]
        close(array(pooled(IMAGES)), expected)
        classifier = make(pooling=pooling, classifier_activation=None)
        classifier.set_weights([*tokens.get_weights(), *classifier.get_weights()[-2:]])
        kernel, bias = classifier.get_weights()[-2:]
        close(array(classifier(IMAGES)), expected @ kernel + bias)


@once
@every_family
@pytest.mark.parametrize("how", ("config", "clone_model"))
def test_clones(family, how):
    model = FAMILIES[family](name="mine", remat=True)
    model.class_names = list("abcde")
    if how == "config":
        twin = type(model).from_config(model.get_config())
        assert type(twin) is type(model) and twin.get_config() == model.get_config()
    else:
        # Keras 3.15 clones the graph of every functional model, whatever its class.
        twin = keras.models.clone_model(model)
    assert [v.path for v in twin.weights] == [v.path for v in model.weights]
    assert not {id(layer) for layer in twin.layers} & {id(layer) for layer in model.layers}
    expected = array(model(IMAGES))
    assert (array(twin(IMAGES)) != expected).any(), "new weights"
    twin.set_weights(model.get_weights())
    close(array(twin(IMAGES)), expected)


# Under JAX, a loop carries the stream.
@pytest.mark.parametrize(
    "family", {"torch": ("CaiT", "RefinedViT"), "jax": ("CaiT",)}.get(BACKEND, ())
)
def test_the_residual_stream_in_float32(family):
    """With LayerScale from 1e-5, sums in half precision round to the tokens."""
    small = {"depth": 4, "layer_scale": 1e-5, "drop_path": 0.0}
    with precision("mixed_bfloat16"):
        model = FAMILIES[family](residual_dtype="float32", **small)
        half = FAMILIES[family](**small)
    half.set_weights(model.get_weights())
    streams = []
    for one in (model, half):
        outputs = [keras.tree.flatten(block.output)[0] for block in blocks(one)]
        cut = keras.Model(one.input, [*outputs, one.output])
        streams.append(compiled(lambda cut=cut: cut(IMAGES, training=False)))
    close(*(array(tokens.pop()) for tokens in streams), 0.05)
    dtypes = [{keras.backend.standardize_dtype(x.dtype) for x in tokens} for tokens in streams]
    assert dtypes == [{"float32"}, {"bfloat16"}]
    if family == "CaiT":
        unchanged, lost = (np.mean(array(x[0]) == array(x[1])) for x in streams)
        assert lost > 0.95 and unchanged < 0.9
    assert np.isfinite(trained(model)).all()
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    assert all(block.residual_dtype == "float32" for block in blocks(twin))
