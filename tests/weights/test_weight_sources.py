"""The catalog; files of the hub, from a cache as its client writes it, and shipped files."""

import inspect
import json
import shutil
from contextlib import nullcontext

import pytest
from harness import run_python, same_weights
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file
from tiny import COMMIT, make_tiny

import keras_vitx as kv
from keras_vitx.preprocessing import IMAGENET_INCEPTION
from keras_vitx.weights import catalog, checkpoints_of, find_source, load_weights, to_checkpoint
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
    with pytest.raises(OSError, match="could not reach the hub for someone/cait"):
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


@pytest.mark.parametrize("stated", ["quick_gelu", "gelu_pytorch_tanh"])
def test_the_activation_beside_a_file(golden_file, tmp_path, stated):
    shutil.copyfile(golden_file, tmp_path / "model.safetensors")
    settings = {"model_type": "clip", "vision_config": {"hidden_act": stated}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    is_alike = stated == "gelu_pytorch_tanh"
    expected = (
        nullcontext() if is_alike else pytest.raises(ValueError, match="must be 'quick_gelu'")
    )
    with expected:
        load_weights(make_tiny(), tmp_path / "model.safetensors")


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


# The catalog: which checkpoint a name selects, and what the entries say.

SHIPPED = [c.constructor for c in catalog.CHECKPOINTS if c.source.startswith("package:")]


@pytest.mark.parametrize("size", SHIPPED)
def test_shipped_checkpoints(size):
    (checkpoint,) = checkpoints_of(size)
    assert checkpoint is catalog.find("cifar10", size)
    assert len(checkpoint.class_names) == checkpoint.classes == 10
    model = getattr(kv, size)(weights="cifar10")
    assert tuple(model.class_names) == checkpoint.class_names
    assert model.preprocessing == checkpoint.preprocessing
    path = path_of(find_source("cifar10", size))
    assert path.stat().st_size < 1.5e6
    with safe_open(path, "numpy") as file:
        about = {name: json.loads(file.metadata()[name]) for name in ("size", "provenance")}
    provenance = about["provenance"]
    assert about["size"] == size
    assert {"recipe", "changes", "dataset", "epochs", "seed", "added_in_commit"} <= set(provenance)
    assert round(100 * provenance["top1"], 2) == checkpoint.top1


TOKEN = {"distillation_token": True}


@pytest.mark.parametrize(
    ("constructor", "image_size", "expected"),
    [
        ("CaiT_XXS24", None, "cait_xxs24_224.fb_dist_in1k"),
        ("CaiT_XXS24", (384, 384), "cait_xxs24_384.fb_dist_in1k"),
        ("CaiT_XXS24", (512, 256), "cait_xxs24_384.fb_dist_in1k"),
        ("ViT_B", 384, "deit_base_patch16_384.fb_in1k"),
        ("ViT_S", 384, "vit_small_patch16_384.augreg_in21k_ft_in1k"),
        ("ViT_Ti", "two tokens", "deit_tiny_distilled_patch16_224.fb_in1k"),
        ("CBViT_S", None, "deit_small_patch16_224.fb_in1k"),
        ("PiT_B", "two tokens", "pit_b_distilled_224.in1k"),
        ("ConViT_S", (448, 448), "convit_small.fb_in1k"),
    ],
)
def test_imagenet_of_a_size(constructor, image_size, expected):
    arguments = TOKEN if image_size == "two tokens" else {"image_size": image_size}
    assert catalog.find("imagenet", constructor, **arguments).name == expected


def test_a_directory_does_not_hide_a_name(tmp_path, monkeypatch):
    (tmp_path / "imagenet").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="needs the constructor"):
        find_source("imagenet")


def test_all_public_checkpoints_are_there():
    on_the_hub = [c for c in catalog.CHECKPOINTS if c.source.startswith("hf://timm/")]
    assert len(on_the_hub) >= 400
    for c in on_the_hub:
        assert c.source == f"hf://timm/{c.name}"
        assert (c.top1 is None) == (c.top5 is None)
        assert c.top1 is None or c.classes == 1000
        assert c.top1 is None or 59 < c.top1_v2 < c.top1 < min(c.top5, c.top1_real) < 99
        assert ("distilled" in c.name) == c.distillation_token
    assert len(catalog.CHECKPOINTS) == len(on_the_hub) + 5 + len(SHIPPED)


@pytest.mark.parametrize("checkpoint", catalog.CHECKPOINTS, ids=lambda c: c.name)
def test_every_checkpoint_fits_what_it_says(checkpoint):
    for name in checkpoint.fits:
        if name not in kv.models.MODELS:  # timm's own.
            assert checkpoint.constructor in kv.models.build.FAMILIES
            continue
        constructor = kv.models.MODELS[name]
        arguments = TOKEN if checkpoint.distillation_token else {}
        parameters = inspect.signature(getattr(kv, constructor.family)).parameters
        assert not arguments or "distillation_token" in parameters
        assert catalog.find(checkpoint.name, name, **arguments) is checkpoint
    assert Image.Resampling[checkpoint.preprocessing.interpolation.upper()]


def test_a_model_that_starts_from_anothers_weights_is_said(caplog):
    find_source("imagenet", "ViT_Ti")
    assert "starts from them" not in caplog.text
    find_source("imagenet", "CBViT_Ti")
    assert "weights of ViT_Ti; a CBViT_Ti starts from them" in caplog.text
