import logging

import keras
import numpy as np
import pytest

from keras_vitx.data import Augmentation, Mixing, load_dataset, pipelines
from keras_vitx.data.batches import TrainingBatches
from keras_vitx.data.sources.dataset import Split, fraction_of
from keras_vitx.preprocessing import ModelInput

backend_free = pytest.mark.backend_free
STRONG = Augmentation(rand_augment="m9-mstd0.5-inc1", erasing=0.25)


@pytest.fixture
def split(picture):
    return Split(np.stack([picture(20, 24, seed=i) for i in range(24)]), np.arange(24) % 4)


@pytest.fixture
def spec(make_model):
    return ModelInput.of(make_model((16, 16), classes=4))


def made(batches, epoch, index):
    return batches.finish(batches.make(epoch, index))


@backend_free
def test_images_are_repeated_in_a_batch_and_augmented_anew(split, spec):
    batches = TrainingBatches(split, spec, 6, Augmentation(repeats=3))
    assert len(batches) == 4  # as many images per epoch as without repeats
    seen = []
    for index in range(4):
        images, labels = made(batches, 0, index)
        ids = batches.ids(0, index)
        assert ids == [ids[0]] * 3 + [ids[3]] * 3
        assert labels.tolist() == [i % 4 for i in ids]
        assert (images[0] != images[1]).any() and (images[1] != images[2]).any()
        seen += ids
    assert len(set(seen)) == 8
    assert set(seen) != {i for index in range(4) for i in batches.ids(1, index)}


@backend_free
def test_erased_boxes_and_all_channels(picture, make_model):
    for channels in (1, 3):
        spec = ModelInput.of(make_model((16, 16), channels=channels, classes=4))
        grey = Split(np.full((40, 16, 16, channels), 128, "uint8"), np.arange(40) % 4)
        plain = Augmentation(crop=None, flip=0.0, erasing=0.5)
        images, _ = made(TrainingBatches(grey, spec, 40, plain), 0, 0)
        level = (128 / 255 - 0.5) / 0.25
        erased = (np.abs(images - level) > 1e-3).any(axis=(1, 2, 3))
        assert 10 < erased.sum() < 30
        assert np.abs(images[erased]).max() > 1.5


@backend_free
def test_ids_are_paths_or_indices_in_the_source(pets, make_model, picture):
    result = pipelines(pets, make_model((16, 16), classes=2), 4, validation_split=0.2, fraction=0.5)
    opened = load_dataset(pets, validation_split=0.2)
    for path in result.train.ids(0, 0):
        assert path in opened.train.images.paths and path.suffix in (".jpg", ".png", ".PNG")
    images = np.stack([np.full((16, 16, 3), i, "uint8") for i in range(40)])
    train = pipelines(
        (images, np.arange(40) % 2),
        make_model((16, 16), classes=2, mean=[0] * 3, std=[1] * 3),
        5,
        augmentation=None,
        fraction=0.5,
    ).train
    for index in range(len(train)):
        batch, _ = made(train, 0, index)
        assert train.ids(0, index) == np.rint(batch[:, 0, 0, 0] * 255).astype(int).tolist()


@backend_free
def test_a_fraction_of_each_class():
    labels = np.repeat([0, 1, 2], [60, 30, 1])
    split = Split(np.arange(91).reshape(-1, 1, 1, 1).astype("uint8"), labels)
    tenth, half = fraction_of(split, 0.1, 0), fraction_of(split, 0.5, 0)
    assert np.bincount(tenth.labels).tolist() == [6, 3, 1]
    assert np.bincount(half.labels).tolist() == [30, 15, 1]
    assert set(tenth.ids) < set(half.ids) and (np.diff(tenth.ids) > 0).all()
    assert set(fraction_of(split, 0.5, 1).ids) != set(half.ids)
    assert fraction_of(split, 1.0, 0) is split


