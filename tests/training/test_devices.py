"""Several devices compute what one computes: four of JAX, two of TensorFlow and PyTorch."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from harness import BACKEND, run_python
from training.fitting import small

import keras_vitx as kv
from keras_vitx.data.augmentation.mixing import shard_of_batch
from keras_vitx.models import Chain
from keras_vitx.training.devices import replicas

SCRIPT = Path(__file__).with_name("on_devices.py")
TORCHRUN = "from torch.distributed.run import main; main()"
# PyTorch has a process per device.
RUNS = {"jax": [["1", "4", "4-sharded"]], "tensorflow": [["1", "2"]], "torch": [["1"], ["2"]]}
# BatchNormalization, in DeepViT, learns from the images of each replica except under JAX.
FITTED = "DeepViT" if BACKEND == "jax" else "ViT"


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """What the script prints, {devices: {family: curve}}, and the directory of its runs."""
    directory, found = tmp_path_factory.mktemp("devices"), {}
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    for numbers in RUNS[BACKEND]:
        words = SCRIPT, directory, FITTED, *numbers
        if BACKEND == "torch":
            words = TORCHRUN, "--standalone", "--nproc-per-node", *numbers, *words
        process = run_python(*words, check=False, XLA_FLAGS=flags, OMP_NUM_THREADS="1")
        assert process.returncode == 0, process.stderr[-3000:]
        found |= json.loads(process.stdout.strip().splitlines()[-1])
    return found, directory


def test_the_curve_of_one_device(curves):
    """Without and with normalized maps; ViT has two heads."""
    one, *several = (curve["fitted"] for curve in curves[0].values())
    if BACKEND == "jax":
        # The kernels of two blocks, of the patches and of the positions.
        assert [curve["sharded"] for curve in (one, *several)] == [0, 0, 2 * 4 + 2]
    assert several and one["loss"][1] < one["loss"][0]
    # Adam turns rounding errors of gradients that are zero, of DeepViT's biases, into steps.
    tolerance = 5e-4 if FITTED == "DeepViT" else 1e-4
    for other in several:
        for name in ("loss", "val_loss", "test_loss"):
            assert other[name] == pytest.approx(one[name], rel=tolerance)
        assert other["weights"] == pytest.approx(one["weights"], rel=1e-3)
        assert other["images"] == one["images"] == 11


def test_one_process_writes_the_files(curves):
    found, directory = curves
    assert {path.name for path in directory.iterdir()} == set(found)
    for path in directory.iterdir():
        files = {file.name for file in path.iterdir()}
        assert files == {"best.keras", "history.csv", "run.json", "restart.safetensors"}
        run = json.loads((path / "run.json").read_text())
        assert run["devices"] == int(path.name.partition("-")[0])


def test_plain_training_and_random_numbers(curves):
    """JAX draws the numbers of the whole batch; elsewhere, each replica draws its own."""
    *one, several = (curve["random"] for curve in curves[0].values() if "random" in curve)
    assert not several["optimizer_is_changed"]  # After an error.
    if BACKEND == "jax":
        assert several["loss"] == pytest.approx(one[0]["loss"], rel=1e-4)
    else:
        assert np.isfinite(several["loss"]).all()
        assert several["seed"] == 2 and several["moving_mean"] == 1


@pytest.mark.skipif(BACKEND != "torch", reason="Keras's copies wait under PyTorch only")
def test_labels_and_pixels_are_copied_before_keras_does(monkeypatch):
    import torch

    copied = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        replicas,
        "copy_array",
        lambda array: copied.append(array.dtype.name) or torch.tensor(array),
    )
    source = np.zeros((8, 4, 4, 1), "uint8"), np.arange(8) % 2
    model = kv.ViT(8, 1, 1, patch_size=4, input_shape=(4, 4, 1), classes=2)
    own, batches = (
        kv.data.pipelines(source, model, 4, validation_split=0, pixels=pixels).train
        for pixels in (False, True)
    )
    for each, kinds in ((batches, ["float32", "int32", "uint8"]), (own, ["float32", "int32"])):
        model.compile("sgd", "sparse_categorical_crossentropy")
        copied.clear()
        kv.fit(model, each, epochs=2, warmup_epochs=0)
        assert sorted(copied[-len(kinds) :]) == kinds and len(copied) >= 4 * len(kinds)


def test_a_train_step_of_the_users_gets_images():
    seen = []

    class Own(Chain):
        def train_step(self, *args):
            seen.append(args[-1][0])
            return super().train_step(*args)

    model = kv.ViT(8, 1, 1, patch_size=4, input_shape=(4, 4, 1), classes=2)
    model = Own(model.layers, (4, 4, 1), preprocessing=model.preprocessing)
    source = np.zeros((8, 4, 4, 1), "uint8"), np.arange(8) % 2
    model.compile("sgd", "sparse_categorical_crossentropy")
    kv.fit(model, source, batch_size=4, validation_split=0, epochs=1, warmup_epochs=0)
    assert seen and all(images.shape[1:] == (4, 4, 1) for images in seen)


def test_what_the_machine_does_not_have(monkeypatch):
    for wrong in (4096, 0):
        with pytest.raises(ValueError, match=f"`devices` .*Received: {wrong}"):
            kv.training.use_devices(wrong)
    if BACKEND != "jax":
        with pytest.raises(ValueError, match=r"`shard_weights` must be False, .*Received: True"):
            kv.training.use_devices("all", shard_weights=True)
    assert kv.training.use_devices("all").count >= 1
    kv.training.use_devices(1)
    if BACKEND == "tensorflow":
        monkeypatch.setenv("TF_CONFIG", "{}")
        with pytest.raises(ValueError, match=r"`TF_CONFIG` must be unset.*JAX or PyTorch"):
            kv.training.use_devices("all")


@pytest.mark.backend_free
@pytest.mark.parametrize("mixing", ({"mixup": 0.0}, {"cutmix": 0.0, "group_size": 2}))
def test_a_process_makes_its_images_only(mixing):
    random = np.random.default_rng(0)
    source = random.integers(0, 256, (20, 4, 4, 1), "uint8"), np.arange(20) % 2
    train = kv.data.pipelines(source, small(), 8, mixing=mixing, validation_split=0).train
    images, labels = train[1]
    rows = [shard_of_batch(8, shard, 2) for shard in range(2)]
    assert sorted(np.concatenate(rows)) == list(range(8))
    for shard, own in enumerate(rows):
        some_images, some_labels = train.replace(shard=(shard, 2))[1]
        assert len(own) == 4
        assert np.array_equal(images[own], some_images)
        assert np.array_equal(labels[own], some_labels)
