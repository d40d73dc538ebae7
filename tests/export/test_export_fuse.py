import keras
import numpy as np
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
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.fuse import fuse_graph
from keras_vitx.export.prepare import prepare
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import (
    MLP,
    Attention,
    ContextBroadcasting,
    GatedPositionalAttention,
    HeadMixing,
    ImagePreprocessing,
    LayerScale,
    LocalMapConvolution,
    ReAttention,
    SqueezeExcitation,
)
from keras_vitx.layers.maps import MapNormalization


def norms(model):
    return [
        layer for layer in sublayers(model) if isinstance(layer, keras.layers.BatchNormalization)
    ]


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


LACKS = {
    "CaiT": ("/ls1/", "/ls2/", "proj_l/bias"),
    "ConViT": ("pos_proj", "gating_param"),
    "DeepViT": ("var_norm",),
    "RefinedViT": ("scale_channel", "bn1", "bn2", "bn3", "adapt_bn"),
}
"""Parts of the names of variables that are folded."""


@pytest.mark.parametrize("name", FAMILIES_HERE)
def test_families(name, reloading):
    model = FAMILIES[name](classifier_activation=None)
    fused = fused_equally(model)
    assert not norms(fused)
    for part in LACKS.get(name, ()):
        assert any(part in weight.path for weight in model.weights), part
        assert not any(part in weight.path for weight in fused.weights), part
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


@pytest.mark.backend_free
def test_attention_maps_stay():
    model = FAMILIES["ConViT"]()
    fused = fused_equally(model)
    tokens = numbers((2, 4, 8))
    for block, twin in zip(blocks(model), blocks(fused), strict=True):
        maps, twins = (each(tokens, return_attention_scores=True)[1] for each in (block, twin))
        close(array(twins), array(maps), 1e-5)
    attention, twin = (blocks(each)[0].attention for each in (model, fused))
    close(array(twin.gates()), array(attention.gates()), 1e-5)


VARIANTS = {
    "LayerScale and a residual scale": lambda: FAMILIES["RefinedViT"](
        residual_scale=0.25, shared_depth=0
    ),
    "DeepViT with a stem": lambda: FAMILIES["DeepViT"](
        conv_stem=True, map_scale="head", residual_scale=0.5, input_shape=(32, 16, 3)
    ),
    "Refined-ViT with a stem": lambda: FAMILIES["RefinedViT"](conv_stem=True, dense_head=True),
    "the paper's refiner": lambda: FAMILIES["RefinedViT"](refiner="paper"),
    "ungated ConViT": lambda: FAMILIES["ConViT"](gated=False, input_shape=(16, 32, 3)),
    "ConViT on a rectangle": lambda: FAMILIES["ConViT"](input_shape=(16, 32, 3)),
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
    "layers after the projections": lambda: FAMILIES["ViT"](
        layer_scale=0.5,
        mlp=lambda index: MLP(
            2.0, on_output=[ContextBroadcasting() if index else SqueezeExcitation(2), LayerScale()]
        ),
    ),
}
NORMS_LEFT = {"norms over maps": 4}


@pytest.mark.backend_free
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name):
    fused = fused_equally(VARIANTS[name]())
    assert len(norms(fused)) == NORMS_LEFT.get(name, 0)
    if name == "layers after the projections":
        # A SqueezeExcitation does not commute with the scale, so this block keeps its scales.
        kept = {weight.path for weight in fused.weights if weight.path.endswith("gamma")}
        assert {"blocks_0/ls1/gamma", "blocks_0/ls2/gamma"} <= kept
        assert not any(path.startswith("blocks_1/ls") for path in kept)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ("ConViT", "RefinedViT"))
def test_mixed_precision(name):
    model = FAMILIES[name](classifier_activation=None)
    with precision("mixed_bfloat16"):
        mixed = FAMILIES[name](classifier_activation=None)
    randomize(model)
    mixed.set_weights(model.get_weights())
    # Folded in float32, whatever the precision of the layers.
    for weight, twin in zip(kv.fuse(mixed).weights, kv.fuse(model).weights, strict=True):
        assert (array(weight) == array(twin)).all(), weight.path
    images = numbers((2, *model.input_shape[1:]))
    close(array(kv.fuse(mixed)(images)), array(mixed(images)), 0.05)


@pytest.mark.backend_free
def test_rates_are_zero():
    fused = kv.fuse(FAMILIES["ViT"](drop_path=0.2, dropout=0.1))
    drawing = [
        layer
        for layer in sublayers(fused)
        if isinstance(layer, keras.layers.Dropout) or hasattr(layer, "set_rate")
    ]
    assert drawing and not any(layer.rate for layer in drawing)


@pytest.mark.parametrize("conv_stem", (False, True))
def test_preprocessing_of_the_images(conv_stem):
    inner = FAMILIES["DeepViT"](conv_stem=conv_stem)
    images = keras.Input((20, 24, 3), dtype="uint8")
    ready = ImagePreprocessing((16, 16), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), crop_ratio=1.2)
    model = kv.as_chain(keras.Model(images, inner(ready(images))))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 20, 24, 3)).astype("uint8")
    fused = fused_equally(model, pixels)
    assert fused.layers[0].normalize == ("mean" if conv_stem else False)
    # Also where an export puts it before the network.
    graph, reason = fuse_graph(prepare(inner, FORMATS["onnx"], preprocessing=True))
    assert reason is None and graph.preprocessing.normalize == fused.layers[0].normalize


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
        layer_scale=0.5,
        attention=lambda index: Attention(2, on_weights=[Tuned()]) if index else Custom(),
        mlp=lambda index: MLP() if index else keras.Sequential([keras.layers.Dense(8)]),
    )
    fused = fused_equally(model)
    assert len(norms(fused)) == 1
    kept = {weight.path.split("/")[-2] for weight in fused.weights if "gamma" in weight.path}
    assert "ls1" in kept


@pytest.mark.backend_free
def test_errors():
    images = keras.Input((8, 8, 3))
    with pytest.raises(ValueError, match="`model` must be a model of keras_vitx"):
        kv.fuse(keras.Model(images, keras.layers.Flatten()(images)))
    model = FAMILIES["ViT"]()
    model.layers[-1].quantize("int8")
    with pytest.raises(ValueError, match="must not have quantized layers"):
        kv.fuse(model)
