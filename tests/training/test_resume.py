"""A training that was stopped continues as if it had not been, bit for bit."""

import csv
import errno
import json
import logging
import os
import re
import shutil
import signal

import keras
import numpy as np
import pytest
from harness import BACKEND

import keras_vitx as kv
from keras_vitx.training import resumable_fit
from keras_vitx.training.resume import (
    check_same,
    flattened,
    read_last_state,
    read_state,
    remove_stale_files,
    write_state,
)
from keras_vitx.training.wrapped import Window

random = np.random.default_rng(0)
SOURCE = random.integers(0, 255, (52, 8, 8, 1)).astype("uint8"), np.arange(52) % 3
SETTINGS = {
    "epochs": 3, "batch_size": 8, "warmup_epochs": 0, "learning_rate": 1e-2, "clip_norm": 1.0,
    "ema": 0.9, "mixup": 0.2, "validation_split": 0.2, "verbose": 0,
}  # fmt: skip
STEPS = 5


def network(seed=0, **arguments):
    """A network with dropout, stochastic depth and seed generators."""
    keras.utils.set_random_seed(seed)
    arguments = {"dim": 8, "depth": 2, "num_heads": 2, "dropout": 0.2, **arguments}
    return kv.ViT(patch_size=4, input_shape=(8, 8, 1), classes=3, drop_path=0.2, **arguments)


class Stop(keras.callbacks.Callback):
    """Stop before a step, counted from the beginning of the training."""

    def __init__(self, step, how):
        super().__init__()
        self.step, self.how = step, how

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch * STEPS + batch == self.step:
            self.how()


def fail():
    raise RuntimeError("killed")


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def run(output, precision, seed=0, stop=None, **arguments):
    callbacks = [] if stop is None else [Stop(*stop)]
    arguments = {**SETTINGS, "save_every": 2, "callbacks": callbacks, **arguments}
    return kv.fit(network(seed), SOURCE, output=output, precision=precision, **arguments)


def same(one, other, where=""):
    """Compare nested values bit for bit, without times."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one.keys() - {"seconds", "images_per_second"}:
            same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}/{i}")
    else:
        np.testing.assert_array_equal(one, other, err_msg=where)


def test_a_stopped_run_continues_bit_for_bit(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    precision = "mixed_float16"
    whole = run(tmp_path / "whole", precision)
    # In the middle of an epoch, after a checkpoint that is one step old; then at its first step.
    with pytest.raises(RuntimeError):
        run(tmp_path / "parts", precision, stop=(8, fail))
    with pytest.raises(SystemExit) as stopped:
        # Another seed of the network: nothing may depend on its first weights.
        run(tmp_path / "parts", precision, seed=1, resume=True, stop=(2 * STEPS, terminate))
    assert stopped.value.code == 143
    assert "step-000000011" in caplog.text
    parts = run(tmp_path / "parts", precision, seed=2, resume=True)
    assert "continues with step 4 of epoch 2" in caplog.text
    assert "continues with step 2 of epoch 3" in caplog.text

    same(whole.history, parts.history)
    assert (parts.epoch, whole.test) == ([0, 1, 2], parts.test)
    files = [sorted((tmp_path / name / "checkpoints").iterdir()) for name in ("whole", "parts")]
    assert files[0][-1].name == files[1][-1].name == "step-000000015.safetensors"
    assert len(files[1]) == 3
    first, last, other = map(read_state, (files[0][0], files[0][-1], files[1][-1]))
    same(last, other)
    assert any(not np.array_equal(a, last["arrays"][n]) for n, a in first["arrays"].items())
    rows = [list(csv.DictReader((tmp_path / n / "history.csv").open())) for n in ("whole", "parts")]
    assert [row["learning_rate"] for row in rows[0]] == [row["learning_rate"] for row in rows[1]]
    assert float(rows[0][0]["images_per_second"]) > 0


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that was stopped in its second epoch."""
    output = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(RuntimeError):
        run(output, None, stop=(7, fail))
    return output


