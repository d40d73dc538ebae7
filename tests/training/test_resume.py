"""A training that was stopped continues as if it had not been, bit for bit."""

import contextlib
import csv
import errno
import json
import logging
import os
import shutil
import signal

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vitx as kv
from keras_vitx.training import resumable_fit, resume
from keras_vitx.training.resume import read_last_state, read_state, write_state
from keras_vitx.training.source import fingerprint

random = np.random.default_rng(0)
SOURCE = random.integers(0, 255, (52, 8, 8, 1)).astype("uint8"), np.arange(52) % 3
SETTINGS = {
    "epochs": 3, "batch_size": 8, "warmup_epochs": 0, "learning_rate": 1e-2, "clip_norm": 1.0,
    "ema": 0.9, "mixup": 0.2, "validation_split": 0.2, "verbose": 0, "save_every": 2,
}  # fmt: skip
STEPS = 5


def network(seed=0, **arguments):
    """A network with dropout, stochastic depth and seed generators."""
    keras.utils.set_random_seed(seed)
    arguments = {"dim": 8, "depth": 1, "num_heads": 2, "dropout": 0.2, **arguments}
    rates = [0.2] * arguments["depth"]
    return kv.ViT(patch_size=4, input_shape=(8, 8, 1), classes=3, drop_path=rates, **arguments)


class Stop(keras.callbacks.Callback):
    """Stop before a step, counted from the beginning of the training."""

    def __init__(self, step, how, steps=STEPS):
        super().__init__()
        self.step, self.how, self.steps = step, how, steps

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch * self.steps + batch == self.step:
            self.how()


def fail():
    raise RuntimeError("killed")


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def run(output, seed=0, stop=None, **arguments):
    callbacks = [] if stop is None else [Stop(*stop)]
    return kv.fit(
        network(seed), SOURCE, output=output, callbacks=callbacks, **{**SETTINGS, **arguments}
    )


def rows_of(output):
    return list(csv.DictReader((output / "history.csv").open()))


def last_state(output):
    return read_last_state(output / "checkpoints")


def same(one, other, where=""):
    """Compare nested values bit for bit, without times."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one.keys() - {"seconds", "images_per_second"}:
            same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}/{i}")
    else:
        np.testing.assert_array_equal(one, other, err_msg=where)


def test_a_stopped_run_continues_bit_for_bit(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    half = {"precision": "mixed_float16"}
    whole = run(tmp_path / "whole", **half)
    # In the middle of an epoch, after a checkpoint that is one step old; then at its first step.
    with pytest.raises(RuntimeError):
        run(tmp_path / "parts", stop=(8, fail), **half)
    with pytest.raises(SystemExit) as stopped:
        # Another seed of the network: nothing may depend on its first weights.
        run(tmp_path / "parts", seed=1, resume=True, stop=(2 * STEPS, terminate), **half)
    assert stopped.value.code == 143
    assert "step-000000011" in caplog.text
    parts = run(tmp_path / "parts", seed=2, resume=True, **half)
    assert "continues with step 4 of epoch 2" in caplog.text
    assert "continues with step 2 of epoch 3" in caplog.text

    same(whole.history, parts.history)
    assert (parts.epoch, whole.test) == ([0, 1, 2], parts.test)
    files = [sorted((tmp_path / name / "checkpoints").iterdir()) for name in ("whole", "parts")]
    assert files[0][-1].name == files[1][-1].name == "step-000000015.safetensors"
    assert len(files[1]) == 3
    same(*(read_state(each[-1]) for each in files))
    rows = [rows_of(tmp_path / name) for name in ("whole", "parts")]
    assert [row["learning_rate"] for row in rows[0]] == [row["learning_rate"] for row in rows[1]]
    assert float(rows[0][0]["images_per_second"]) > 0


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The directory of a run that was stopped in its second epoch."""
    output = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(RuntimeError):
        run(output, stop=(7, fail), class_weight={0: 2.0})
    return output


IMAGES, LABELS = SOURCE
OTHERS = {
    "learning_rate was 0.01, is now 0.02": {"learning_rate": 0.02},
    "seed was 0, is now 1": {"seed": 1},
    r"recipe.augmentation was \{...\}, is now None": {"augmentation": None},
    "class_weight.0 was 2.0, is now 3.0": {"class_weight": {0: 3.0}},
    "num_heads was 2, is now 4": {"model": {"num_heads": 4}},
    "variables": {"model": {"dim": 16}},
    r"model.layers was \[7 values\], is now \[8 values\]": {"model": {"depth": 2}},
    "data.train.pixels": {"source": (255 - IMAGES, LABELS)},
    "data.train.images was 42, is now": {"source": (IMAGES[:48], LABELS[:48])},
    "`output` must be a directory": {"output": None},
    r"`keep` must be an integer in \[1, inf\)": {"keep": 0},
    "must hold a run with checkpoints": {"output": "another"},
}


