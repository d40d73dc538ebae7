"""Batches for training and evaluation: what is in them, and from what they follow."""

from itertools import islice

import keras
import numpy as np
import pytest
from harness import pictures, run_python, stand_in
from numpy.testing import assert_equal

import keras_vitx as kv
from keras_vitx import preprocess_input
from keras_vitx.data import Augmentation, Mixing, load_dataset, loading, pipelines
from keras_vitx.data.sources.dataset import ArrayImages, Split
from keras_vitx.data.sources.holding_out import fraction_of
from keras_vitx.pixels import unpack_images

backend_free = pytest.mark.backend_free
STRONG = Augmentation(rand_augment="m9-mstd0.5-inc1", erasing=0.25)
AUGMENTED = None, "random_resized_crop", STRONG, Augmentation(color_jitter=0.4, repeats=3)
GRAY = np.ones((103, 16, 16, 3), "uint8") * np.arange(103, dtype="uint8")[:, None, None, None]
GRAY = GRAY, np.arange(103) % 4
"""103 images whose gray level is their index."""


def train(source=None, batch_size=8, model=None, **options):
    """Training batches of pictures, or of another source."""
    options = {"validation_split": 0} | options
    return pipelines(source or pictures(24), model or stand_in(), batch_size, **options).train


def made(batches, epoch, index):
    return batches.dataset()[epoch * len(batches) + index]


def levels(images):
    return np.rint((images.max(axis=(1, 2, 3)) * 0.25 + 0.5) * 255).astype(int)


@backend_free
def test_shapes_types_and_sizes(caplog):
    images, labels = pictures(21)
    result = pipelines((GRAY, (images, labels)), stand_in(), 10)
    for part, sizes in ((result.train, [10] * 10), (result.validation, [10, 10, 1])):
        found = list(part)
        assert len(part) == len(sizes) and [len(y) for _, y in found] == sizes
        assert {x.shape[1:] for x, _ in found} == {(16, 16, 3)}
        assert {(x.dtype.name, y.dtype.name) for x, y in found} == {("float32", "int32")}

    result = pipelines((GRAY, (images[:5], labels[:5]), (images, labels)), stand_in(), 21)
    assert (len(result.train), len(result.validation.loader.split)) == (4, 5)
    assert_equal(result.test[0], (preprocess_input(images, stand_in()), labels))
    alone = pipelines(GRAY, stand_in(), validation_split=0)
    assert alone.validation is alone.test is None
    whole = pipelines(GRAY, stand_in(classes=9), 1000, validation_split=0).train
    assert "4 classes, the model 9 outputs" in caplog.text
    # Fewer images than a batch are one batch.
    assert [len(labels) for _, labels in whole] == [103]


@backend_free
@pytest.mark.parametrize(
    "memory, augmentation", [(0, STRONG), *((loading.IN_MEMORY_BYTES, each) for each in AUGMENTED)]
)
def test_a_batch_depends_on_seed_epoch_and_index_only(pets, monkeypatch, memory, augmentation):
    monkeypatch.setattr(loading, "IN_MEMORY_BYTES", memory)
    first, others, again = (
        train(pets, 4, seed=seed, augmentation=augmentation, mixing=Mixing()) for seed in (1, 2, 1)
    )
    expected = {}
    for epoch in (0, 1):
        first.epoch = epoch
        expected |= {(epoch, index): first[index] for index in range(5)}
    for other in (expected[1, 0], others[0]):
        assert (expected[0, 0][0] != other[0]).any()
    # The result depends neither on earlier requests nor on their order.
    for epoch, index in ((1, 4), (0, 3), (1, 0), (1, 1), (1, 2), (0, 3)):
        again.epoch = epoch
        assert_equal(again[index], expected[epoch, index])


@backend_free
def test_processes_and_threads_make_the_same_batches(pets):
    options = {"augmentation": STRONG, "mixing": Mixing(group_size=2)}
    (pets / "cat" / "0.jpg").write_bytes(b"damaged")
    source = load_dataset(pets, validation_split=0.2)
    plain, processes = (train(source, 4, workers=workers, **options) for workers in (0, 2))
    for step, batch in enumerate(islice(processes.stream(), 2 * len(plain))):
        assert {type(array) for array in batch} == {np.ndarray}
        assert_equal(batch, made(plain, *divmod(step, len(plain))))
    assert processes.loader.unreadable == plain.loader.unreadable
    assert len(plain.loader.unreadable) == 1
    for steps in (plain.dataset()[3:], plain.stream(3)):
        for step, batch in enumerate(islice(steps, 4), start=3):
            assert_equal(batch, made(plain, *divmod(step, len(plain))))


