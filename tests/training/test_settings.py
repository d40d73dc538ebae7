"""The settings of `fit` on models of any past: each is in force, or refused by name.

A setting is in force if the run ends with other weights than without it, and with those of a fresh
model. `table` makes that of docs/training.md.
"""

import functools

import keras
import numpy as np
import pytest
from harness import FAMILIES, ROOT, array

import keras_vitx as kv
from keras_vitx.layers.base import optimizer_of
from keras_vitx.models.chain import Chain

pytestmark = pytest.mark.backend_free
DATA = np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3), "uint8"), np.arange(16) % 5
RUN = {
    "epochs": 2, "batch_size": 8, "min_updates": None, "warmup_epochs": 0, "validation_split": 0,
    "augmentation": None, "verbose": 0,
}  # fmt: skip
SETTINGS = {
    "epochs": 1,
    "batch_size": 4,
    "learning_rate": 1e-2,
    "warmup_epochs": 1,
    "weight_decay": 50.0,
    "clip_norm": 1e-7,
    "layer_decay": 0.1,
    "accumulate_steps": 2,
    "label_smoothing": 0.5,
    "drop_path": 0.5,
    "remat": True,
    "train": "head",
    "precision": "mixed_bfloat16",
}


def fresh():
    keras.utils.set_random_seed(0)
    return FAMILIES["ViT"](depth=2, drop_path=0.0, name="model")


def compiled(**arguments):
    model = fresh()
    model.compile(**arguments)
    return model


def after_predict():
    model = fresh()
    model.predict(DATA[0].astype("float32"), verbose=0)
    return model


def after_fit():
    model = fresh()
    kv.fit(model, DATA, **RUN)
    return model


def loaded(path):
    after_fit().save(path)
    return keras.saving.load_model(path)


def subclassed():
    kind = type("Own", (Chain,), {})
    return kind.from_config(fresh().get_config())


def nested():
    inner = fresh()
    model = keras.Sequential([keras.Input((16, 16, 3)), inner])
    model.preprocessing = inner.preprocessing
    return model


def plain(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs)


PASTS = {
    "fresh": fresh,
    "compiled: all": lambda: compiled(optimizer=keras.optimizers.SGD(0.1), loss=plain),
    "loss": lambda: compiled(loss=plain),
    "metrics": lambda: compiled(metrics=["accuracy"]),
    "after `predict`": after_predict,
    "after `fit`": after_fit,
    "loaded": None,
    "subclassed": subclassed,
    "nested": nested,
}


@functools.cache
def ended(past, setting, directory=None):
    """Return what a run ended with: steps, what is recomputed, and the weights."""
    model = loaded(directory / "model.keras") if past == "loaded" else PASTS[past]()
    model.set_weights(fresh().get_weights())
    steps = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(step))
    settings = RUN | ({setting: SETTINGS[setting]} if setting else {})
    kv.fit(model, DATA, callbacks=[count], **settings)
    found = [array(v.value).ravel() for v in model.weights]
    return np.concatenate([[len(steps), getattr(model, "remat", False)], *found])


def outcome(past, setting, directory):
    """Return "in force" or "refused"."""
    before = ended(past, None, directory)
    try:
        found = ended(past, setting, directory)
    except ValueError as error:
        assert f"`{setting}`" in str(error)
        return "refused"
    assert np.abs(found - before).max() > 2e-4, f"{setting} does nothing"
    if past not in ("compiled: all", "loss") and setting not in ("drop_path", "remat"):
        np.testing.assert_allclose(found, ended("fresh", setting), atol=2e-4)
    return "in force"


def table(directory):
    rows = [f"| setting | {' | '.join(PASTS)} |", f"|---|{'---|' * len(PASTS)}"]
    for setting in SETTINGS:
        found = (outcome(past, setting, directory) for past in PASTS)
        rows.append(f"| `{setting}` | {' | '.join(found)} |")
    return "\n".join(rows)


def test_a_setting_is_in_force_or_refused(tmp_path):
    assert table(tmp_path) in (ROOT / "docs/training.md").read_text()


@pytest.mark.parametrize("past", [past for past in PASTS if past != "loaded"])
def test_the_average_of_the_weights(past):
    """It is near the weights in so short a run: the optimizer has the momentum, or an error."""
    model = PASTS[past]()
    try:
        kv.fit(model, DATA, ema=0.5, **RUN)
    except ValueError as error:
        assert "`ema`" in str(error) and past == "compiled: all"
    else:
        optimizer = optimizer_of(model)
        assert optimizer.use_ema and optimizer.ema_momentum == 0.5 and past != "compiled: all"
