import logging
import sys

import keras
import numpy as np
import pytest

from keras_vitx.data import (
    Augmentation,
    Mixing,
    Pipelines,
    load_dataset,
    pipelines,
    preprocess_input,
)

module = sys.modules["keras_vitx.data.batches"]


@pytest.fixture
def arrays(picture):
    """103 training and 21 validation images; the gray level of each is its index."""
    train = np.repeat(np.arange(103, dtype="uint8"), 16 * 16 * 3).reshape(103, 16, 16, 3)
    validation = np.stack([picture(16, 16, seed=i) for i in range(21)])
    return (train, np.arange(103) % 4), (validation, np.arange(21) % 4)


@pytest.fixture
def small(make_model):
    return make_model((16, 16), classes=4)


@pytest.fixture(params=["in memory", "lazy"])
def memory(request, monkeypatch):
    """Both paths of the pipeline: all images in memory, or each loaded on request."""
    if request.param == "lazy":
        monkeypatch.setattr(module, "IN_MEMORY_BYTES", 0)


def taken(dataset):
    batches = list(dataset)
    return [x for x, _ in batches], [y for _, y in batches]


def levels(images):
    return np.rint((np.concatenate(images).max(axis=(1, 2, 3)) * 0.25 + 0.5) * 255).astype(int)


def test_shapes_types_and_sizes(arrays, small):
    result = pipelines(arrays, small, batch_size=10)
    assert (result.train_size, result.validation_size) == (103, 21)
    assert result.class_names == ("0", "1", "2", "3") and result.skipped == ()
    images, labels = taken(result.train)
    assert [x.shape for x in images] == [(10, 16, 16, 3)] * 10
    assert [y.shape for y in labels] == [(10,)] * 10
    assert {x.dtype for x in images} == {np.dtype("float32")}
    assert {y.dtype for y in labels} == {np.dtype("int32")}
    assert len(result.train) == 10 and len(result.validation) == 3
    images, labels = taken(result.validation)
    assert [len(x) for x in images] == [10, 10, 1]
    assert {x.dtype for x in images} == {np.dtype("float32")}


def test_an_epoch_takes_every_image_once_in_an_order_of_its_own(arrays, small, memory):
    train = pipelines(arrays, small, batch_size=1).train
    orders = []
    for _ in range(2):
        images, labels = taken(train)
        order = levels(images)
        assert sorted(order) == list(range(103))
        np.testing.assert_array_equal(np.concatenate(labels), order % 4)
        assert np.abs(order - np.arange(103)).mean() > 20
        orders.append(order)
    assert (orders[0] != orders[1]).any()


def test_without_augmentation_training_images_are_as_in_evaluation(picture, make_model):
    model = make_model((16, 16), classes=4, crop_ratio=0.8)
    images, labels = np.stack([picture(30, 40, seed=i) for i in range(12)]), np.arange(12) % 4
    result = pipelines(((images, labels),) * 2, model, batch_size=12, augmentation=None)
    plain = preprocess_input(images, model)
    np.testing.assert_allclose(taken(result.validation)[0][0], plain, atol=1e-6)
    (train,), _ = taken(result.train)
    nearest = np.abs(train[:, None] - plain).max(axis=(2, 3, 4))
    assert sorted(nearest.argmin(axis=1)) == list(range(12)) and nearest.min(axis=1).max() < 1e-5


def test_test_images_come_in_order_and_validation_may_be_missing(arrays, small):
    train, (images, labels) = arrays
    result = pipelines((train, (images[:5], labels[:5]), (images, labels)), small, 10)
    (found, found_labels) = taken(result.test)
    np.testing.assert_allclose(np.concatenate(found), preprocess_input(images, small), atol=1e-6)
    np.testing.assert_array_equal(np.concatenate(found_labels), labels)
    assert (result.validation_size, result.test_size) == (5, 21)
    alone = pipelines(train, small, validation_split=0)
    assert alone.validation is alone.validation_size is alone.test is alone.test_size is None
    assert Pipelines(alone.train)[1:] == (None, None, (), None)


def test_a_padded_batch_is_full_and_its_padding_weighs_nothing(arrays, small):
    _, (images, labels) = arrays
    for given in (labels, np.eye(4)[labels]):
        padded = pipelines(((images, given),) * 2, small, 10, pad=True).validation
        batches = list(padded)
        assert [x.shape for x, _, _ in batches] == [(10, 16, 16, 3)] * 3
        assert [len(y) for _, y, _ in batches] == [10] * 3
        weights = np.concatenate([w for _, _, w in batches])
        assert weights.dtype == np.float32 and weights.tolist() == [1] * 21 + [0] * 9
        plain = list(pipelines(((images, given),) * 2, small, 10).validation)
        for i in range(2):
            whole = np.concatenate([batch[i] for batch in batches])[:21]
            np.testing.assert_array_equal(whole, np.concatenate([batch[i] for batch in plain]))


def test_labels_of_any_form_follow_their_images(arrays, small):
    images = arrays[0][0]
    soft = np.stack([np.arange(103) / 103, 1 - np.arange(103) / 103, np.zeros(103), np.zeros(103)])
    source = ((images, soft.T), (images[:4], soft.T[:4]))
    batches, labels = taken(pipelines(source, small, 103, augmentation=None).train)
    np.testing.assert_allclose(labels[0][:, 0] * 103, levels(batches), atol=1e-3)
    # With regression targets there is no number of classes to check.
    assert pipelines((images, soft[0]), small).class_names is None


