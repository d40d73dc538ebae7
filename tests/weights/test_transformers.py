"""Checkpoints of Transformers, and weights that a file has only in part."""

import keras
import numpy as np
import pytest
from harness import array, close, numbers
from safetensors.numpy import load_file, save_file

import keras_vitx as kv
from keras_vitx.layers import MLP, Attention, ContextBroadcasting, HeadMixing
from keras_vitx.weights import to_checkpoint

SMALL = {"dim": 24, "depth": 2, "num_heads": 3, "patch_size": 8, "input_shape": (32, 32, 3)}
COMMON = {
    **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32},
    **{"patch_size": 8, "num_labels": 5, "layer_norm_eps": 1e-6},
}
MLP_SIZE = {"intermediate_size": 96}
NO_POSITION = {"layer_scale": 1.0, "class_position": False, "register_tokens": 4}
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
    "dinov2_with_registers": (
        "Dinov2WithRegistersModel",
        {"num_register_tokens": 4},
        {"include_top": False, **NO_POSITION},
    ),
}


@pytest.fixture(scope="module", params=NETWORKS)
def written(request, tmp_path_factory, timm):
    """A directory that Transformers wrote, its images and outputs, and our arguments."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, extra, ours = NETWORKS[request.param]
    kind = getattr(transformers, kind)
    torch.manual_seed(0)
    model = kind(kind.config_class(**COMMON, **extra)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        images = torch.randn(2, 3, 32, 32)
        outputs = model(images)
    outputs = getattr(outputs, "logits", getattr(outputs, "last_hidden_state", None))
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    return path, images.permute(0, 2, 3, 1).numpy(), outputs.numpy(), ours


def test_transformers_directory(written):
    path, images, outputs, arguments = written
    for weights in (path, path / "model.safetensors"):
        model = kv.ViT(**SMALL, **arguments, classifier_activation=None, weights=weights)
        close(array(model(images, training=False)), outputs)


def test_transformers_directory_without_weights(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(FileNotFoundError, match=r"without model\.safetensors"):
        kv.ViT(**SMALL, weights=tmp_path)


def vit(**changes):
    return kv.ViT(**SMALL | {"classes": 5} | changes)


@pytest.fixture
def file(tmp_path):
    model = vit()
    for variable in model.variables:
        variable.assign(numbers(variable.shape, seed=len(variable.path), scale=0.4))
    save_file(to_checkpoint(model), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors", model


def talking(start):
    mix = {"use_bias": False, "kernel_initializer": start, "name": "mix"}
    return lambda index: Attention(3, on_logits=[HeadMixing(**mix)])


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
    "talking heads": lambda: {"attention": talking("identity")},
    "own layer": lambda: {"attention": lambda index: Attention(3, on_weights=[Added()])},
    "context": lambda: {"mlp": lambda index: MLP(on_output=[ContextBroadcasting(scale=0.0)])},
    "LayerScale": lambda: {"layer_scale": 1.0},
}


@pytest.mark.parametrize("name", MODIFICATIONS)
def test_modifications_that_change_nothing_at_the_start(file, caplog, name):
    path, plain = file
    images, changes = numbers((2, 32, 32, 3)), MODIFICATIONS[name]()
    with pytest.raises(ValueError, match="missing from the file"):
        vit(**changes, weights=path)
    model = vit(**changes, weights=path, strict=False)
    close(array(model(images)), array(plain(images)))
    assert "variables start anew" in caplog.text


def test_strict_loading_refuses_a_modification(file):
    with pytest.raises(ValueError, match=r"2 missing from the file: .*mix\.weight"):
        vit(attention=talking("identity"), weights=file[0])


def test_a_file_without_a_classifier_starts_one_if_asked(caplog, tmp_path):
    headless, path = vit(include_top=False), tmp_path / "headless.weights.h5"
    headless.save_weights(path)
    with pytest.raises(ValueError, match="strict=False, which starts one"):
        vit(weights=path, classes=5)
    model = vit(weights=path, classes=5, strict=False)
    assert "2 variables start anew (head" in caplog.text and model.output_shape == (None, 5)


def test_what_starts_anew_is_named(file, caplog):
    path, plain = file
    images = numbers((2, 32, 32, 3))
    vit(attention=talking("identity"), weights=path, strict=False)
    assert "2 variables start anew (blocks.0.attn.mix.weight, blocks.1" in caplog.text
    changed = vit(attention=talking("ones"), weights=path, strict=False)
    assert np.abs(array(changed(images)) - array(plain(images))).max() > 1e-4


def test_what_the_model_lacks_is_left_out_and_named(file, caplog, tmp_path):
    path, plain = file
    arrays = load_file(path) | {"extra.weight": np.zeros(3, "float32")}
    save_file(arrays, tmp_path / "more.safetensors")
    model = vit(weights=tmp_path / "more.safetensors", strict=False)
    assert (
        "0 variables start anew (none); 1 arrays of the file are left out (extra.w" in caplog.text
    )
    for ours, theirs in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(array(ours), array(theirs))


def test_other_shapes_and_other_networks_are_errors_still(file, tmp_path):
    with pytest.raises(ValueError, match="of another shape"):
        kv.ViT(**SMALL | {"dim": 48}, classes=5, weights=file[0], strict=False)
    save_file({"a.weight": np.zeros((3, 3), "float32")}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="doesn't fit"):
        vit(weights=tmp_path / "other.safetensors", strict=False)


def test_a_headless_file_starts_the_head(file, tmp_path):
    arrays = {name: one for name, one in load_file(file[0]).items() if "head" not in name}
    save_file(arrays, tmp_path / "bare.safetensors")
    with pytest.raises(ValueError, match="no classifier"):
        vit(weights=tmp_path / "bare.safetensors")
    model = vit(weights=tmp_path / "bare.safetensors", strict=False)
    assert model.head_loaded is False
    assert isinstance(model, keras.Model)
