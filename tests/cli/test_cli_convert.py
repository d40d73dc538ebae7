import hashlib
import json
import sys

import keras
import numpy as np
import pytest
from harness import close, numbers
from safetensors import safe_open
from safetensors.numpy import load_file

import keras_vitx as kv
from keras_vitx.weights import save_safetensors, to_checkpoint

pytestmark = pytest.mark.backend_free


@pytest.fixture
def convert(run):
    """Convert weights of CaiT_Mini; return the report, with one line per fact."""

    def convert(file, output, *options, model="CaiT_Mini"):
        return run("convert", file, "--model", model, "-o", output, *options)[0]

    return convert


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_weights(path, model):
    """Check that a safetensors file holds the weights of a model."""
    found = load_file(path)
    for name, array in to_checkpoint(model).items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_from_pytorch_and_back(timm, convert, tmp_path):
    import torch

    arguments = dict(img_size=32, patch_size=4, embed_dim=96, depth=4, num_heads=4, num_classes=10)
    torch.manual_seed(0)
    peer = timm.models.cait.Cait(init_values=0.1, **arguments).eval()
    torch.save({"model": peer.state_dict()}, tmp_path / "theirs.pth")
    said = convert("theirs.pth", "ours.keras")
    assert "684,458 parameters in 116 arrays" in said
    assert digest(tmp_path / "theirs.pth") in said and digest(tmp_path / "ours.keras") in said
    assert "kept, 10 classes" in said and "as they were, 8 x 8" in said
    convert("ours.keras", "ours.weights.h5")
    convert("ours.weights.h5", "ours.safetensors")
    convert("ours.safetensors", "ours.pth")

    images = numbers((2, 32, 32, 3))
    channels_first = torch.from_numpy(images).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = peer(channels_first).numpy()
    model = keras.saving.load_model(tmp_path / "ours.keras")
    model.get_layer("head").activation = None
    close(keras.ops.convert_to_numpy(model(images, training=False)), expected)
    state, returned = peer.state_dict(), torch.load(tmp_path / "ours.pth", weights_only=True)
    assert returned and returned.keys() == state.keys()
    assert all(torch.equal(returned[name], state[name]) for name in state)
    other = timm.models.cait.Cait(**arguments).eval()
    timm.models.load_checkpoint(other, str(tmp_path / "ours.safetensors"), strict=True)
    with torch.no_grad():
        np.testing.assert_array_equal(other(channels_first).numpy(), expected)


def test_metadata_of_our_safetensors(convert, tmp_path):
    kv.CaiT_Mini().save_weights(tmp_path / "trained.weights.h5")
    convert("trained.weights.h5", "ours.safetensors")
    with safe_open(tmp_path / "ours.safetensors", "numpy") as file:
        metadata = file.metadata()
    assert json.loads(metadata["model"]) == "CaiT_Mini"
    assert metadata["source"] == "trained.weights.h5"
    assert metadata["sha256"] == digest(tmp_path / "trained.weights.h5")


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5", ".safetensors", ".pth"])
def test_classes_and_images_are_read_from_the_file(convert, tmp_path, suffix):
    if suffix == ".pth":
        pytest.importorskip("torch")
    model = kv.CaiT_Mini(classes=3, input_shape=(48, 48, 1))
    model.save(tmp_path / "first.keras")
    convert("first.keras", f"second{suffix}")
    said = convert(f"second{suffix}", "third.safetensors")
    assert "48 x 48 x 1" in said and "kept, 3 classes" in said and "as they were, 12 x 12" in said
    check_weights(tmp_path / "third.safetensors", model)


@pytest.mark.parametrize("form", [".safetensors", ""])
def test_a_rectangle_is_read_from_our_own_files(convert, tmp_path, form):
    # 4 x 16 and 8 x 8 are the same number of patches.
    model, path = kv.CaiT_Mini(input_shape=(16, 64, 3)), tmp_path / f"wide{form}"
    save_safetensors(model, path) if form else model.save(path, zipped=False)
    said = convert(path, "wide.keras")
    assert "16 x 64 x 3" in said and "as they were, 4 x 16" in said


def test_another_size_and_other_classes(convert, tmp_path):
    said = convert("cifar10", "larger.safetensors", "--image-size", 48, "--classes", 3)
    assert "48 x 48 x 3" in said and "resampled from 8 x 8 to 12 x 12" in said
    assert "new, 3 classes with random weights; the file's has 10" in said
    assert load_file(tmp_path / "larger.safetensors")["pos_embed"].shape == (1, 144, 96)


def test_without_head(convert, tmp_path):
    assert "left out (of 10 classes)" in convert("cifar10", "trunk.safetensors", "--classes", 0)
    assert not any(name.startswith("head") for name in load_file(tmp_path / "trunk.safetensors"))
    assert "head       none" in convert("trunk.safetensors", "trunk.weights.h5")


@pytest.mark.parametrize(
    ("family", "arguments", "said"),
    [
        (kv.ViT, {"dim": 8, "depth": 1, "num_heads": 2, "distillation_token": True}, "3 x 3"),
        # Patches overlap.
        (kv.PiT, {"dims": (8, 16), "depths": (1, 1), "num_heads": (2, 2)}, "6 x 6"),
        (kv.PiT, {"dims": (8,), "depths": (1,), "num_heads": (2,), "distillation_token": True}, ""),
        (kv.Mixer, {"dim": 8, "depth": 1}, "none"),
    ],
)
def test_other_families(convert, tmp_path, monkeypatch, family, arguments, said):
    side = 49 if family is kv.PiT else 48
    model = family(**arguments, input_shape=(side, side, 3), classes=3)
    size = {"input_shape": (48, 48, 3)} if family is kv.Mixer else {}
    size |= {name: v for name, v in arguments.items() if name != "distillation_token"}
    monkeypatch.setitem(kv.models.MODELS, "Tiny", lambda **given: family(**{**size, **given}))
    save_safetensors(model, tmp_path / "a.safetensors")
    for file, output in (("a.safetensors", "b.keras"), ("b.keras", "c.safetensors")):
        out = convert(file, output, model="Tiny")
        assert f"{side} x {side} x 3" in out and "kept, 3 classes" in out and said in out
    check_weights(tmp_path / "c.safetensors", model)


def test_a_checkpoint_with_two_tokens_by_its_name(convert, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_safetensors(kv.ViT_Ti(distillation_token=True), path)
    loading = sys.modules["keras_vitx.weights.load"]
    monkeypatch.setattr(loading, "download", lambda address, sha256: path)
    name = "deit_tiny_distilled_patch16_224.fb_in1k"
    out = convert(name, "deit.keras", model="ViT_Ti")
    assert "kept, 1000 classes" in out and "as they were, 14 x 14" in out


def test_a_failed_write_leaves_what_stood_there(run, tmp_path, monkeypatch):
    def fail(model, path):
        path.write_text("half")
        raise OSError("the disk is full")

    (tmp_path / "mine.keras").write_text("precious")
    words = ("convert", "cifar10", "--model", "CaiT_Mini", "-o", "mine.keras", "--overwrite")
    with monkeypatch.context() as patched:
        patched.setattr(kv.models.Chain, "save", fail)
        assert "the disk is full" in run(*words, code=2)[1]
    assert [path.name for path in tmp_path.iterdir()] == ["mine.keras"]
    assert (tmp_path / "mine.keras").read_text() == "precious"
