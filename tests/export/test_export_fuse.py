import keras
import pytest
from harness import (
    BACKEND,
    FAMILIES,
    FAMILIES_HERE,
    GOLDEN_CASES,
    Reloading,
    array,
    blocks,
    close,
    numbers,
    precision,
    randomize,
)

import keras_vitx as kv
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import (
    MLP,
    Attention,
    GatedPositionalAttention,
    HeadMixing,
    LocalMapConvolution,
    ReAttention,
)
from keras_vitx.layers.maps import MapNormalization


def norms(model):
    """The normalizations over maps; those of a convolutional stem have the last axis."""
    batch = (each for each in sublayers(model) if isinstance(each, keras.layers.BatchNormalization))
    return [each for each in batch if each.axis == 1]


def fused_equally(model, images=None):
    """Fuse a model with random weights, check its outputs and return it."""
    randomize(model)
    before = [array(weight) for weight in model.weights]
    images = numbers((2, *model.input_shape[1:])) if images is None else images
    fused = kv.fuse(model)
    close(array(fused(images, training=False)), array(model(images, training=False)), 1e-5)
    for weight, value in zip(model.weights, before, strict=True):
        assert (array(weight) == value).all()
    return fused


@pytest.fixture(scope="module")
def reloading(tmp_path_factory):
    return Reloading(tmp_path_factory.mktemp("fused"))


@pytest.mark.parametrize("name", FAMILIES_HERE)
def test_families(name, reloading):
    model = FAMILIES[name](classifier_activation=None)
    fused = fused_equally(model)
    assert not norms(fused)
    assert bool(norms(model)) == (name in ("DeepViT", "RefinedViT"))
    again = kv.fuse(fused)
    assert again.get_config() == fused.get_config()
    for weight, twin in zip(fused.weights, again.weights, strict=True):
        assert (array(weight) == array(twin)).all()
    reloading.add(name, fused)


def test_files_in_a_fresh_process(reloading):
    reloading.run()
    for name in reloading.expected:
        reloading.check(name)


CASES_HERE = (
    tuple(GOLDEN_CASES)
    if BACKEND == "torch"
    else ("cait", "convit", "deepvit_s", "refined_vit_dense", "deit_distilled")
)


@pytest.mark.parametrize("case", CASES_HERE)
def test_golden_models(case):
    model = GOLDEN_CASES[case]()
    images = numbers((2, *model.input_shape[1:]))
    expected = array(model(images))
    fused = kv.fuse(model)
    close(array(fused(images)), expected, 1e-5)
    assert not norms(fused)


VARIANTS = {
    "DeepViT with a stem": lambda: FAMILIES["DeepViT"](
        conv_stem=True, map_scale="head", residual_scale=0.5, input_shape=(32, 16, 3)
    ),
    "Refined-ViT with a stem": lambda: FAMILIES["RefinedViT"](conv_stem=True, dense_head=True),
    "the paper's refiner": lambda: FAMILIES["RefinedViT"](refiner="paper"),
    "layers over maps in ConViT": lambda: FAMILIES["ConViT"](
        attention=lambda index: (
            Attention(4) if index == 2 else GatedPositionalAttention(4, on_weights=[ReAttention()])
        )
    ),
    "distilled": lambda: FAMILIES["ViT"](distillation_token=True),
    "norms over maps": lambda: FAMILIES["ViT"](
        attention=lambda index: Attention(
            2,
            on_logits=[HeadMixing(), MapNormalization()],
            on_weights=[
                MapNormalization(),
                HeadMixing(use_bias=False, heads_out=3),
                MapNormalization(),
                LocalMapConvolution(constraint="row+column"),
                MapNormalization(scale=False),
                LocalMapConvolution(constraint="spatial", grid=(2, 2)),
                MapNormalization(center=False),
            ],
        )
    ),
}
NORMS_LEFT = {"norms over maps": 4}


@pytest.mark.backend_free
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name):
    fused = fused_equally(VARIANTS[name]())
    assert len(norms(fused)) == NORMS_LEFT.get(name, 0)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ("DeepViT", "RefinedViT"))
def test_mixed_precision(name):
    model = FAMILIES[name](classifier_activation=None)
    with precision("mixed_bfloat16"):
        mixed = FAMILIES[name](classifier_activation=None)
    randomize(model)
    mixed.set_weights(model.get_weights())
    # Folded in one precision, whatever that of the layers.
    for weight, twin in zip(kv.fuse(mixed).weights, kv.fuse(model).weights, strict=True):
        assert (array(weight) == array(twin)).all(), weight.path
    images = numbers((2, *model.input_shape[1:]))
    close(array(kv.fuse(mixed)(images)), array(mixed(images)), 0.05)


@pytest.mark.backend_free
def test_lora_is_merged():
    model = FAMILIES["CaiT"](layer_scale=0.5)
    for layer in (blocks(model)[0].attention.qkv, blocks(model)[0].mlp.fc2, model.layers[-1]):
        layer.enable_lora(2)
    model.get_layer("patch_embed").proj.enable_lora(2)
    plain = FAMILIES["CaiT"](layer_scale=0.5)
    fused = fused_equally(model)
    assert not any("lora" in weight.path for weight in fused.weights)
    assert fused.get_config() == {**kv.fuse(plain).get_config(), "name": fused.name}


class Custom(keras.layers.Layer):
    """An attention with children without a name."""

    def build(self, input_shape):
        self.inner = [keras.layers.Dense(input_shape[-1]) for _ in range(2)]
        for layer in self.inner:
            layer.build(input_shape)

    def call(self, x):
        for layer in self.inner:
            x = layer(x)
        return x


class Tuned(ReAttention):
    """A subclass with a formula of its own."""

    def call(self, maps, training=False):
        return self.var_norm(self.reatten_matrix(maps), training=training) ** 2


@pytest.mark.backend_free
def test_custom_layers_stay():
    model = FAMILIES["ViT"](
        attention=lambda index: Attention(2, on_weights=[Tuned()]) if index else Custom(),
        mlp=lambda index: MLP() if index else keras.Sequential([keras.layers.Dense(8)]),
    )
    fused = fused_equally(model)
    assert len(norms(fused)) == 1


@pytest.mark.backend_free
def test_errors():
    images = keras.Input((8, 8, 3))
    with pytest.raises(ValueError, match="`model` must be a model of keras_vitx"):
        kv.fuse(keras.Model(images, keras.layers.Flatten()(images)))
    model = FAMILIES["ViT"]()
    model.layers[-1].quantize("int8")
    with pytest.raises(ValueError, match="must not have quantized layers"):
        kv.fuse(model)
