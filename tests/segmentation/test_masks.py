"""Sources of masks, crops, inference by windows, measures, pictures, training that resumes."""

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, numbers, randomize, save_picture
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import keras_vitx as kv
from keras_vitx import segmentation as seg
from keras_vitx.preprocessing import IMAGENET_INCEPTION, ModelInput
from keras_vitx.segmentation.evaluate import resize_logits
from keras_vitx.segmentation.masks import resize_mask
from keras_vitx.segmentation.metrics import MeanIoU, confusion, metrics_of

SPEC = ModelInput((None, 16, 24, 3), IMAGENET_INCEPTION)


def scene(seed, size=(20, 30)):
    """An image whose red channel tells the class: 10 times the label, 250 where ignored."""
    random = np.random.default_rng(seed)
    mask = resize_mask(random.integers(0, 4, (4, 6)), size)
    mask[:3] = 255
    image = np.full((*size, 3), 128, "uint8")
    image[..., 0] = np.where(mask == 255, 250, 10 * mask)
    return image, mask.astype("uint8")


def small(classes=4, **changes):
    keras.utils.set_random_seed(0)
    changes = {"input_shape": (16, 24, 3), "drop_path": 0.0, **changes}
    return seg.LinearHead(kv.features(FAMILIES["ViT"](**changes)), classes)


def write(directory, pairs, images="images", masks="masks", sub="", shift=0):
    for i, (image, mask) in enumerate(pairs):
        save_picture(directory / images / sub / f"{i}.png", image)
        labels = np.where(mask == 255, 0 if shift else 255, mask + shift).astype("uint8")
        picture = Image.fromarray(labels, mode="P")
        picture.putpalette(seg.palette(256).tobytes())
        (directory / masks / sub).mkdir(parents=True, exist_ok=True)
        picture.save(directory / masks / sub / f"{i}.png")


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.backend_free
def test_layouts(tmp_path):
    pairs = [scene(0), scene(1)]
    write(tmp_path / "plain", pairs, sub="train")
    write(tmp_path / "plain", pairs[:1], sub="val")
    (tmp_path / "plain" / "class_names.txt").write_text("a\nb\nc\nd\n")
    write(tmp_path / "voc", pairs, "JPEGImages", "SegmentationClass")
    for sub in ("training", "validation"):
        write(tmp_path / "ade", pairs, "images", "annotations", sub, shift=1)
    header, rows = "Idx\tRatio\tTrain\tVal\tStuff\tName\n", "1\t.1\t1\t1\t1\twall, house\n"
    (tmp_path / "ade" / "objectInfo150.txt").write_text(header + rows)
    arrays = tuple(map(np.stack, zip(*pairs, strict=True)))
    plain, voc, ade, given = (
        seg.load_dataset(s) for s in (*(tmp_path / n for n in ("plain", "voc", "ade")), arrays)
    )
    assert plain.class_names == tuple("abcd") and ade.class_names == ("wall",)
    assert (plain.validation.size, voc.validation, ade.validation.size) == (1, None, 2)
    for source in (plain, voc, ade, given):
        for i, (image, mask) in enumerate(pairs):
            found = source.train.pair(i, 4)
            np.testing.assert_array_equal(found[0], image)
            np.testing.assert_array_equal(found[1], mask)


@pytest.mark.backend_free
def test_tensorflow_datasets(tmp_path):
    """Oxford-IIIT Pet's features, from files that were prepared before."""
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record")
    from data.test_tfds import built

    features = {
        "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
        "segmentation_mask": tfds.features.Image(shape=(None, None, 1), dtype=np.uint8),
    }
    image, mask = scene(0)
    labels = mask % 252
    example = {"image": image, "segmentation_mask": np.uint8(labels)[..., None]}
    built(tmp_path, features, train=[example], test=[example])
    source = seg.load_dataset("tfds:shapes", first_label=1, data_dir=tmp_path)
    found, labeled = source.validation.pair(0, 3)
    np.testing.assert_array_equal(found, image)
    np.testing.assert_array_equal(labeled, np.where(labels == 0, 255, labels.astype(int) - 1))