@pytest.mark.parametrize("augmentation", ["crop_flip", "random_resized_crop"])
def test_a_folder_of_mixed_images(pets, make_model, augmentation):
    model = make_model((24, 32), classes=2)
    result = pipelines(pets, model, 5, augmentation=augmentation, validation_split=0.2)
    assert [x.shape for x in taken(result.train)[0]] == [(5, 24, 32, 3)] * 3
    assert result.class_names == ("cat", "dog")
    opened = load_dataset(pets, validation_split=0.2)
    images, labels = taken(result.validation)
    expected = preprocess_input(opened.validation.images.paths, model)
    np.testing.assert_allclose(np.concatenate(images), expected, atol=1e-6)
    np.testing.assert_array_equal(np.concatenate(labels), opened.validation.labels)


@pytest.mark.parametrize("augmentation", ["crop_flip", "random_resized_crop"])
def test_grey_images_for_a_colour_model(make_model, augmentation):
    source = load_dataset("fashion_mnist")
    result = pipelines(source, make_model((32, 32)), 100, augmentation=augmentation)
    images, _ = next(iter(result.train))
    assert images.shape == (100, 32, 32, 3)
    np.testing.assert_array_equal(images[..., 0], images[..., 2])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 0}, "`batch_size` .* Received: 0"),
        ({"batch_size": 2.5}, r"`batch_size` .* Received: 2\.5"),
        ({"seed": -1}, "`seed` .* Received: -1"),
        ({"augmentation": "random_resize_crop"}, "Did you mean 'random_resized_crop'"),
    ],
)
def test_wrong_arguments_are_found_before_the_source_is_opened(small, options, message):
    with pytest.raises(ValueError, match=message):
        pipelines("no/such/folder", small, **options)


class Seen(keras.Layer):
    """Record the gray levels of the training images."""

    def __init__(self):
        super().__init__()
        self.levels = []

    def call(self, x, training=False):
        if training and not isinstance(x, keras.KerasTensor):
            self.levels.append(levels([keras.ops.convert_to_numpy(x)]))
        return x


@pytest.mark.parametrize("steps_per_epoch", [None, 5])
def test_keras_trains_on_the_batches_of_each_epoch(arrays, monkeypatch, steps_per_epoch):
    if steps_per_epoch:
        monkeypatch.setattr(module, "IN_MEMORY_BYTES", 0)
    inputs = keras.Input((16, 16, 3))
    outputs = keras.layers.Dense(4)(keras.layers.Flatten()((seen := Seen())(inputs)))
    model = keras.Model(inputs, outputs)
    model.preprocessing = {"mean": [0.5] * 3, "std": [0.25] * 3}
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True
    )
    result = pipelines(arrays, model, batch_size=20, augmentation=None, seed=5)
    seen.levels.clear()
    history = model.fit(
        result.train,
        validation_data=result.validation,
        epochs=3,
        steps_per_epoch=steps_per_epoch,
        shuffle=False,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: result.train.set_epoch(epoch)
            )
        ],
    )
    assert np.isfinite(history.history["loss"]).all() and len(history.history["val_loss"]) == 3
    orders = [np.random.default_rng((5, epoch)).permutation(103)[:100] for epoch in range(3)]
    np.testing.assert_array_equal(np.concatenate(seen.levels), np.concatenate(orders))


@pytest.mark.parametrize(
    "augmentation",
    [
        None,
        "crop_flip",
        "random_resized_crop",
        "rand_augment",
        Augmentation(color_jitter=0.4, repeats=3),
    ],
)
def test_a_batch_depends_on_seed_epoch_and_index_only(small, picture, memory, augmentation):
    images = np.stack([picture(20, 18, seed=i) for i in range(43)])
    source = load_dataset((images, np.arange(43) % 4), validation_split=0)

    def train(seed):
        options = {"augmentation": augmentation, "mixing": Mixing(), "seed": seed}
        return pipelines(source, small, 8, **options).train

    batches, others = train(1), train(2)
    first = []
    for epoch in (0, 1):
        batches.set_epoch(epoch)
        first.append([batches[index] for index in range(5)])
    assert (first[0][0][0] != first[1][0][0]).any() and (first[0][0][0] != others[0][0]).any()
    # The result depends neither on earlier requests nor on their order.
    again = train(1)
    for epoch, index in ((1, 4), (0, 3), (1, 0), (1, 1), (1, 2), (0, 3)):
        again.set_epoch(epoch)
        for found, wanted in zip(again[index], first[epoch][index], strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_the_outputs_of_the_model_fit_the_classes(arrays, make_model, caplog):
    with pytest.raises(ValueError, match="3 outputs, but the source arrays has 4 classes"):
        pipelines(arrays, make_model((16, 16), classes=3))
    assert pipelines(arrays, make_model((16, 16), classes=1)).train_size == 103
    with caplog.at_level(logging.WARNING, "keras_vitx"):
        result = pipelines(arrays, make_model((16, 16), classes=9), batch_size=1000)
    assert "4 classes, the model 9 outputs" in caplog.text
    # Fewer images than a batch are one batch.
    assert [len(labels) for _, labels in result.train] == [103]
