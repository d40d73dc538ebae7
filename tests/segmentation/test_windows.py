"""Inference by windows, metrics, training that resumes."""

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, numbers, randomize, save_picture
from hypothesis import given
from hypothesis import strategies as st

import keras_vitx as kv
from keras_vitx import segmentation as seg
from keras_vitx.segmentation.evaluate import resize_logits
from keras_vitx.segmentation.metrics import MeanIoU, confusion, metrics_of


def scene(seed, size=(20, 30)):
    """An image and a mask of four classes."""
    random = np.random.default_rng(seed)
    mask = random.integers(0, 4, size)
    mask[:3] = 255
    return random.integers(0, 256, (*size, 3), "uint8"), mask.astype("uint8")


def small(classes=4, **changes):
    keras.utils.set_random_seed(0)
    changes = {"input_shape": (16, 24, 3), "drop_path": 0.0, **changes}
    return seg.LinearHead(kv.features(FAMILIES["ViT"](**changes)), classes)


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.backend_free
def test_windows_that_slide():
    model = small()
    randomize(model)
    image = np.random.default_rng(0).integers(0, 256, (16, 40, 3), "uint8")
    found = seg.predict(model, image, "slide", stride=(8, 12), batch_size=3)
    pixels = ((image / 255 - model.preprocessing.mean) / model.preprocessing.std).astype("float32")
    total, counts = np.zeros((16, 40, 4)), np.zeros((16, 40, 1))
    for column in (0, 12, 16):
        total[:, column : column + 24] += array(model(pixels[None, :, column : column + 24]))[0]
        counts[:, column : column + 24] += 1
    np.testing.assert_allclose(found, total / counts, atol=1e-4)
    # A higher image is resized to the width of the window.
    high = np.random.default_rng(0).integers(0, 256, (64, 48, 3), "uint8")
    assert seg.predict(model, high, "slide").shape == (64, 48, 4)


@pytest.mark.backend_free
@given(*[st.integers(1, 20)] * 4)
def test_logits_are_resized_as_by_pytorch(height, width, rows, columns):
    torch = pytest.importorskip("torch")
    logits = numbers((height, width, 3))
    found, maps = resize_logits(logits, (rows, columns)), torch.tensor(logits).permute(2, 0, 1)
    expected = torch.nn.functional.interpolate(maps[None], (rows, columns), mode="bilinear")
    np.testing.assert_allclose(found, expected[0].permute(1, 2, 0), atol=2e-5)


@pytest.mark.backend_free
def test_mean_intersection_over_union():
    mask = np.array([[0, 0, 1], [1, 255, 2]])
    found = metrics_of(confusion(mask, np.array([[0, 1, 1], [1, 3, 0]]), 4))
    # Class 3 is in no mask, and only predicted where the mask is ignored.
    np.testing.assert_allclose(found["iou"], [1 / 3, 2 / 3, 0, np.nan])
    assert found["mean_iou"] == pytest.approx(1 / 3)
    assert (found["accuracy"], found["mean_accuracy"]) == (3 / 5, 0.5)


@pytest.mark.parametrize("classes", (4, 300))
def test_the_metric_of_training(classes):
    """As the counts of `evaluate` and as Keras's, over batches; saved, and weighted."""
    random = np.random.default_rng(0)
    masks = random.integers(0, 3, (2, 2, 8, 9), "int32")  # Not all classes occur.
    masks[:, :, :2] = 255
    logits = random.normal(size=(2, 2, 8, 9, classes)).astype("float32")
    logits[..., :4] += 3
    options = {"ignore_class": 255, "sparse_y_pred": False}
    metric = MeanIoU.from_config(MeanIoU(classes, name="mine", **options).get_config())
    plain = keras.metrics.MeanIoU(classes, **options)
    for pair in zip(masks, logits, strict=True):
        metric.update_state(*pair)
        plain.update_state(*pair)
    counts = confusion(masks, logits.argmax(-1), classes)
    np.testing.assert_array_equal(array(metric.total_cm.value), counts)
    expected = metrics_of(counts)["mean_iou"]
    np.testing.assert_allclose([float(metric.result()), float(plain.result())], expected, rtol=1e-5)
    metric.reset_state()
    assert float(metric.result()) == 0


