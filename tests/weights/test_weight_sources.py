"""Files of the hub, from a cache with the layout of the hub's client, and shipped files."""

import json
import shutil

import pytest
from harness import run_python, same_weights
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.numpy import save_file
from tiny import COMMIT, make_tiny

import keras_vitx as kv
from keras_vitx.preprocessing import IMAGENET_INCEPTION
from keras_vitx.weights import find_source, load_weights, to_checkpoint
from keras_vitx.weights import hub as hub_module
from keras_vitx.weights.load import path_of

pytestmark = pytest.mark.backend_free

S36 = "timm/cait_s36_384.fb_dist_in1k"


def resolve(*arguments):
    return path_of(find_source(*arguments))


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs%2Fpr%2F1", COMMIT])
def test_a_revision_from_the_cache(hub, golden_file, revision):
    file = "sub/other.safetensors"
    blob = hub("someone/cait", golden_file, file)
    refs = blob.parents[1] / "refs"
    assert resolve(f"hf://someone/cait/{file}").resolve() == blob
    if revision != COMMIT:
        # The branch now points to another commit.
        ref = refs / revision.replace("%2F", "/")
        ref.parent.mkdir(parents=True, exist_ok=True)
        (refs / "main").write_text("f" * 40)
        ref.write_text(COMMIT)
    assert resolve(f"hf://someone/cait@{revision}/{file}").resolve() == blob
    with pytest.raises(LocalEntryNotFoundError):
        resolve("hf://someone/cait@refs%2Fpr%2F2")


def test_a_catalog_entry_from_the_cache(hub, golden_file, golden_model):
    hub(S36, golden_file)
    for name in ("imagenet", "cait_s36_384.fb_dist_in1k", f"hf://{S36}", f"hf://{S36}@{COMMIT}"):
        source = find_source(name, "CaiT_S36", (384, 384))
        assert path_of(source).is_file()
        assert source.checkpoint.name == "cait_s36_384.fb_dist_in1k"
    model = make_tiny()
    model.preprocessing = IMAGENET_INCEPTION
    load_weights(model, f"hf://{S36}")
    same_weights(model, golden_model)
    assert model.preprocessing.mean == (0.485, 0.456, 0.406)


def test_a_model_of_ours_from_the_hub(hub, golden_model, tmp_path):
    kv.weights.save_safetensors(golden_model, tmp_path / "m.safetensors")
    hub("someone/mine", tmp_path / "m.safetensors")
    same_weights(make_tiny(weights=f"hf://someone/mine@{COMMIT}"), golden_model)


VIT = {"image_mean": [0.1] * 3, "image_std": [0.2] * 3, "size": 256, "crop_size": {"height": 224}}
TIMM = {"mean": [0.1] * 3, "std": [0.2] * 3, "crop_pct": 0.875, "interpolation": "bicubic"}


@pytest.mark.parametrize(
    "settings, name, crop_ratio, interpolation",
    [
        ({**VIT, "do_center_crop": True, "resample": 3}, "preprocessor_config", 0.875, "bicubic"),
        ({**VIT, "do_rescale": False}, "preprocessor_config", 1.0, "bilinear"),
        ({"pretrained_cfg": TIMM}, "config", 0.875, "bicubic"),
        ({"model_type": "vit"}, "config", None, None),
    ],
)
def test_the_preprocessing_beside_a_file(
    hub, golden_file, tmp_path, caplog, settings, name, crop_ratio, interpolation
):
    blob = hub("someone/cait", golden_file)
    for directory in (tmp_path, blob.parents[1] / "snapshots" / COMMIT):
        (directory / f"{name}.json").write_text(json.dumps(settings))
    shutil.copyfile(golden_file, tmp_path / "model.safetensors")
    for weights in ("hf://someone/cait", tmp_path / "model.safetensors"):
        model = make_tiny()
        before = model.preprocessing
        load_weights(model, weights)
        if crop_ratio is None:
            assert model.preprocessing == before
            assert "does not say how images are normalized" in caplog.text
            continue
        found, scale = model.preprocessing, 255 if settings.get("do_rescale") is False else 1
        assert found.mean[0] == pytest.approx(0.1 / scale)
        assert found.std[0] == pytest.approx(0.2 / scale)
        assert (found.crop_ratio, found.interpolation) == (crop_ratio, interpolation)


WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoTorch())
import keras
import keras_vitx as kv
model = kv.CaiT_XXS24(weights="imagenet")
print(keras.backend.backend(), float(keras.ops.sum(model.get_layer("norm").gamma)))
"""


def test_imagenet_offline_on_jax_without_torch(hub, tmp_path, monkeypatch):
    pytest.importorskip("jax")
    tensors = to_checkpoint(kv.CaiT_XXS24())
    tensors["norm.weight"][:] = range(192)
    save_file(tensors, tmp_path / "model.safetensors")
    hub("timm/cait_xxs24_224.fb_dist_in1k", tmp_path / "model.safetensors")
    for name, value in {"OFFLINE": "1", "CACHE": str(tmp_path / "hub")}.items():
        monkeypatch.setenv(f"HF_HUB_{name}", value)
    assert run_python(WITHOUT_TORCH, backend="jax").stdout.split()[-2:] == ["jax", "18336.0"]


@pytest.mark.parametrize("directory", ["keras_vitx/weights/files", "weights"])
def test_shipped_files(tmp_path, monkeypatch, golden_file, directory):
    directory = tmp_path / directory
    monkeypatch.setattr(hub_module, "__file__", str(tmp_path / "keras_vitx" / "weights" / "hub.py"))
    directory.mkdir(parents=True)
    shutil.copyfile(golden_file, directory / "cait_mini_cifar10.safetensors")
    assert resolve("cifar10", "CaiT_Mini").parent == directory