@backend_free
def test_targets_follow_the_window_and_are_mixed(split, spec):
    seen = []

    def targets(index, window):
        seen.append((index, window))
        return np.float32([window.top, window.left, window.flip])

    batches = TrainingBatches(split, spec, 8, Augmentation(), targets=targets)
    _, labels = made(batches, 0, 1)
    assert [index for index, _ in seen] == batches.ids(0, 1)
    np.testing.assert_array_equal(labels["head"], split.labels[batches.make.positions(0, 1)])
    expected = [[w.top, w.left, w.flip] for _, w in seen]
    np.testing.assert_allclose(labels["aux_head"], expected, rtol=1e-6)

    mixing = Mixing(cutmix=0)
    mixed = TrainingBatches(split, spec, 8, Augmentation(), mixing, classes=4, targets=targets)
    _, found = made(mixed, 0, 1)
    assert found["head"].shape == (8, 4)
    share = found["aux_head"][0, 0] / np.float32(expected)[:, 0]
    random = np.random.default_rng((0, 0, 2))
    random.integers(2**63, size=8)
    share, _ = mixing.draw((16, 16), random)
    wanted = share * np.float32(expected) + (1 - share) * np.float32(expected)[::-1]
    np.testing.assert_allclose(found["aux_head"], wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"`cutmix` must be 0.*1\.0"):
        TrainingBatches(split, spec, 8, mixing=Mixing(), classes=4, targets=targets)


@backend_free
@pytest.mark.parametrize("augmentation", ["crop_flip", "random_resized_crop"])
def test_an_image_that_goes_bad_after_opening_is_replaced(pets, make_model, caplog, augmentation):
    model = make_model((16, 16), classes=2)
    source = load_dataset(pets, validation_split=0.2)
    for path in (bad := [pets / "cat" / "3.jpg", pets / "dog" / "deep" / "upper.PNG"]):
        path.write_bytes(path.read_bytes()[:60])
    bad = [path for path in bad if path in source.train.images.paths]
    assert bad
    train = pipelines(source, model, 4, augmentation=augmentation).train
    with caplog.at_level(logging.WARNING, "keras_vitx"):
        batches = [made(train, epoch, index) for epoch in range(2) for index in range(len(train))]
    assert set(train.unreadable) == set(bad)
    assert caplog.text.count("An image is skipped") == len(bad)
    assert all(str(path) in caplog.text for path in bad)
    for images, labels in batches:
        assert np.isfinite(images).all() and len(labels) == 4
    again = pipelines(source, model, 4, augmentation=augmentation).train
    for found, wanted in zip(made(again, 0, 0), batches[0], strict=True):
        np.testing.assert_array_equal(found, wanted)
    strict = pipelines(source, model, 4, augmentation=augmentation, strict=True).train
    with pytest.raises(OSError, match="can't be decoded"):
        for index in range(len(strict)):
            made(strict, 0, index)


@backend_free
def test_a_batch_without_any_readable_image_is_an_error(pets, make_model):
    source = load_dataset(pets, validation_split=0)
    for path in source.train.images.paths:
        path.write_bytes(b"")
    train = pipelines(source, make_model((16, 16), classes=2), 4).train
    with pytest.raises(OSError, match=r"no image of a batch can be decoded: .*jpg"):
        made(train, 0, 0)