@pytest.mark.parametrize("weights", (None, 2, (2, 3, 5)), ids=str)
@pytest.mark.parametrize(
    "options",
    (
        {},
        {"ignore_class": 0},
        {"sparse_y_true": False},
        {"sparse_y_pred": False, "ignore_class": 255},
        {"sparse_y_true": False, "sparse_y_pred": False, "axis": 1},
    ),
    ids=str,
)
def test_the_metric_takes_the_arguments_of_keras(options, weights):
    random, axis = np.random.default_rng(0), options.get("axis", -1)
    weights = random.integers(0, 3, weights) if isinstance(weights, tuple) else weights
    pair = [
        random.integers(0, 4, (2, 3, 5), "uint8")
        if options.get(name, True)
        else np.moveaxis(random.normal(size=(2, 3, 5, 4)).astype("float32"), -1, axis)
        for name in ("sparse_y_true", "sparse_y_pred")
    ]
    if options.get("sparse_y_true", True):
        pair[0][:, 1:] = 255  # Beyond the classes: not counted.
    ours, plain = (metric(4, **options) for metric in (MeanIoU, keras.metrics.MeanIoU))
    for metric in (ours, plain):
        metric.update_state(*pair, weights)
    np.testing.assert_array_equal(array(ours.total_cm.value), array(plain.total_cm.value))
    if axis == -1:  # Keras's result of another axis is an error.
        assert float(ours.result()) == pytest.approx(float(plain.result()))


@pytest.mark.backend_free
def test_evaluation_at_the_size_of_the_masks(tmp_path):
    model = small()
    pairs = [scene(0, (20, 30)), scene(1, (40, 20)), scene(2, (16, 24))]
    seen = []

    def perturb(x, labels, index):
        seen.append((x.shape, labels, index))
        return x

    found = seg.evaluate(model, pairs, batch_size=2, perturb=perturb)
    assert seen == [((1, 16, 24, 3), None, i) for i in range(3)]
    counts = sum(confusion(mask, seg.predict(model, image).argmax(-1), 4) for image, mask in pairs)
    assert found["mean_iou"] == metrics_of(counts)["mean_iou"] and found["images"] == 3
    files = [save_picture(tmp_path / f"{i}.png", image) for i, (image, _) in enumerate(pairs)]
    again = seg.evaluate(model, zip(files, (mask for _, mask in pairs), strict=True))
    np.testing.assert_equal(again, found)
    assert seg.evaluate(model, iter(pairs), mode="slide")["images"] == 3


@pytest.mark.backend_free
def test_robustness():
    options = {"runs": 2, "evaluate": seg.evaluate, "measure": "mean_iou"}
    (row,) = kv.robustness.curve(small(), [scene(0), scene(1)], "noise", [5], **options)
    assert 0 <= row["mean_iou"] <= 1 and row["images"] == 2 and row["interval"] >= 0


class Batches(keras.utils.PyDataset):
    """Batches of two of the images, in a new order in each epoch."""

    epoch = 0

    def __len__(self):
        return 3

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        order = np.random.default_rng(self.epoch).permutation(6)[2 * index :][:2]
        images, masks = zip(*(scene(i, (16, 24)) for i in order), strict=True)
        return np.stack(images).astype("float32") / 255, np.stack(masks)


@pytest.mark.backend_free
def test_training_resumes(tmp_path):
    """By `kv.fit`: two epochs equal one epoch, continued in a new model."""

    def fit(output, **options):
        model, rate = small(), keras.optimizers.schedules.PolynomialDecay(1e-2, 6, 0.0)
        metric = MeanIoU(4, ignore_class=255, sparse_y_pred=False, name="mean_iou")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255)
        model.compile(kv.training.AdamW(rate, 0.01), loss, metrics=[metric])
        settings = dict(epochs=2, warmup_epochs=0, output=tmp_path / output, verbose=0)
        data = kv.data.Pipelines(Batches(), Batches())
        return model, kv.fit(model, data, **settings, **options)

    def stop(epoch, logs):
        if epoch:
            raise KeyboardInterrupt

    whole, expected = fit("whole")
    with pytest.raises(KeyboardInterrupt):
        fit("run", callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=stop)])
    resumed, found = fit("run", resume=True)
    assert found.history == expected.history and len(found.history["val_mean_iou"]) == 2
    assert all(map(np.array_equal, resumed.get_weights(), whole.get_weights()))
    saved, (image, _) = keras.saving.load_model(tmp_path / "run" / "best.keras"), scene(0)
    np.testing.assert_array_equal(seg.predict(saved, image), seg.predict(whole, image))
