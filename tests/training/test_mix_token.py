"""MixToken, against the exchange written out in NumPy."""

import keras
import numpy as np
import pytest
from harness import array, close, numbers
from keras.layers import Dense
from training.fitting import same_weights

import keras_vitx as kv
from keras_vitx import layers
from keras_vitx.models import Chain
from keras_vitx.training import MixToken, SmoothedCrossentropy

CLASSES, SMOOTHING = 4, 0.1
HALVES = kv.Preprocessing((0.5,) * 3, (0.5,) * 3)
BOX = np.array([[False, True, False], [False, True, False]])
EYE = np.eye(CLASSES)
HEADS = {
    "dense": lambda: [layers.DenseHead(CLASSES, "softmax", name="head")],
    "token": lambda: [layers.DistilledHead(CLASSES, "softmax", name="head")],
    "one": lambda: [
        layers.TokenPooling("avg", name="pool"),
        Dense(CLASSES, "softmax", name="head"),
    ],
}
WEIGHTS = {
    "dense": {"head": 1.0, "aux_head": 0.5},
    "token": {"head": 0.5, "head_dist": 0.5},
    "one": {"head": 1.0},
}


def toy(head="dense"):
    """A chain whose patches meet in their mean only."""
    keras.utils.set_random_seed(0)
    tokens = layers.ClassToken(2 if head == "token" else 1, name="tokens")
    mean = layers.ContextBroadcasting(name="mean")
    chain = [layers.PatchEmbedding(6, 4, name="stem"), tokens, mean, *HEADS[head]()]
    return Chain(chain, (8, 12, 3), preprocessing=HALVES)


def batch_of(count, soft=False):
    integers = np.random.default_rng(count).integers(0, CLASSES, count)
    return numbers((count, 8, 12, 3)), EYE[integers].astype("float32") if soft else integers


def in_box(box, count):
    return np.tile(box.reshape(-1), (count, 1))


def exchange(patches, box):
    """Patch by patch, as the paper has it."""
    out = patches.copy()
    for image in range(len(patches)):
        for patch in np.flatnonzero(box):
            out[image, patch] = patches[len(patches) - 1 - image, patch]
    return out


def outputs_of(model, images, box):
    """The outputs of all heads, with those of the patches exchanged back."""
    stem, *rest, head = model.layers
    x = exchange(array(stem(images)), box)
    for layer in rest:
        x = array(layer(x))
    if not hasattr(head, "names"):
        return {"head": array(head(x))}
    parts = {name: array(part) for name, part in head(x, by_head=True).items()}
    if "aux_head" in parts:
        parts["aux_head"] = exchange(parts["aux_head"], box)
    return parts


def entropy(targets, outputs):
    targets = (1 - SMOOTHING) * targets + SMOOTHING / CLASSES
    return -(targets * np.log(outputs)).sum(-1)


def mixed(labels, box):
    return (1 - box.mean()) * labels + box.mean() * labels[::-1]


@pytest.mark.parametrize(
    "head,count,labels",
    (
        ("dense", 5, "integers"),
        ("dense", 1, "soft"),
        ("dense", 4, "patches"),
        ("token", 5, "soft"),
        ("one", 4, "integers"),
        ("one", 1, "integers"),
    ),
)
def test_loss_and_gradients(head, count, labels):
    """The loss of a step, and the gradients of the classifiers' biases, in closed form."""
    model = toy(head)
    images, given = batch_of(count, labels == "soft")
    of_images = given if labels == "soft" else EYE[given]
    own = np.repeat(of_images[:, None], 6, 1)
    y = {"head": given, "mix_token": in_box(BOX, count)}
    if labels == "patches":
        own = np.random.default_rng(7).dirichlet(np.ones(CLASSES), (count, 6)).astype("float32")
        y["aux_head"] = own

    expected, slopes = 0.0, {}
    for name, output in outputs_of(model, images, BOX).items():
        target, weight = own if name == "aux_head" else mixed(of_images, BOX), WEIGHTS[head][name]
        expected += weight * entropy(target, output).mean()
        smooth = (1 - SMOOTHING) * target + SMOOTHING / CLASSES
        slopes[name] = weight * (output - smooth).reshape(-1, CLASSES).mean(0)

    layer = model.get_layer("head")
    model.compile(keras.optimizers.SGD(1.0), SmoothedCrossentropy(SMOOTHING))
    close(model.train_on_batch(images, y, return_dict=True)["loss"], expected)
    for name, slope in slopes.items():
        dense = layer if head == "one" else getattr(layer, name)
        close(-array(dense.bias.value), slope, 1e-4)


