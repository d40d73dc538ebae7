"""Files of the hub, from a cache laid out as the hub's client does, and shipped files."""

import shutil

import pytest

from keras_vitx.weights import catalog, hub, load_weights, resolve

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture
def cache(tmp_path, monkeypatch, golden_file):
    """An offline hub whose cache holds the golden weights of some repositories."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(repository, file="model.safetensors"):
        commit = "0123456789abcdef0123456789abcdef01234567"
        folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(commit)
        (folder / "blobs").mkdir()
        blob = folder / "blobs" / "abc123"
        shutil.copyfile(golden_file, blob)
        snapshot = folder / "snapshots" / commit / file
        snapshot.parent.mkdir(parents=True)
        snapshot.symlink_to(blob)

    return put


@pytest.mark.parametrize("file", ["", "/model.safetensors", "/sub/folder/other.safetensors"])
def test_from_the_cache(cache, tiny, golden_model, same_weights, file):
    cache("someone/cait", file.lstrip("/") or "model.safetensors")
    same_weights(tiny(weights=f"hf://someone/cait{file}"), golden_model)


def test_a_catalogue_entry_from_the_cache(cache, tiny):
    cache("timm/cait_s36_384.fb_dist_in1k")
    for name in ("imagenet", "cait_s36_384.fb_dist_in1k", "hf://timm/cait_s36_384.fb_dist_in1k"):
        resolved = resolve(name, "CaiT_S36", (384, 384))
        assert resolved.path.is_file()
        assert resolved.checkpoint.name == "cait_s36_384.fb_dist_in1k"
        assert resolved.image_size == 384
    model = tiny()
    model.preprocessing = {"mean": (0.5,) * 3}
    load_weights(model, "hf://timm/cait_s36_384.fb_dist_in1k")
    assert model.preprocessing["mean"] == (0.485, 0.456, 0.406)


def test_offline_with_nothing_cached(cache, tmp_path):
    with pytest.raises(OSError, match=r"cait_xxs24_224\.fb_dist_in1k") as caught:
        resolve("imagenet", "CaiT_XXS24")
    message = str(caught.value)
    assert "https://huggingface.co/timm/cait_xxs24_224.fb_dist_in1k/resolve/main/" in message
    assert str(tmp_path / "hub") in message


@pytest.mark.parametrize("address", ["hf://", "hf://owner", "hf:///x", "hf://a b/c", "hf://-a/c"])
def test_addresses_that_are_none(cache, address):
    with pytest.raises(ValueError, match="weights='hf://"):
        resolve(address)


def test_a_hub_file_of_unknown_kind(cache):
    with pytest.raises(ValueError, match=r"\.safetensors, \.pth"):
        resolve("hf://owner/repo/model.onnx")


@pytest.mark.parametrize("place", ["package", "checkout"])
def test_shipped_files(tmp_path, monkeypatch, golden_file, place):
    root = tmp_path / "repository"
    monkeypatch.setattr(hub, "__file__", str(root / "keras_vitx" / "weights" / "hub.py"))
    folder = root / ("keras_vitx/weights/files" if place == "package" else "weights")
    with pytest.raises(FileNotFoundError, match=r"cait_mini_cifar10\.safetensors"):
        resolve("cifar10", "CaiT_Mini")
    folder.mkdir(parents=True)
    shutil.copyfile(golden_file, folder / "cait_mini_cifar10.safetensors")
    assert resolve("cifar10", "CaiT_Mini").path.parent == folder


def test_a_shipped_checkpoint_names_the_classes(tmp_path, monkeypatch, golden_file, tiny):
    monkeypatch.setattr(hub, "__file__", str(tmp_path / "keras_vitx" / "weights" / "hub.py"))
    (tmp_path / "weights").mkdir()
    shutil.copyfile(golden_file, tmp_path / "weights" / "cait_mini_cifar10.safetensors")
    model = tiny(weights="cifar10")
    assert tuple(model.class_names) == catalog.find("cifar10", None).class_names
    assert model.preprocessing["std"] == (0.229, 0.224, 0.225)
    assert tiny(weights="cifar10", classes=3).class_names is None
