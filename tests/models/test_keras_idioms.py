"""The lines that a user of Keras types, as `keras.applications` and its guides have them."""

import importlib

import keras
import numpy as np
import pytest
from harness import BACKEND, array, precision, save_picture

import keras_vitx as kv
from keras_vitx.layers import ImagePreprocessing

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), "uint8")


def network(crop_ratio=1.0, **options):
    options = {"dim": 8, "depth": 1, "num_heads": 2, "patch_size": 8, "classes": 2} | options
    model = kv.CaiT(input_shape=(16, 16, 3), **options)
    model.preprocessing = kv.Preprocessing(MEAN, STD, crop_ratio)
    return model


def normalized(images):
    return (np.float32(images) / 255 - np.float32(MEAN)) / np.float32(STD)


@pytest.fixture
def directory(tmp_path):
    """A directory of two classes, three images each, 20 x 24."""
    for index, image in enumerate(np.kron(PIXELS, np.ones((2, 2, 1), "uint8"))[:, :20, :24]):
        save_picture(tmp_path / "photos" / "ab"[index % 2] / f"{index}.png", image)
    return tmp_path / "photos"


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.data has tensors of TensorFlow")
@pytest.mark.parametrize(("side", "crop_ratio"), [(16, 1.0), (20, 0.9)])
def test_a_keras_directory_maps_in_tf_data(directory, side, crop_ratio):
    model = network(crop_ratio)
    dataset = keras.utils.image_dataset_from_directory(
        directory, image_size=(side, side), batch_size=4, shuffle=False, verbose=0
    )
    layer = ImagePreprocessing.of(model)
    prepared = dataset.map(lambda x, y: (kv.preprocess_input(x, model), y))
    layered = dataset.map(lambda x, y: (layer(x), y))
    one_by_one = dataset.unbatch().map(lambda x, y: (kv.preprocess_input(x, model), y)).batch(4)
    as_it_is = (side, crop_ratio) == (16, 1.0)
    for (x, _), *others in zip(dataset, prepared, layered, one_by_one, strict=True):
        wanted = normalized(x) if as_it_is else kv.preprocess_input(x.numpy(), model)
        for found, _ in others:
            assert found.dtype == "float32"
            np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float64", "0..1"])
def test_tensors_of_the_backend_stay_so(dtype):
    values = PIXELS / np.float32(255) if dtype == "0..1" else PIXELS.astype(dtype)
    for crop_ratio, given in ((0.9, values), (1.0, values[:, :12])):
        model, images = network(crop_ratio), keras.ops.convert_to_tensor(given)
        for part in (images, images[0], images[..., :1])[: 3 if given is values else 1]:
            found = kv.preprocess_input(part, model)
            assert type(found) is type(images) and "float32" in str(found.dtype)
            assert found.ndim == part.ndim
            wanted = kv.preprocess_input(np.asarray(part), model).reshape(found.shape)
            np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-5)


@pytest.mark.skipif(BACKEND == "jax", reason="Keras's own lines, which take a minute to compile")
def test_the_transfer_learning_guide(tmp_path):
    """The lines of keras.io/guides/transfer_learning, with the callbacks that follow it."""
    tf = pytest.importorskip("tensorflow")
    keras.utils.set_random_seed(0)
    images, labels = PIXELS[np.arange(24) % 6] // 2, np.arange(24) % 2
    images[labels == 1, :8] += 120
    # float16 has Keras's scaling of the loss, which is not of one backend.
    with precision("float32" if BACKEND == "torch" else "mixed_float16"):
        base = kv.ViT(
            16, 1, 2, include_top=False, pooling="avg", input_shape=(16, 16, 3), patch_size=8
        )
        prepared = kv.preprocess_input(images, base)
        dataset = tf.data.Dataset.from_tensor_slices((prepared, labels)).batch(8)
        base.trainable = False
        inputs = keras.Input((16, 16, 3))
        x = keras.layers.RandomFlip("horizontal")(inputs)
        x = keras.layers.RandomRotation(0.05)(x)
        x = base(x, training=False)
        x = keras.layers.Dropout(0.2)(x)
        model = keras.Model(inputs, keras.layers.Dense(1)(x))
    callbacks = [keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)]
    callbacks += [keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True)]
    if importlib.util.find_spec("tensorboard"):
        callbacks += [keras.callbacks.TensorBoard(tmp_path / "logs")]

    def train(rate, epochs):
        model.compile(
            keras.optimizers.Adam(rate),
            keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
        )
        options = {"validation_data": dataset, "callbacks": callbacks, "verbose": 0}
        before = [array(each) for each in base.weights]
        losses = model.fit(dataset, epochs=epochs, **options).history["val_loss"]
        pairs = zip(base.weights, before, strict=True)
        return losses, [(array(each) != was).any() for each, was in pairs]

    losses, changed = train(3e-2, 3)
    assert len(model.trainable_weights) == 2 and not any(changed)
    base.trainable = True
    tuned, changed = train(3e-3, 3)
    assert all(changed)
    found = model.evaluate(dataset, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(min(tuned), rel=1e-2)
    assert found["loss"] < losses[0] and found["binary_accuracy"] > 0.9
    assert not callbacks[2:] or list((tmp_path / "logs").rglob("events*"))

    outputs = np.float32(model.predict(prepared, verbose=0))
    model.save(tmp_path / "model.keras")
    loaded = [keras.saving.load_model(tmp_path / name) for name in ("best.keras", "model.keras")]
    assert all(len(one.trainable_weights) == 2 + len(base.weights) for one in loaded)
    np.testing.assert_allclose(
        loaded[1].predict(prepared, verbose=0), outputs, rtol=1e-2, atol=1e-3
    )

    if BACKEND == "torch":  # Keras's own exporter of PyTorch fails on any model with a seed.
        assert kv.export(model, tmp_path / "model.onnx").difference < 1e-4
        return
    model.export(tmp_path / "served", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    served = np.float32(loaded.serve(prepared))
    # Keras exports augmentation as it is in training: the numbers are random.
    assert served.shape == outputs.shape and np.isfinite(served).all()
