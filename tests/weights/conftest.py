import shutil

import pytest
from harness import GOLDEN, GOLDEN_CASES
from huggingface_hub import constants
from safetensors.numpy import load_file, save_file
from tiny import COMMIT, make_tiny

from keras_vitx.weights import to_checkpoint


@pytest.fixture(scope="session")
def golden_model():
    """The model of the golden case with its weights; tests must not change it."""
    return GOLDEN_CASES["cait"]()


@pytest.fixture(scope="session")
def unused():
    """A model for calls that must fail before changing it."""
    return make_tiny()


@pytest.fixture
def golden_file():
    return GOLDEN / "cait.safetensors"


@pytest.fixture
def golden_tensors(golden_file):
    return load_file(golden_file)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An offline hub; returns a function that puts a file into its cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(repository, source, file="model.safetensors", blob="abc123"):
        cache = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        (cache / "refs").mkdir(parents=True)
        (cache / "refs" / "main").write_text(COMMIT)
        snapshot = cache / "snapshots" / COMMIT
        blob = cache / "blobs" / blob
        for path in (blob, snapshot / file):
            path.parent.mkdir(parents=True)
        shutil.copyfile(source, blob)
        (snapshot / file).symlink_to(blob)
        return blob

    return put


@pytest.fixture
def file_of(tmp_path):
    """Write tensors, or a model's weights under the public names, and nothing about the model."""

    def write(tensors, **more):
        if not isinstance(tensors, dict):
            tensors = to_checkpoint(tensors)
        path = tmp_path / "plain.safetensors"
        save_file(tensors | more, path)
        return path

    return write
