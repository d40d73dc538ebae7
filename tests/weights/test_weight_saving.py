import json
import sys

import keras
import numpy as np
import pytest
from harness import close, numbers
from safetensors import safe_open

import keras_vitx as kv
from keras_vitx.weights import save_safetensors, save_torch


def test_what_a_file_of_ours_restores(tiny, golden_file, same_weights, tmp_path):
    model = tiny(weights=golden_file, name="mine")
    model.class_names = tuple("abcdefghij")
    model.preprocessing = {
        "mean": [0.1, 0.2, 0.3],
        "std": [0.5, 0.5, np.float32(0.5)],
        "crop_ratio": 0.875,
        "interpolation": "bilinear",
    }
    path = tmp_path / "ours.safetensors"
    save_safetensors(model, path, metadata={"provenance": "a test"})

    loaded = tiny(weights=path)
    same_weights(loaded, model)
    assert tuple(loaded.class_names) == model.class_names
    assert loaded.preprocessing == model.preprocessing
    other = tiny(weights=path, classes=7)
    assert other.class_names is None
    assert other.preprocessing.crop_ratio == 0.875
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    assert metadata["provenance"] == "a test"
    assert metadata["format"] == "pt"
    assert json.loads(metadata["model"]) == "mine"
    assert json.loads(metadata["grid"]) == [4, 4]


def test_half_the_size(tiny, golden_model, weights_of, tmp_path):
    model = golden_model
    save_safetensors(model, tmp_path / "half.safetensors", dtype="float16")
    save_safetensors(model, tmp_path / "whole.safetensors")
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]
    found = weights_of(tiny(weights=tmp_path / "half.safetensors"))
    for name, array in weights_of(model).items():
        assert found[name].dtype == np.float32
        kept = array if array.ndim < 2 else array.astype("float16")
        np.testing.assert_array_equal(found[name], kept, err_msg=name)


def test_wrong_arguments_leave_no_file(tiny, tmp_path):
    model = tiny()
    path = tmp_path / "ours.safetensors"
    with pytest.raises(ValueError, match="path"):
        save_safetensors(model, tmp_path / "ours.bin")
    with pytest.raises(ValueError, match="int8"):
        save_safetensors(model, path, dtype="int8")
    with pytest.raises(ValueError, match=r"metadata.*3"):
        save_safetensors(model, path, metadata={"epoch": 3})
    with pytest.raises(ValueError, match="grid"):
        save_safetensors(model, path, metadata={"grid": "[2, 2]"})
    kernel = model.get_layer("head").kernel
    kernel.assign(np.full(kernel.shape, 1e6, "float32"))
    with pytest.raises(ValueError, match=r"head\.weight"):
        save_safetensors(model, path, dtype="float16")
    assert not list(tmp_path.iterdir())


def test_odd_metadata_is_told(tiny, golden_tensors, tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "odd.safetensors"
    save_file(golden_tensors, path, metadata={"library": "keras_vitx", "grid": "four"})
    with pytest.raises(ValueError, match=r"odd\.safetensors.*metadata"):
        tiny(weights=path)


def test_without_torch_the_extra_is_named(golden_model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match='extra "torch"'):
        save_torch(golden_model, tmp_path / "ours.pth")
    assert not list(tmp_path.iterdir())


def test_torch_files_end_in_pth(golden_model, tmp_path):
    with pytest.raises(ValueError, match=r"\.pth"):
        save_torch(golden_model, tmp_path / "ours.safetensors")


def peers(timm):
    """Return functions that make a small timm model and ours, by name."""
    cait, convit, vit = (
        getattr(timm.models, name) for name in ("cait", "convit", "vision_transformer")
    )
    common = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "num_classes": 5}
    size = {"dim": 24, "depth": 3, "num_heads": 4, "patch_size": 8}
    return {
        "cait": (lambda: cait.Cait(**common, depth=3, num_heads=4, init_values=0.1), kv.CaiT, size),
        "convit": (
            # Here, the width of a head.
            lambda: convit.ConVit(
                **{**common, "embed_dim": 6}, depth=3, num_heads=4, local_up_to_layer=2
            ),
            kv.ConViT,
            {**size, "local_depth": 2},
        ),
        "deit": (
            lambda: vit.VisionTransformer(**common, depth=3, num_heads=4),
            kv.ViT,
            size,
        ),
    }


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["cait", "convit", "deit"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_to_timm_and_back(timm, tmp_path, name, suffix):
    import torch

    make, family, size = peers(timm)[name]
    torch.manual_seed(0)
    peer = make().eval()
    state = peer.state_dict()
    torch.save(state, tmp_path / "theirs.pth")
    ours = family(
        **size,
        input_shape=(32, 32, 3),
        classes=5,
        classifier_activation=None,
        weights=tmp_path / "theirs.pth",
    )
    path = tmp_path / f"ours{suffix}"
    (save_torch if suffix == ".pth" else save_safetensors)(ours, path)

    other = make().eval()
    timm.models.load_checkpoint(other, str(path), strict=True)
    for key, tensor in other.state_dict().items():
        assert torch.equal(tensor, state[key]), key
    images = numbers((2, 32, 32, 3))
    with torch.no_grad():
        expected = other(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    close(keras.ops.convert_to_numpy(ours(images, training=False)), expected)
