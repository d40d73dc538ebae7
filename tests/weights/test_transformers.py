"""Checkpoints of Transformers, and weights that a file has only in part."""

import keras
import numpy as np
import pytest
from harness import array, close, numbers, randomize, same_weights

import keras_vitx as kv
from keras_vitx.layers import Attention, HeadMixing

# Of names and shapes; the golden files compare the arithmetic on each backend.
pytestmark = pytest.mark.backend_free
SMALL = {"dim": 24, "depth": 2, "num_heads": 3, "patch_size": 8, "input_shape": (32, 32, 3)}
COMMON = {
    **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32},
    **{"patch_size": 8, "num_labels": 5, "layer_norm_eps": 1e-6},
}
MLP_SIZE = {"intermediate_size": 96}
NO_POSITION = {"layer_scale": 1.0, "class_position": False, "register_tokens": 4}
DINOV3 = {"rotary": {"halves": True, "centered": True}, "qkv_bias": "qv", "include_top": False}
DINOV3 |= {"register_tokens": 4}
OF_DINOV3 = MLP_SIZE | {"num_register_tokens": 4}
SIGLIP = {"class_token": False, "attention_pooling": True, "activation": "gelu_tanh"}
TOWERS = {
    "vision_config": COMMON | MLP_SIZE,
    "text_config": {**COMMON, **MLP_SIZE, "vocab_size": 9, "projection_size": 24},
}
# Class in Transformers, config, ours.
NETWORKS = {
    "vit": ("ViTForImageClassification", MLP_SIZE, {"classes": 5}),
    "vit-bare": ("ViTModel", MLP_SIZE, {"include_top": False}),
    "deit": (
        "DeiTForImageClassificationWithTeacher",
        MLP_SIZE,
        {"classes": 5, "distillation_token": True},
    ),
    "dinov2": ("Dinov2Model", {}, {"include_top": False, "layer_scale": 1.0}),
    "dinov2_giant": (
        "Dinov2Model",
        {"use_swiglu_ffn": True},  # 64 hidden units of 24 channels.
        {"include_top": False, "layer_scale": 1.0, "gated_mlp": True, "mlp_ratio": 64.5 / 24},
    ),
    "dinov2_classifier": ("Dinov2ForImageClassification", {}, {"classes": 5, "layer_scale": 1.0}),
    "dinov2_at_another_size": (
        "Dinov2Model",
        {},
        {"include_top": False, "layer_scale": 1.0, "input_shape": (24, 40, 3)},
    ),
    "dinov2_with_registers": (
        "Dinov2WithRegistersModel",
        {"num_register_tokens": 4},
        {"include_top": False, **NO_POSITION},
    ),
    "dinov3": ("DINOv3ViTModel", OF_DINOV3, DINOV3),
    "dinov3_gated": (
        "DINOv3ViTModel",
        OF_DINOV3 | {"use_gated_mlp": True, "hidden_act": "silu"},
        DINOV3 | {"gated_mlp": True},
    ),
    "dinov3_bias_of_keys": (
        "DINOv3ViTModel",
        OF_DINOV3 | {"key_bias": True},
        DINOV3 | {"qkv_bias": True},
    ),
    "dinov3_without_registers": ("DINOv3ViTModel", MLP_SIZE, DINOV3 | {"register_tokens": 0}),
    "siglip2": ("SiglipModel", TOWERS, SIGLIP | {"include_top": False, "pooling": "attention"}),
    "siglip2-bare": ("SiglipVisionModel", MLP_SIZE, SIGLIP | {"include_top": False}),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_a_file_of_transformers(network, tmp_path, timm):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, extra, ours = NETWORKS[network]
    kind = getattr(transformers, kind)
    torch.manual_seed(0)
    theirs = kind(kind.config_class(**COMMON, **extra)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        images = torch.randn(2, 3, *ours.get("input_shape", (32, 32))[:2])
        expected = getattr(theirs, "vision_model", theirs)(images)
    output = "pooler_output" if "pooling" in ours else "last_hidden_state"
    expected = getattr(expected, "logits", getattr(expected, output, None)).numpy()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    family = kv.RotaryViT if "rotary" in ours else kv.ViT
    model = family(**SMALL | ours, classifier_activation=None, weights=path)
    close(array(model(images.permute(0, 2, 3, 1).numpy(), training=False)), expected)


def vit(**changes):
    return kv.ViT(**SMALL | {"classes": 5} | changes)


@pytest.fixture
def plain():
    model = vit()
    randomize(model, 0.4)
    return model


@pytest.fixture
def path(plain, file_of):
    return file_of(plain)


def talking(index):
    return Attention(3, on_logits=[HeadMixing(False, kernel_initializer="identity", name="mix")])


@keras.saving.register_keras_serializable(package="tests")
class Added(keras.layers.Layer):
    """Adds nothing, with variables that no checkpoint has a name for."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(2, 3, 4), initializer="zeros")
        self.power = self.add_weight(name="power", shape=(1,), initializer="zeros")

    def call(self, maps):
        return maps + self.power * keras.ops.sum(self.kernel)


# Each starts as the identity.
MODIFICATIONS = {
    "talking heads": lambda: {"attention": talking},
    "own layer": lambda: {"attention": lambda index: Attention(3, on_weights=[Added()])},
    "LayerScale": lambda: {"layer_scale": 1.0},
}


@pytest.mark.parametrize("name", MODIFICATIONS)
def test_modifications_that_change_nothing_at_the_start(plain, path, caplog, name):
    images, changes = numbers((2, 32, 32, 3)), MODIFICATIONS[name]()
    with pytest.raises(ValueError, match="missing from the file"):
        vit(**changes, weights=path)
    model = vit(**changes, weights=path, strict=False)
    close(array(model(images)), array(plain(images)))
    named = {"talking heads": "2 variables start anew (blocks.0.attn.mix.weight, blocks.1"}
    assert named.get(name, "variables start anew") in caplog.text


@pytest.mark.parametrize("suffix", [".safetensors", ".weights.h5"])
def test_a_file_without_a_classifier_starts_one_if_asked(file_of, tmp_path, caplog, suffix):
    headless, path = vit(include_top=False), tmp_path / "headless.weights.h5"
    headless.save_weights(path)
    path = path if suffix == ".weights.h5" else file_of(headless)
    with pytest.raises(ValueError, match=r"no classifier.*classes=, which starts one"):
        kv.ViT(**SMALL, weights=path)
    assert vit(weights=path).head_loaded is False
    model = vit(weights=path, strict=False)
    assert model.output_shape == (None, 5)
    assert model.head_loaded is False


@pytest.mark.parametrize("placed", [True, False])
def test_registers_join_a_trained_network(plain, path, placed):
    model = vit(register_tokens=2, class_position=placed, weights=path, strict=False)
    tokens = keras.Model(model.input, model.get_layer("blocks_0").input)
    own = keras.Model(plain.input, plain.get_layer("blocks_0").input)
    images = numbers((2, 32, 32, 3))
    found = np.delete(array(tokens(images)), [1, 2], axis=1)
    close(found, array(own(images)))


def test_what_the_model_lacks_is_left_out_and_named(plain, file_of, caplog):
    path = file_of(plain, **{"extra.weight": np.zeros(3, "float32")})
    same_weights(vit(weights=path, strict=False), plain)
    said = "0 variables start anew (none); 1 arrays of the file are left out (extra.w"
    assert said in caplog.text


def test_other_shapes_and_other_networks_are_errors_still(path, file_of):
    with pytest.raises(ValueError, match="of another shape"):
        vit(dim=48, weights=path, strict=False)
    with pytest.raises(ValueError, match="doesn't fit"):
        vit(weights=file_of({"a.weight": np.zeros((3, 3), "float32")}), strict=False)