@backend_free
def test_mixed_labels_are_soft_in_all_parts(split, make_model):
    validation = split.take(np.arange(9))
    source = ((split.images, split.labels), (validation.images, validation.labels))
    result = pipelines(source, make_model((16, 16), classes=5), 8, mixing={"mixup": 0.2})
    (_, labels), (_, plain) = result.train[0], result.validation[0]
    assert labels.shape == plain.shape == (8, 5) and labels.dtype == plain.dtype == np.float32
    np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(plain, np.eye(5)[validation.labels[:8]])
    padded = pipelines(source, make_model((16, 16), classes=4), 8, mixing=Mixing(), pad=True)
    assert [len(y) for _, y, _ in padded.validation] == [8, 8]
    binary = (split.images, split.labels // 2)
    _, labels = pipelines(binary, make_model((16, 16), classes=1), 8, mixing=Mixing()).train[0]
    assert labels.shape == (8,) and set(labels) - {0, 1}


@backend_free
def test_what_can_not_be_mixed_is_named_before_the_first_batch(split, spec, make_model):
    with pytest.raises(ValueError, match="the number of classes of these integer labels"):
        TrainingBatches(split, spec, 8, mixing=Mixing())
    targets = np.linspace(-1, 1, 24)
    with pytest.raises(ValueError, match="For regression, use no mixing"):
        pipelines((split.images, targets), make_model((16, 16), classes=1), mixing=Mixing())
    with pytest.raises(ValueError, match="`fraction` "):
        pipelines((split.images, split.labels), make_model((16, 16)), fraction=0)
    alpha = make_model((16, 16), channels=4)
    images = np.zeros((8, 16, 16, 4), "uint8")
    with pytest.raises(ValueError, match=r"`rand_augment` .* Received: 4 channels"):
        pipelines((images, np.arange(8) % 2), alpha, augmentation="rand_augment")


@backend_free
def test_an_image_that_vanishes_is_left_out_of_evaluation(pets, make_model, caplog):
    source = load_dataset(pets, validation_split=0.5)
    model = make_model((16, 16), classes=2)
    gone = source.validation.images.paths[3]
    gone.unlink()
    with caplog.at_level(logging.WARNING, "keras_vitx"):
        batches = list(pipelines(source, model, 8).validation)
    assert [len(images) for images, _ in batches] == [7, 2]
    assert "An image is skipped (1 so far)" in caplog.text and str(gone) in caplog.text
    padded = list(pipelines(source, model, 8, pad=True).validation)
    assert [images.shape[0] for images, _, _ in padded] == [8, 8]
    assert sum(weights.sum() for _, _, weights in padded) == 9
    with pytest.raises(OSError, match=str(gone)):
        list(pipelines(source, model, 8, strict=True).validation)


@backend_free
@pytest.mark.parametrize("sampling", ["balanced", {"0": 3, "1": 1}, "array"])
def test_weighted_sampling(make_model, sampling):
    labels = np.repeat([0, 1], [900, 100])
    images = np.zeros((1000, 16, 16, 3), "uint8")
    weights = np.where(labels, 9.0, 1.0) if sampling == "array" else sampling
    options = {"augmentation": None, "validation_split": 0, "sampling": weights}
    train = pipelines((images, labels), make_model((16, 16), classes=2), 100, **options).train
    drawn = np.concatenate([labels[train.ids(epoch, i)] for epoch in (0, 1) for i in range(10)])
    expected = 1 - 27 / 28 if isinstance(sampling, dict) else 0.5
    assert abs(drawn.mean() - expected) < 0.04
    assert train.ids(0, 0) == train.ids(0, 0) != train.ids(1, 0)


@backend_free
@pytest.mark.parametrize(
    "sampling, message",
    [("even", "'even'"), ({"cat": 1}, "no class 'cat'"), ([1, 2], "24 training images"),
     ([-1] * 24, "at least 0")],
)  # fmt: skip
def test_wrong_sampling_is_named(split, make_model, sampling, message):
    source = (split.images, split.labels)
    with pytest.raises(ValueError, match=f"`sampling` .*{message}"):
        pipelines(source, make_model((16, 16), classes=4), validation_split=0, sampling=sampling)


@backend_free
def test_processes_and_threads_make_the_same_batches(pets, make_model):
    options = {"augmentation": STRONG, "mixing": Mixing(group_size=2), "validation_split": 0.2}
    model = make_model((16, 16), classes=2)
    (pets / "cat" / "0.jpg").write_bytes(b"damaged")
    plain, processes = (pipelines(pets, model, 4, workers=w, **options).train for w in (0, 2))
    for epoch in (0, 1):
        for batches in (plain, processes):
            batches.set_epoch(epoch)
        for index in range(len(plain)):
            for found, wanted in zip(processes[index], plain[index], strict=True):
                assert type(found) is np.ndarray
                np.testing.assert_array_equal(found, wanted)
    assert processes.unreadable == plain.unreadable and len(plain.unreadable) == 1


def test_normalized_on_a_device_as_by_the_workers(split, spec):
    """The same on every backend, with boxes of noise."""
    batches = TrainingBatches(split, spec, 24, STRONG, Mixing(), classes=4)
    wanted, _ = made(batches, 0, 0)
    batches.make.on_device = True
    batch = batches.make(0, 0)
    assert batch.images.dtype == np.uint8 and batch.boxes[:, 2].any()
    found, _ = batches.finish(batch)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found), wanted, rtol=0, atol=1e-6)