@backend_free
def test_processes_that_make_batches_do_without_keras_and_end_without_a_word(monkeypatch):
    found = run_python("""
import numpy as np
import keras_vitx as kv
model = kv.ViT(8, 1, 1, patch_size=8, input_shape=(8, 8, 3))
images = np.zeros((16, 8, 8, 3), "uint8")
batches = kv.data.pipelines((images, np.arange(16) % 2), model, 4, workers=1)
stream = batches.train.stream()
next(stream)
""")
    assert "Exception ignored" not in found.stderr
    monkeypatch.setenv("KERAS_VITX_WORKER", "1")
    run_python("import sys, keras_vitx.data.loading; assert 'keras' not in sys.modules")


def test_pixels_become_the_images_of_a_cpu():
    """The same on every backend, with boxes of noise."""
    options = {"augmentation": STRONG, "mixing": Mixing()}
    found, pixels = (train(batch_size=24, pixels=each, **options) for each in (False, True))
    (wanted, labels), (batch, again) = found[0], pixels[0]
    assert batch["pixels"].dtype == np.uint8 and batch["boxes"][:, 2].any()
    np.testing.assert_array_equal(labels, again)
    images = keras.ops.convert_to_numpy(
        unpack_images({name: keras.ops.convert_to_tensor(each) for name, each in batch.items()})
    )
    np.testing.assert_allclose(images, wanted, rtol=0, atol=1e-6)


SEEN = []
"""Gray levels of the training images."""


class See(keras.Layer):
    def call(self, x, training=False):
        if training and not isinstance(x, keras.KerasTensor):
            SEEN.extend(levels(keras.ops.convert_to_numpy(x)))
        return x


def test_keras_trains_on_the_batches_of_each_epoch():
    layers = [keras.Input((16, 16, 3)), See(), keras.layers.Flatten(), keras.layers.Dense(4)]
    model = keras.Sequential(layers)
    model.preprocessing = stand_in().preprocessing
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, run_eagerly=True)
    found = train(GRAY, 20, model, augmentation=None, seed=5)
    SEEN.clear()
    on_epoch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda n, logs: setattr(found, "epoch", n)
    )
    options = {"steps_per_epoch": 5, "shuffle": False, "verbose": 0}
    history = model.fit(found, epochs=3, callbacks=[on_epoch], **options)
    assert np.isfinite(history.history["loss"]).all()
    orders = [np.random.default_rng((5, epoch)).permutation(103)[:100] for epoch in range(3)]
    np.testing.assert_array_equal(SEEN, np.concatenate(orders))


@backend_free
def test_fit_takes_batches_of_grain():
    import grain

    model = kv.ViT(dim=8, depth=1, num_heads=2, patch_size=8, input_shape=(16, 16, 3), classes=4)
    endless = train(pictures(20), 8, model).dataset().to_iter_dataset()
    own = grain.MapDataset.source(list(islice(endless, 2)))
    for batches in (endless, own.repeat()):
        with pytest.raises(ValueError, match="`steps_per_epoch` must be set"):
            kv.fit(model, batches, epochs=1, warmup_epochs=0)
    history = kv.fit(model, endless, epochs=2, warmup_epochs=0, steps_per_epoch=2)
    assert np.isfinite(history.history["loss"]).all()


@backend_free
def test_evaluation_images_and_those_without_augmentation(pets):
    model = stand_in((24, 32), classes=2, crop_ratio=0.8)
    source = load_dataset(pets, validation_split=0.2)
    result = pipelines(source, model, 16, augmentation=None)
    for split, files in (
        (result.validation, source.validation.images.keys),
        (result.train, result.train.ids(0, 0)),
    ):
        images, labels = next(iter(split))
        np.testing.assert_allclose(images, preprocess_input(files, model), atol=1e-6)
        assert labels.tolist() == [f.relative_to(pets).parts[0] == "dog" for f in files]


@backend_free
def test_a_padded_batch_is_full_and_its_padding_weighs_nothing():
    images, labels = pictures(21)
    for given in (labels, np.eye(4)[labels]):
        padded, plain = (
            pipelines(((images, given),) * 2, stand_in(), 10).validation.replace(pad=pad)
            for pad in (True, False)
        )
        assert [len(array) for batch in padded for array in batch] == [10] * 9
        *values, weights = map(np.concatenate, zip(*padded, strict=True))
        assert weights.dtype == np.float32 and weights.tolist() == [1] * 21 + [0] * 9
        assert_equal([a[:21] for a in values], [*map(np.concatenate, zip(*plain, strict=True))])