@pytest.mark.backend_free
def test_crops_keep_the_labels_of_their_pixels():
    arrays = tuple(map(np.stack, zip(*map(scene, range(6)), strict=True)))
    part = seg.load_dataset(arrays).train
    batches, again, exact = (
        seg.TrainingCrops(part, SPEC, 4, 3, scales=scales, seed=1)
        for scales in ((1.0, 1.0), (1.0, 1.0), (0.3, 3.0))
    )
    assert len(batches) == 2
    for index in range(2):
        x, y = batches[index]
        assert x.shape == (3, 16, 24, 3) and y.shape == (3, 16, 24) and y.dtype == "int32"
        assert set(np.unique(exact[index][1])) <= {0, 1, 2, 3, 255}
        red = np.rint((x[..., 0] * 0.5 + 0.5) * 255)
        expected = np.where(y == 255, 250, 10 * y)
        # Resized bilinearly, pixels at the borders of classes have mixed colors.
        assert (np.abs(red - expected) < 3).mean() > 0.75
    np.testing.assert_array_equal(again[1][0], batches[1][0])
    again.set_epoch(1)
    assert (again[1][0] != batches[1][0]).any()
    x, y = seg.TrainingCrops(part, SPEC, 4, 2, scales=(0.5, 0.5))[0]
    assert (y[:, 8:] == 255).all() and not x[:, 8:].any()


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
    weights = random.integers(0, 3, (2, 8, 9))
    metric.update_state(masks[0], logits[0], weights)
    each = (np.where(weights > i, masks[0], 255) for i in range(2))
    expected = sum(confusion(mask, logits[0].argmax(-1), classes) for mask in each)
    np.testing.assert_array_equal(array(metric.total_cm.value), expected)


@pytest.mark.backend_free
def test_evaluation_at_the_size_of_the_masks():
    model = small()
    pairs = [scene(0, (20, 30)), scene(1, (40, 20))]
    source = seg.MaskDataset("mine", seg.MaskedImages(["a", "b"], pairs.__getitem__))
    seen = []

    def perturb(x, labels, index):
        seen.append((x.shape, labels, index))
        return x

    found = seg.evaluate(model, source, perturb=perturb)
    assert seen == [((1, 16, 24, 3), None, 0), ((1, 16, 24, 3), None, 1)]
    counts = sum(confusion(mask, seg.predict(model, image).argmax(-1), 4) for image, mask in pairs)
    assert found["mean_iou"] == metrics_of(counts)["mean_iou"] and found["images"] == 2
    assert seg.evaluate(model, source, mode="slide")["images"] == 2


@pytest.mark.backend_free
def test_training_resumes(tmp_path):
    """By `kv.fit`: two epochs equal one epoch, continued in a new model."""
    images, masks = map(np.stack, zip(*(scene(i) for i in range(6)), strict=True))
    dataset = seg.load_dataset(((images, masks), (images[:2], masks[:2])))

    def fit(output, **options):
        model = small()
        batches = seg.pipelines(dataset, model, batch_size=2, seed=3)
        seg.compile(model, 2 * len(batches.train), learning_rate=1e-2, weight_decay=0.0)
        settings = dict(epochs=2, warmup_epochs=0, output=tmp_path / output, verbose=0)
        return model, kv.fit(model, batches, **settings, **options)

    def stop(epoch, logs):
        if epoch:
            raise KeyboardInterrupt

    whole, expected = fit("whole")
    with pytest.raises(KeyboardInterrupt):
        fit("run", callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=stop)])
    resumed, found = fit("run", resume=True)
    assert found.history == expected.history and len(found.history["val_mean_iou"]) == 2
    assert all(map(np.array_equal, resumed.get_weights(), whole.get_weights()))
    saved = keras.saving.load_model(tmp_path / "run" / "best.keras")
    np.testing.assert_array_equal(seg.predict(saved, images[0]), seg.predict(whole, images[0]))


def test_schedule():
    rate = seg.WarmupPolynomial(2.0, 100, 10, power=0.9)
    for step, expected in ((0, 0.2), (9, 2 * 0.91**0.9), (50, 2 * 0.5**0.9), (100, 0), (120, 0)):
        assert abs(float(array(rate(step))) - expected) < 1e-5
    again = seg.WarmupPolynomial.from_config(rate.get_config())
    assert float(array(again(30))) == float(array(rate(30)))


@pytest.mark.backend_free
def test_pictures():
    assert seg.palette(5).tolist()[:4] == [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0]]
    image, mask = np.full((2, 2, 1), 100, "uint8"), np.array([[0, 1], [255, 2]])
    drawn = seg.overlay(image, mask, opacity=0.5)
    assert drawn[0, 0].tolist() == drawn[1, 0].tolist() == [100, 100, 100]
    assert drawn[0, 1].tolist() == [114, 50, 50]