@pytest.mark.parametrize("head", (pytest.param("dense", marks=pytest.mark.backend_free), "one"))
def test_sample_weights_and_accuracy(head):
    """The image in the larger part counts as the right one."""
    model, (images, given) = toy(head), batch_of(5)
    weights = np.array([1.0, 0.5, 2.0, 0.0, 1.5], "float32")
    optimizer, loss = keras.optimizers.SGD(0.0), SmoothedCrossentropy(SMOOTHING)
    for box in (BOX, ~BOX):
        outputs = outputs_of(model, images, box)
        expected = (weights * entropy(mixed(EYE[given], box), outputs["head"])).mean()
        if head == "dense":
            own = entropy(EYE[given][:, None], outputs["aux_head"]).mean(-1)
            expected += 0.5 * (weights * own).mean()
        model.compile(optimizer, loss, metrics=["accuracy"])
        y = {"head": given, "mix_token": in_box(box, 5)}
        logs = model.train_on_batch(images, y, weights, return_dict=True)
        close(logs["loss"], expected)
        seen = given if box.mean() <= 0.5 else given[::-1]
        assert logs["accuracy"] == pytest.approx((outputs["head"].argmax(-1) == seen).mean())
        # Nothing is exchanged in evaluation.
        prediction = array(model(images))
        logs = model.test_on_batch(images, y, return_dict=True)
        close(logs["loss"], entropy(EYE[given], prediction).mean())
        assert logs["accuracy"] == pytest.approx((prediction.argmax(-1) == given).mean())


def test_fit_learns_and_leaves_no_trace():
    """Images told apart by their brightness, in batches of odd size."""
    model, labels = toy(), np.arange(15) % CLASSES
    images = numbers((15, 8, 12, 3), scale=0.1) + (labels - 1.5)[:, None, None, None]
    config, paths = model.get_config(), [variable.path for variable in model.variables]
    model.compile(keras.optimizers.Adam(0.2), SmoothedCrossentropy(), metrics=["accuracy"])
    batches = [(images[start : start + 5], labels[start : start + 5]) for start in (0, 5, 10)]
    model.fit(MixToken(batches, model), validation_data=(images, labels), epochs=20, verbose=0)
    assert model.evaluate(images, labels, verbose=0)[1] == 1
    assert model.get_config() == config
    assert [variable.path for variable in model.variables] == paths
    # Outside of a step, training mode exchanges nothing either.
    parts = model(images, training=True, by_head=True)
    for name, expected in outputs_of(model, images, np.zeros(6, bool)).items():
        close(array(parts[name]), expected)


def killed(batch, logs):
    if batch == 1:
        raise RuntimeError("killed")


@pytest.mark.backend_free
def test_a_run_with_a_teacher_that_was_killed_continues(tmp_path):
    """A teacher's targets and the boxes depend on the batch alone."""
    source = numbers((36, 8, 12, 3)).clip(0, 1), np.arange(36) % CLASSES
    teacher = keras.Sequential([keras.Input((8, 12, 3)), keras.layers.Flatten(), Dense(CLASSES)])
    teacher.preprocessing = HALVES
    options = {"epochs": 2, "batch_size": 9, "warmup_epochs": 0, "verbose": 0, "save_every": 1}
    options |= {"teacher": teacher, "mix_token": True, "result": "last"}
    whole, parts = toy("one"), toy("one")
    kv.fit(whole, source, output=tmp_path / "whole", **options)
    stop = keras.callbacks.LambdaCallback(on_train_batch_end=killed)
    with pytest.raises(RuntimeError, match="killed"):
        kv.fit(parts, source, callbacks=[stop], output=tmp_path / "parts", **options)
    parts = toy("one")
    kv.fit(parts, source, resume=True, output=tmp_path / "parts", **options)
    same_weights(parts, whole)


@pytest.mark.backend_free
def test_boxes_depend_on_seed_epoch_and_index():
    images, labels = batch_of(50)
    given = [(images[start : start + 5], labels[start : start + 5]) for start in range(0, 50, 5)]
    model, boxes = Chain([layers.PatchEmbedding(6, 4)], (40, 56, 3)), {}
    for seed, epoch in np.ndindex(2, 2):
        batches = MixToken(given, model, seed=seed)
        batches.set_epoch(epoch)
        for index in range(len(batches)):
            found, named = batches[index]
            np.testing.assert_array_equal(found, given[index][0])
            np.testing.assert_array_equal(named["head"], given[index][1])
            box = named["mix_token"]
            assert box.shape == (5, 140) and box.dtype == bool and (box == box[:1]).all()
            again = batches.transform(*given[index], index)[1]["mix_token"]
            np.testing.assert_array_equal(again, box)
            boxes.setdefault((seed, epoch), []).append(box[0].reshape(10, 14))
    assert len({np.stack(each).tobytes() for each in boxes.values()}) == 4
    every = np.concatenate(list(boxes.values()))
    # A box is the product of a range of rows and a range of columns.
    assert (every == every.any(2)[:, :, None] & every.any(1)[:, None]).all()
    areas = every.mean((1, 2))
    assert min(areas) < 0.1 and max(areas) > 0.6 and 0.25 < areas.mean() < 0.5