@backend_free
def test_mixed_labels_are_soft_in_all_parts():
    images, labels = pictures(24)
    for given in (labels, np.eye(5)[labels]):
        source = ((images, given), (images[:9], given[:9]))
        result = pipelines(source, stand_in(classes=5), 8, mixing={"mixup": 0.2})
        (_, mixed), (_, plain) = result.train[0], result.validation[0]
        assert mixed.shape == plain.shape == (8, 5) and mixed.dtype == plain.dtype == np.float32
        np.testing.assert_allclose(mixed.sum(axis=1), 1, rtol=1e-6)
        np.testing.assert_array_equal(plain, np.eye(5)[labels[:8]])
    _, mixed = train((images, labels // 2), model=stand_in(classes=1), mixing=Mixing())[0]
    assert mixed.shape == (8,) and set(mixed) - {0, 1}


@backend_free
def test_images_are_repeated_in_a_batch_and_augmented_anew():
    found = train(batch_size=6, augmentation=Augmentation(repeats=3))
    assert len(found) == 4  # as many images per epoch as without repeats
    seen = [found.ids(0, index) for index in range(4)]
    for index, ids in enumerate(seen):
        images, labels = made(found, 0, index)
        assert ids == [ids[0]] * 3 + [ids[3]] * 3 and labels.tolist() == [i % 4 for i in ids]
        assert (images[0] != images[1]).any() and (images[1] != images[2]).any()
    assert len({i for ids in seen for i in ids}) == 8
    assert seen != [found.ids(1, index) for index in range(4)]


@backend_free
def test_a_fraction_of_each_class():
    labels = np.repeat([0, 1, 2], [60, 30, 1])
    split = Split(ArrayImages(np.arange(91).reshape(-1, 1, 1, 1).astype("uint8")), labels)
    tenth, half = fraction_of(split, 0.1, 0), fraction_of(split, 0.5, 0)
    assert np.bincount(tenth.labels).tolist() == [6, 3, 1]
    assert np.bincount(half.labels).tolist() == [30, 15, 1]
    ids = tenth.images.keys
    assert set(ids) < set(half.images.keys) and (np.diff(ids) > 0).all()
    assert set(fraction_of(split, 0.5, 1).images.keys) != set(half.images.keys)
    assert fraction_of(split, 1.0, 0) is split


@backend_free
def test_an_image_that_goes_bad_is_replaced_in_training(pets, caplog):
    source = load_dataset(pets)
    bad = [pets / "cat" / "3.jpg", pets / "dog" / "deep" / "upper.PNG"]
    for path in bad:
        path.write_bytes(path.read_bytes()[:60])

    found, again, late, strict = (
        train(load_dataset(source, strict=strict), 4, stand_in(classes=2))
        for strict in (False, False, False, True)
    )
    each = [made(found, epoch, index) for epoch in range(2) for index in range(len(found))]
    assert set(found.loader.unreadable) == set(bad)
    assert caplog.text.count("An image is skipped") == 2
    assert all(str(path) in caplog.text for path in bad)
    assert all(np.isfinite(images).all() and len(labels) == 4 for images, labels in each)
    assert_equal(made(again, 0, 0), each[0])
    with pytest.raises(OSError, match="can't be decoded"):
        list(strict)
    for path in source.train.images.keys:
        path.write_bytes(b"")
    with pytest.raises(OSError, match=r"no image of a batch can be decoded: .*jpg"):
        made(late, 0, 0)


@backend_free
def test_an_image_that_vanishes_is_left_out_of_evaluation(pets, caplog):
    source = load_dataset(pets, validation_split=0.5)
    gone = source.validation.images.keys[3]
    gone.unlink()

    def validation(source=source, **options):
        found = pipelines(source, stand_in(classes=2), 8).validation
        return list(found.replace(**options))

    assert [len(images) for images, _ in validation()] == [7, 2]
    assert "An image is skipped (1 so far)" in caplog.text and str(gone) in caplog.text
    assert [(len(x), w.sum()) for x, _, w in validation(pad=True)] == [(8, 7), (8, 2)]
    with pytest.raises(OSError, match=str(gone)):
        validation(load_dataset(source, strict=True))
