"""`fit` with a teacher, token labels, MixToken and DeepViT's regularizer."""

import json

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, close

import keras_vitx as kv
from keras_vitx.layers import ClassToken, ContextBroadcasting, DenseHead, DistilledHead
from keras_vitx.layers import PatchEmbedding as Patches
from keras_vitx.losses import PerHead, SmoothedCrossentropy
from keras_vitx.models import Chain
from keras_vitx.training import TokenLabels

HALVES = kv.Preprocessing((0.5,) * 3, (0.5,) * 3)
CLASSES = 3
RANDOM = np.random.default_rng(0)
BLOCKS = RANDOM.integers(0, CLASSES, (36, 2, 2))
IMAGES = (255 * np.eye(CLASSES)[BLOCKS]).astype("uint8").repeat(4, 1).repeat(4, 2)
"""Images 8 x 8 of four blocks of one colour each."""
LABELS = (BLOCKS == 1).sum((1, 2)).clip(0, 2)
GRIDS = np.eye(CLASSES, dtype="float32")[BLOCKS]
SHORT = {
    "epochs": 2,
    "batch_size": 9,
    "warmup_epochs": 0,
    "learning_rate": 1e-2,
    "augmentation": "crop_flip",
    "verbose": 0,
}


def student_of(head="one"):
    keras.utils.set_random_seed(0)
    layers = {
        "one": lambda: [keras.layers.Flatten(), keras.layers.Dense(CLASSES, name="head")],
        "token": lambda: [keras.layers.Reshape((2, 96)), DistilledHead(CLASSES, name="head")],
        "dense": lambda: [
            Patches(6, 4, name="stem"),
            ClassToken(name="token"),
            ContextBroadcasting(name="mean"),
            DenseHead(CLASSES, "softmax", name="head"),
        ],
    }
    return Chain(layers[head](), (8, 8, 3), preprocessing=HALVES)


def teacher_of(classes=CLASSES):
    keras.utils.set_random_seed(3)
    teacher = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(classes)],
        name="the_teacher",
    )
    teacher.preprocessing = HALVES
    return teacher


@pytest.mark.parametrize("head,name", (("one", "teacher"), ("token", "head_dist")))
def test_a_recipe_that_distils(head, name, tmp_path):
    """Without training, the loss of the first step is that of the formula."""
    model, teacher = student_of(head), teacher_of()
    settings = {"distillation": "soft", "temperature": 2.0, "distillation_weight": 0.3}
    history = kv.fit(
        model,
        (IMAGES, LABELS),
        teacher=teacher,
        mixup=0.8,
        output=tmp_path,
        **settings,
        **{**SHORT, "learning_rate": 1e-3},
    ).history
    assert isinstance(model.loss, PerHead)
    assert model.loss.weights == {"head": 0.7, name: 0.3}
    assert model.loss.losses["head"].label_smoothing == 0.1
    assert model.loss.losses[name].temperature == 2
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(history)
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["teacher"] == "the_teacher"
    assert settings.items() <= facts["recipe"]["targets"].items()
    # The file needs no teacher, and its validation loss is that of the labels.
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    images = kv.preprocess_input(IMAGES[:5], loaded)
    close(array(loaded(images)), array(model(images)))
    measured = kv.evaluate(loaded, (IMAGES, LABELS), "validation", validation_split=0.1)
    best = int(np.lexsort([history["val_loss"], -np.array(history["val_accuracy"])])[0])
    assert measured["loss"] == pytest.approx(history["val_loss"][best], rel=1e-4)


def killed(batch, logs):
    if batch == 1:
        raise RuntimeError("killed")