@pytest.mark.backend_free
def test_another_run_is_not_resumed(stopped, tmp_path):
    (tmp_path / "history.csv").touch()
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    for message, changes in OTHERS.items():
        settings = {"source": SOURCE, "class_weight": {0: 2.0}, "output": stopped, "resume": True}
        settings |= {**SETTINGS, **changes, "model": network(**changes.get("model", {}))}
        settings["output"] = tmp_path if settings["output"] == "another" else settings["output"]
        with pytest.raises(ValueError, match=message):
            kv.fit(**settings)
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


@pytest.mark.backend_free
def test_a_replaced_photo_is_other_data(write_pictures, tmp_path):
    photos = [tmp_path / "photos" / kind / f"{i}.png" for i in range(4) for kind in "ab"]
    write_pictures(*photos)
    model = kv.ViT(8, 1, 2, patch_size=4, input_shape=(8, 8, 3), classes=2)
    before, again = (fingerprint(kv.data.pipelines(tmp_path / "photos", model)) for _ in range(2))
    assert before == again
    for photo in photos:
        Image.new("RGB", (9, 9)).save(photo)
    after = fingerprint(kv.data.pipelines(tmp_path / "photos", model))
    assert all(before[split]["pixels"] != after[split]["pixels"] for split in before)


@pytest.mark.backend_free
def test_a_finished_run_is_extended(tmp_path):
    run(tmp_path, epochs=2)
    model = network(1)
    history = kv.fit(model, SOURCE, output=tmp_path, resume=True, **{**SETTINGS, "epochs": 4})
    assert history.epoch == [0, 1, 2, 3]
    assert int(model.optimizer.iterations) == 4 * STEPS
    assert last_state(tmp_path)["epoch"] == 4
    assert [row["epoch"] for row in rows_of(tmp_path)] == ["1", "2", "3", "4"]
    with pytest.raises(ValueError, match=r"data.train.images was 42, is now"):
        run(tmp_path, resume=True, epochs=6, fraction=0.5)


@pytest.mark.backend_free
def test_a_broken_file_gives_way_to_the_one_before(stopped, tmp_path, caplog):
    directory = tmp_path / "run" / "checkpoints"
    shutil.copytree(stopped / "checkpoints", directory)
    last = sorted(directory.iterdir())[-1]
    last.write_bytes(last.read_bytes()[:1000])
    # The last one is of an export to the same directory.
    for left in ("checkpoints/.unfinished-step", ".unfinished-best.keras", ".unfinished-m.onnx"):
        (directory.parent / f"{left}-abc").mkdir()
    assert read_last_state(directory)["step"] == 4
    assert last.name in caplog.text
    resume.remove_stale_files(directory)
    assert [path.name for path in directory.parent.rglob(".*")] == [".unfinished-m.onnx-abc"]
    for path in directory.iterdir():
        path.write_bytes(b"")
    with pytest.raises(OSError, match="No checkpoint"):
        read_last_state(directory)


@pytest.mark.backend_free
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    state = {"value": np.arange(5), "nested": [{"x": np.float32(2)}, None, "text"]}
    good = write_state(tmp_path, 3, state, keep=1)
    assert read_state(good)["nested"] == [{"x": 2.0}, None, "text"]
    with monkeypatch.context() as patched:
        patched.setattr("keras_vitx.training.resume.save_file", full)
        with pytest.raises(OSError, match=r"step 4 can't be written .*No space") as error:
            write_state(tmp_path, 4, state, keep=1)
        # It shows before the first step.
        model = network()
        weights = model.get_weights()
        with pytest.raises(OSError, match="step 0 can't be written"):
            kv.fit(model, SOURCE, output=tmp_path / "run", **SETTINGS)
        same(weights, model.get_weights())
    assert error.value.errno == errno.ENOSPC
    same(read_state(good)["value"], np.arange(5))
    write_state(tmp_path, 4, state, keep=1)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000004.safetensors"]