@pytest.mark.backend_free
def test_another_run_is_not_resumed(stopped, tmp_path):
    images, labels = SOURCE
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    for model, source, changes, message in (
        (network(), SOURCE, {"learning_rate": 0.02}, "learning_rate was 0.01, is now 0.02"),
        (network(), SOURCE, {"seed": 1}, "seed was 0, is now 1"),
        (
            network(),
            SOURCE,
            {"augmentation": None},
            r"recipe.augmentation was \{...\}, is now None",
        ),
        (network(), SOURCE, {"class_weight": {0: 2.0}}, r"class_weight was None, is now \{...\}"),
        (network(num_heads=4), SOURCE, {}, "num_heads was 2, is now 4"),
        (network(dim=16), SOURCE, {}, "variables"),
        (network(depth=3), SOURCE, {}, r"model.layers was \[8 values\], is now \[9 values\]"),
        (network(), (255 - images, labels), {}, "data.train.pixels"),
        (network(), (images[:48], labels[:48]), {}, "data.train.images was 42, is now"),
        (network(), SOURCE, {"resume": False}, "`resume=True`"),
        (network(), SOURCE, {"output": None}, "need `output`"),
        (network(), SOURCE, {"keep": 0}, "`keep` must be at least 1"),
    ):
        settings = {**SETTINGS, "output": stopped, "save_every": 2, "resume": True, **changes}
        with pytest.raises(ValueError, match=message):
            kv.fit(model, source, **settings)
    (tmp_path / "history.csv").touch()
    with pytest.raises(ValueError, match="no checkpoints"):
        run(tmp_path, None, resume=True)
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


@pytest.mark.backend_free
def test_the_nested_configuration_of_earlier_versions():
    """Today's is flat; names that only one of both has are not compared."""
    before = {"recipe": {"schedule": {"epochs": 2}, "old": 1}, "shapes": [[3, 4]], "names": ["a"]}
    now = {"recipe": {"schedule": {"epochs": 3}, "new": 2}, "shapes": [(3, 4)], "names": ["a"]}
    flat = flattened(now)
    assert flat["recipe.schedule.epochs"] == 3 and flattened(flat) == flat
    with pytest.raises(ValueError, match=r"another one: recipe.schedule.epochs was 2, is now 3\. "):
        check_same(flattened(before), flat)
    check_same(flattened(before), flat, ["recipe.schedule."])