def test_a_distillation_that_was_killed_continues(tmp_path):
    """With MixToken, too: teacher's targets and boxes depend on the batch alone."""
    runs = []
    stop = keras.callbacks.LambdaCallback(on_train_batch_end=killed)
    for folder, callbacks in (("whole", []), ("parts", [stop])):
        arguments = {
            **SHORT,
            "teacher": teacher_of(),
            "mix_token": True,
            "output": tmp_path / folder,
            "save_every": 1,
            "result": "last",
        }
        layers = [*student_of("dense").steps[:3], keras.layers.Flatten(), keras.layers.Dense(3)]
        model = Chain(layers, (8, 8, 3), preprocessing=HALVES)
        weights = model.get_weights()
        if callbacks:
            with pytest.raises(RuntimeError, match="killed"):
                kv.fit(model, (IMAGES, LABELS), callbacks=callbacks, **arguments)
            model.set_weights(weights)
        kv.fit(model, (IMAGES, LABELS), resume=bool(callbacks), **arguments)
        runs.append(model.get_weights())
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.backend_free
@pytest.mark.parametrize("mix_token", (False, True))
def test_token_labels(mix_token):
    model = student_of("dense")
    history = kv.fit(
        model,
        (IMAGES, LABELS),
        "refiner_advanced",
        token_labels=GRIDS,
        mix_token=mix_token,
        mixing=None,
        similarity=None,
        drop_path=None,
        cooldown_epochs=0,
        ema=None,
        **{**SHORT, "epochs": 15, "learning_rate": 0.2},
    ).history
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    images = kv.preprocess_input(IMAGES, model)
    patches = array(model(images, training=True, return_parts=True)["aux_head"])
    assert (patches.argmax(-1) == BLOCKS.reshape(36, 4)).mean() > 0.95


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "family,over", (("DeepViT", "heads"), ("DeepViT", "queries"), ("RefinedViT", "queries"))
)
def test_the_regularizer_is_part_of_the_loss(family, over):
    """It is linear in its weight, which the recipes refiner_advanced and deepvit set."""
    losses = []
    for weight in (0.0, 0.1, 0.2):
        keras.utils.set_random_seed(0)
        settings = {"similarity": 0.1, "similarity_depth": 3, "similarity_over": over}
        model = FAMILIES[family](classes=CLASSES, depth=4, drop_path=0.0, **settings)
        changed = {**SHORT, "epochs": 1, "learning_rate": 1e-12, "final_learning_rate": 0.0}
        history = kv.fit(
            model,
            (IMAGES, LABELS),
            similarity=weight,
            similarity_depth=3,
            **{**changed, "augmentation": None},
        )
        losses.append(history.history["loss"][0])
    assert abs(losses[1] - losses[0]) > 3e-4
    assert losses[2] - losses[0] == pytest.approx(2 * (losses[1] - losses[0]), rel=1e-3)


WRONG = {
    "no teacher": ({"distillation": "hard"}, "one", "`teacher` must be a model"),
    "weights": (
        {"teacher": teacher_of(), "class_weight": {0: 1.0, 1: 2.0, 2: 1.0}},
        "one",
        "`class_weight` must be None",
    ),
    "missing": ({"token_labels": GRIDS[:20]}, "dense", "20 grids, and none for the image"),
}


@pytest.mark.backend_free
@pytest.mark.parametrize("case", WRONG)
def test_errors_before_the_first_step(case):
    arguments, head, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        kv.fit(student_of(head), (IMAGES, LABELS), **arguments, **SHORT)


@pytest.mark.backend_free
def test_a_teacher_of_other_names(tmp_path):
    np.savez(tmp_path / "data.npz", x_train=IMAGES, y_train=LABELS, class_names=["a", "b", "c"])
    teacher = teacher_of()
    for teacher.class_names in (("a", "b", "c"), ("0", "1", "2")):
        kv.fit(student_of(), tmp_path / "data.npz", teacher=teacher, **SHORT)
    teacher.class_names = ("b", "a", "c")
    with pytest.raises(ValueError, match=r"same order, \(a, b, c, .*Received: \(b, a, c"):
        kv.fit(student_of(), tmp_path / "data.npz", teacher=teacher, **SHORT)


@pytest.mark.backend_free
def test_batches_of_your_own():
    model = student_of("dense")
    batches = kv.data.pipelines((IMAGES, LABELS), model, 9, targets=TokenLabels(GRIDS, model))
    history = kv.fit(model, batches.train, mix_token=True, **SHORT).history
    assert np.isfinite(history["loss"]).all()
    assert isinstance(model.loss, SmoothedCrossentropy)
    with pytest.raises(ValueError, match="`token_labels` must be None"):
        kv.fit(model, batches.train, token_labels=GRIDS, **SHORT)