@pytest.mark.backend_free
def test_the_step_and_the_images_of_a_loss_that_is_not_finite(tmp_path):
    batches = kv.data.pipelines(SOURCE, network(), 8, validation_split=0.2).train
    images = [int(i) for i in batches.ids(1, 3)]
    model = network()
    poison = Stop(STEPS + 3, lambda: model.get_layer("head").bias.assign([np.nan, 0, 0]))
    # Under JAX, weights are not in the variables during an epoch, but PyTorch will do.
    with pytest.raises(FloatingPointError, match=r"step 4 of epoch 2\. Its images: ") as error:
        kv.fit(model, SOURCE, output=tmp_path, callbacks=[poison], **SETTINGS)
    for words in (", ".join(map(str, images)), "continues from", "step-000000008", "of epoch 1"):
        assert words in str(error.value)
    assert json.loads((tmp_path / "run.json").read_text())["images"] == images
    assert all(np.isfinite(a).all() for a in last_state(tmp_path)["arrays"])


class Numbers(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        random = np.random.default_rng(index)
        return random.normal(size=(4, 3)), random.normal(size=(4, 1))


@pytest.mark.backend_free
@pytest.mark.parametrize("steps", [6, 3])
@pytest.mark.parametrize("kind", ["PyDataset", "DataLoader"])
def test_the_users_own_batches_and_callbacks(kind, steps, tmp_path):
    """With `model.compile`, and callbacks, which hear of each step and epoch once."""
    batches = Numbers()
    if kind == "DataLoader":
        data = pytest.importorskip("torch").utils.data
        batches = data.DataLoader([batches[i] for i in range(6)], batch_size=None)

    def fit(name, loss="mse", stop=(), **arguments):
        keras.utils.set_random_seed(0)
        # PyTorch's random numbers depend on how often Keras begins with a DataLoader.
        dropout = keras.layers.Dropout(0.5 if kind == "PyDataset" else 0.0)
        dense = keras.layers.Dense(4), keras.layers.Dense(1)
        model = keras.Sequential([keras.Input((3,)), dense[0], dropout, dense[1]])
        model.compile(keras.optimizers.Adam(0.01), loss)
        heard = []
        note = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: heard.append("begin"),
            on_train_end=lambda logs: heard.append("end"),
            on_epoch_end=lambda epoch, logs: heard.append(f"epoch {epoch}"),
            on_train_batch_end=lambda batch, logs: heard.append(batch),
        )
        (tmp_path / name).mkdir(exist_ok=True)
        logger = keras.callbacks.CSVLogger(tmp_path / name / "history.csv", append=True)
        arguments |= {"steps_per_epoch": steps if steps < 6 else None, "save_every": 1}
        arguments |= {"epochs": 3, "directory": tmp_path / name / "run", "verbose": 0}
        with pytest.raises(RuntimeError) if stop else contextlib.nullcontext():
            resumable_fit(model, batches, callbacks=[note, logger, *stop], **arguments)
        return model.get_weights(), heard

    whole, everything = fit("whole")
    _, before = fit("parts", stop=[Stop(steps + 2, fail, steps)])
    with pytest.raises(ValueError, match="loss was mse, is now mae"):
        fit("parts", loss="mae", resume=True)
    weights, after = fit("parts", resume=True)
    same(whole, weights)
    assert before + after[1:] == everything
    assert everything[-2:] == ["epoch 2", "end"] and everything.count(steps - 1) == 3
    assert [row["epoch"] for row in rows_of(tmp_path / "parts")] == ["0", "1", "2"]


@pytest.mark.backend_free
def test_a_run_of_another_backend(stopped, tmp_path, caplog):
    """It continues, but says that it isn't bit for bit."""
    shutil.copytree(stopped, tmp_path / "run")
    state = last_state(tmp_path / "run")
    # Backends count and seed with integers of other widths.
    assert {kind for _, kind in state["facts"]["variables"]} == {"float32", "int"}
    for name in ("torch", "cuda"):
        state["random"].pop(name, None)
    write_state(tmp_path / "run" / "checkpoints", 9, {**state, "backend": "another", "step": 4})
    caplog.set_level(logging.INFO)
    history, again = (
        run(tmp_path / "run", resume=True, class_weight={0: 2.0}).history for _ in range(2)
    )
    assert "training on another" in caplog.text and "not bit for bit" in caplog.text
    assert len(history["loss"]) == 3
    assert "is finished" in caplog.text
    same(again, history)