@pytest.mark.backend_free
def test_another_loss_or_a_replaced_photo_is_another_run(tmp_path):
    from PIL import Image

    for index, (image, label) in enumerate(zip(SOURCE[0][:24], SOURCE[1], strict=False)):
        folder = tmp_path / "photos" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.repeat(3, -1)).resize((9, 9)).save(folder / f"{index}.png")
    keras.utils.set_random_seed(0)

    def fit(stop=None, loss=None, **arguments):
        model = kv.ViT(8, 1, 2, patch_size=4, input_shape=(8, 8, 3), classes=3)
        if loss is not None:
            model.compile(keras.optimizers.SGD(0.1), loss)
        kv.fit(
            model, tmp_path / "photos", epochs=3, batch_size=4, verbose=0,
            output=tmp_path / ("run" if loss is None else "compiled"),
            callbacks=[] if stop is None else [Stop(STEPS, fail)], **arguments,
        )  # fmt: skip

    weights = {"class_weight": {"0": 2.0}}
    with pytest.raises(RuntimeError):
        fit(stop=True, **weights)
    with pytest.raises(ValueError, match=r"class_weight.0 was 2.0, is now 3.0"):
        fit(resume=True, class_weight={"0": 3.0})
    with pytest.raises(RuntimeError):
        fit(stop=True, loss="sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match=r"loss was sparse_categorical_crossentropy, is now \{"):
        fit(resume=True, loss=keras.losses.SparseCategoricalCrossentropy())
    photo = tmp_path / "photos" / "0" / "0.png"
    before = photo.read_bytes()
    Image.fromarray(random.integers(0, 255, (40, 40, 3)).astype("uint8")).save(photo)
    with pytest.raises(ValueError, match=r"data\.\w+\.pixels"):
        fit(resume=True, **weights)
    photo.write_bytes(before)
    fit(resume=True, **weights)


@pytest.mark.backend_free
def test_a_finished_run_is_extended(tmp_path):
    short = {**SETTINGS, "epochs": 2}
    kv.fit(network(), SOURCE, output=tmp_path, **short)
    longer = {**SETTINGS, "epochs": 4}
    model = network(1)
    history = kv.fit(model, SOURCE, output=tmp_path, resume=True, **longer)
    assert history.epoch == [0, 1, 2, 3]
    assert int(model.optimizer.iterations) == 4 * STEPS
    assert read_state_of(tmp_path)["epoch"] == 4
    rows = list(csv.DictReader((tmp_path / "history.csv").open()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    with pytest.raises(ValueError, match="seed was 0, is now 1"):
        kv.fit(network(), SOURCE, output=tmp_path, resume=True, seed=1, **{**SETTINGS, "epochs": 6})


@pytest.mark.backend_free
def test_a_broken_file_gives_way_to_the_one_before(stopped, tmp_path, caplog):
    folder = tmp_path / "run" / "checkpoints"
    shutil.copytree(stopped / "checkpoints", folder)
    last = sorted(folder.iterdir())[-1]
    last.write_bytes(last.read_bytes()[:1000])
    for path in (folder / ".unfinished-step-abc", folder.parent / ".unfinished-best.keras-abc"):
        path.mkdir()
    # Of an export to the same folder.
    (folder.parent / ".unfinished-m.onnx-abc").mkdir()
    assert read_last_state(folder)["step"] == 4
    assert last.name in caplog.text
    remove_stale_files(folder)
    assert [path.name for path in folder.parent.rglob(".*")] == [".unfinished-m.onnx-abc"]
    for path in folder.iterdir():
        path.write_bytes(b"")
    with pytest.raises(OSError, match="No checkpoint"):
        read_last_state(folder)


def full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.backend_free
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    state = {"value": np.arange(5), "nested": [{"x": np.float32(2)}, None, "text"]}
    good = write_state(tmp_path, 3, state, keep=1)
    assert read_state(good)["nested"] == [{"x": 2.0}, None, "text"]
    before = good.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("keras_vitx.training.resume.save_file", full)
        message = r"step 4 can't be written.*: No space.*step-000000003"
        with pytest.raises(OSError, match=message) as error:
            write_state(tmp_path, 4, state, keep=1)
        # It shows before the first step.
        model = network()
        weights = model.get_weights()
        with pytest.raises(OSError, match="step 0 can't be written"):
            kv.fit(model, SOURCE, output=tmp_path / "run", **SETTINGS)
        same(weights, model.get_weights())
    assert error.value.errno == errno.ENOSPC
    assert good.read_bytes() == before
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
        kv.fit(model, SOURCE, output=tmp_path, save_every=2, callbacks=[poison], **SETTINGS)
    for words in (", ".join(map(str, images)), "continues from", "step-000000008", "of epoch 1"):
        assert words in str(error.value)
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["images"] == images
    assert all(np.isfinite(a).all() for a in read_state_of(tmp_path)["arrays"].values())


def read_state_of(output):
    return read_last_state(output / "checkpoints")


class Numbers(keras.utils.PyDataset):
    def __init__(self, count=6):
        super().__init__()
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        random = np.random.default_rng(index)
        return random.normal(size=(4, 3)), random.normal(size=(4, 1))


@pytest.mark.backend_free
def test_windows_begin_again_after_the_last_batch():
    assert [len(Numbers()), Window(Numbers(), 4, 2).num_batches] == [6, 2]
    first, second = Window(Numbers(), 4)[1], Window(Numbers(), 4)[2]
    np.testing.assert_array_equal(first[0], Numbers()[5][0])
    np.testing.assert_array_equal(second[0], Numbers()[0][0])
    rest = Window([Numbers()[i] for i in range(6)], 4, 2)
    np.testing.assert_array_equal(rest[0][0], Numbers()[4][0])
    assert len(rest) == 2


@pytest.mark.backend_free
@pytest.mark.parametrize("steps_per_epoch", [None, 3])
@pytest.mark.parametrize("kind", [Numbers, lambda: [Numbers()[i] for i in range(6)]])
def test_the_users_own_batches_and_callbacks(kind, steps_per_epoch, tmp_path):
    """With `model.compile` and callbacks of Keras; `Heard` hears of each step once."""
    if kind is not Numbers and BACKEND != "torch":
        pytest.skip("a DataLoader is PyTorch's")

    class Heard(keras.callbacks.Callback):
        events = []

        def on_train_begin(self, logs=None):
            self.events.append("begin")

        def on_train_end(self, logs=None):
            self.events.append("end")

        def on_epoch_end(self, epoch, logs=None):
            self.events.append(f"epoch {epoch}")

        def on_train_batch_end(self, batch, logs=None):
            self.events.append(batch)

    def fit(name, resume=False, stop=None):
        keras.utils.set_random_seed(0)
        # PyTorch's random numbers depend on how often Keras begins with a DataLoader.
        dropout = keras.layers.Dropout(0.5 if kind is Numbers else 0.0)
        dense = keras.layers.Dense(4), keras.layers.Dense(1)
        model = keras.Sequential([keras.Input((3,)), dense[0], dropout, dense[1]])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        batches = kind()
        if kind is not Numbers:
            import torch

            batches = torch.utils.data.DataLoader(batches, batch_size=None)
        Heard.events = []
        callbacks = [Heard(), *([] if stop is None else [stop])]
        resumable_fit(
            model, batches, epochs=3, folder=tmp_path / name, save_every=1, resume=resume,
            callbacks=callbacks, steps_per_epoch=steps_per_epoch, verbose=0,
        )  # fmt: skip
        return model.get_weights()

    steps = steps_per_epoch or 6
    whole = fit("whole")
    everything = Heard.events
    with pytest.raises(RuntimeError):
        stop = Stop(0, fail)
        stop.on_train_batch_begin = lambda batch, logs=None: (
            fail() if (stop.epoch, batch) == (1, 2) else None
        )
        fit("parts", stop=stop)
    before = Heard.events
    same(whole, fit("parts", resume=True))
    assert before + Heard.events[1:] == everything
    assert everything[-2:] == ["epoch 2", "end"] and everything.count(steps - 1) == 3


@pytest.mark.backend_free
def test_a_run_of_another_backend(stopped, tmp_path, caplog):
    """It continues, but says that it isn't bit for bit."""
    shutil.copytree(stopped, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    state = read_last_state(checkpoints)
    # Backends count and seed with integers of other widths.
    facts = state["facts"].items()
    kinds = {value for name, value in facts if re.fullmatch(r"variables\[\d+\]\[1\]", name)}
    assert kinds == {"float32", "int"}
    for name in ("torch", "cuda"):
        state["random"].pop(name, None)
    write_state(checkpoints, 9, {**state, "backend": "another", "step": 4})
    with caplog.at_level(logging.INFO):
        history = run(tmp_path / "run", None, resume=True)
    assert "training on another" in caplog.text and "not bit for bit" in caplog.text
    assert len(history.history["loss"]) == 3
    with caplog.at_level(logging.INFO):
        again = run(tmp_path / "run", None, resume=True)
    assert "is finished" in caplog.text
    same(again.history, history.history)


@pytest.mark.backend_free
def test_the_loggers_of_keras(tmp_path):
    """A file of `CSVLogger` has each epoch once."""

    def fit(*stop, **arguments):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        resumable_fit(
            model, Numbers(5), epochs=3, folder=tmp_path / "checkpoints", save_every=2, verbose=0,
            callbacks=[keras.callbacks.CSVLogger(tmp_path / "log.csv", append=True), *stop],
            **arguments,
        )  # fmt: skip

    with pytest.raises(RuntimeError):
        fit(Stop(8, fail))
    fit(resume=True)
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
