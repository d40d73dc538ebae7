"""Faults that were reported of other projects' layers and models, in the order of the tests.

source                          what was said                      right value, and from where
keras-team/keras#9589           a frozen model in another model    frozen, as it was saved
                                is loaded as one that trains
keras-team/keras#21378, #19381  a quantized model can't be loaded  its predictions before saving
keras-team/keras#21639          a metric in a layer is not kept    1 / 5: a mean of maps of 5 keys
keras-team/keras#18398          checkpoints of TensorFlow leave    all weights, those of the model
                                out layers in lists
python-poetry/poetry-core#88,   from a zip file, or where Python   what it gives from files
joblib/threadpoolctl#87,        strips docstrings, a package
datalad/datalad#2461            fails
keras-team/keras#19528          a `PyDataset` without end has no   two epochs of three steps: six
                                length                             updates
keras-team/keras#21019          under JAX, an interrupted `fit`    its predictions before it, also
                                leaves no variables                after `predict` and `evaluate`
keras-team/keras#20851,         models that share an array: a      both run, whichever ran before
intel/ipex-llm#2839             step of one deletes the other's
keras-team/keras#6405           what is set after a prediction     the prediction of `model(images)`
                                changes none
"""

import copy
import zipfile

import keras
import numpy as np
import pytest
from harness import (
    BACKEND,
    FAMILIES,
    ROOT,
    array,
    close,
    numbers,
    precision,
    randomized,
    run_python,
    same_weights,
)

import keras_vitx as kv
from keras_vitx.analysis.measure import at_start
from keras_vitx.export.graph import in_float32, with_output
from keras_vitx.layers import Attention

IMAGES = numbers((2, 16, 16, 3))


@pytest.mark.backend_free
def test_a_frozen_model_inside_another_is_loaded_frozen(tmp_path):
    base = FAMILIES["CaiT"]()
    base.trainable = False
    keras.Sequential([base, keras.layers.Dense(2)]).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not loaded.layers[0].trainable and len(loaded.trainable_variables) == 2


@pytest.mark.backend_free
@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_a_quantized_model_is_loaded(mode, tmp_path):
    model = keras.Sequential([keras.Input((16, 16, 3)), FAMILIES["ViT"](depth=1)])
    model.quantize(mode)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    close(loaded.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0))


@pytest.mark.skipif(BACKEND == "jax", reason="Keras has no metrics in layers there")
def test_a_metric_of_a_layer_inside_a_block_counts():
    class Measured(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.metric = keras.metrics.Mean(name="mean")

        def call(self, maps):
            self.metric.update_state(maps)
            return maps

    model = FAMILIES["ViT"](remat=True, attention=lambda _: Attention(2, on_weights=[Measured()]))
    model.compile("sgd", "sparse_categorical_crossentropy")
    logs = model.train_on_batch(numbers((4, 16, 16, 3)), np.arange(4), return_dict=True)
    assert logs["mean"] == pytest.approx(1 / 5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's checkpoints")
def test_a_checkpoint_of_tensorflow_has_layers_in_lists(tmp_path):
    import tensorflow as tf

    model, other = randomized("RefinedViT", conv_stem=True), FAMILIES["RefinedViT"](conv_stem=True)
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    same_weights(other, model)


@pytest.mark.backend_free
def test_the_package_may_be_zipped_and_its_docstrings_stripped(tmp_path):
    with zipfile.PyZipFile(tmp_path / "package.zip", "w", optimize=2) as package:
        package.writepy(ROOT / "keras_vitx")
        for path in (ROOT / "keras_vitx").rglob("*.*"):
            if path.suffix not in (".py", ".pyc"):
                package.write(path, path.relative_to(ROOT))
    said = run_python(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        import numpy as np, keras_vitx as kv
        assert ".zip" in kv.__file__ and not kv.fit.__doc__, kv.__file__
        model = kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=3)
        kv.analysis.explore(model, np.zeros((1, 16, 16, 3), "uint8"), sys.argv[2])
        print(kv.decode_predictions(np.eye(1, 1000), top=1)[0][0][1])
        from keras_vitx import cli
        cli.app.meta(["train", "--help"])
        """.replace("\n        ", "\n"),
        tmp_path / "package.zip",
        tmp_path / "page.html",
    ).stdout
    assert "tench" in said and (tmp_path / "page.html").stat().st_size > 0


class Endless(keras.utils.PyDataset):
    num_batches = None

    def __getitem__(self, index):
        return np.zeros((8, 16, 16, 3), "float32"), np.arange(8) % 2


def test_a_dataset_without_end():
    model = kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=2)
    kv.fit(model, Endless(), epochs=2, warmup_epochs=0, steps_per_epoch=3, verbose=0)
    assert int(model.optimizer.iterations) == 6


class Failing(keras.utils.PyDataset):
    """A batch, then an error."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index:
            raise KeyboardInterrupt
        return IMAGES, np.zeros(2)


@pytest.mark.parametrize("how", ("predict", "evaluate"))
def test_a_model_outlives_what_ends_a_loop(how):
    model = FAMILIES["ViT"]()
    model.compile("sgd", "sparse_categorical_crossentropy")
    expected = model.predict(IMAGES, verbose=0)
    with pytest.raises(KeyboardInterrupt):
        getattr(model, how)(Failing(), verbose=0)
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), expected)


DERIVED = {
    "fuse": kv.fuse,
    "at_size": lambda model: model.at_size((16, 16)),
    "at_start": at_start,
    "deepcopy": copy.deepcopy,
    "clone": keras.models.clone_model,
    "in_float32": in_float32,
    # These share variables, not arrays alone.
    "logits": lambda model: with_output(model, "logits", "probabilities"),
    "cut": lambda model: kv.as_chain(keras.Model(model.input, model.layers[-2].output)),
    "nested": lambda model: keras.Sequential([keras.Input((16, 16, 3)), model]),
}


@pytest.mark.parametrize("name", DERIVED)
def test_no_model_takes_the_arrays_of_another(name):
    model = FAMILIES["DeepViT"](dtype="mixed_bfloat16" if name == "in_float32" else None)
    models = model, DERIVED[name](model)
    for one in models:
        one.compile("sgd", keras.losses.SparseCategoricalCrossentropy(name == "logits"))
    for one in (models[1], models[0], models[1]):
        one.fit(IMAGES, np.zeros(2), verbose=0)
        for each in models:
            assert np.isfinite(each.predict(IMAGES, verbose=0)).all()
            assert np.isfinite(np.sum([np.sum(value) for value in each.get_weights()]))


def set_attribute(name, value):
    return lambda model: setattr(model, name, value)


CHANGED = {
    "precision": lambda model: kv.training.set_precision(model, "mixed_bfloat16"),
    "preprocessing": set_attribute(
        "preprocessing", {"mean": (0.0, 0.2, 0.9), "std": (1, 0.2, 0.1)}
    ),
    "nested precision": lambda model: kv.training.set_precision(model, "mixed_bfloat16"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_changes_after_a_prediction_is_predicted(name):
    model = randomized("ViT", include_preprocessing=name == "preprocessing")
    pixels = np.round(128 + 40 * IMAGES)
    images = pixels if name == "preprocessing" else IMAGES
    if "nested" in name:
        model = keras.Sequential([keras.Input((16, 16, 3)), model])
    before = model.predict(images, verbose=0)
    CHANGED[name](model)
    after = model.predict(images, verbose=0)
    assert np.abs(after - before).max() > 1e-4
    close(after, array(model(images)), 1e-2)


def test_what_changes_after_a_step_is_trained():
    model = FAMILIES["ViT"](drop_path=0.0)
    model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy")
    losses = [model.train_on_batch(IMAGES, np.zeros(2)) for _ in range(2)]
    assert losses[0] == losses[1]
    before = model.train_function
    model.remat = True
    assert model.train_function is None
    close(model.train_on_batch(IMAGES, np.zeros(2)), losses[0])
    assert model.train_function is not before
    model.set_drop_path(0.9, "constant")
    losses = {float(model.train_on_batch(IMAGES, np.zeros(2))) for _ in range(8)}
    assert len(losses) > 1


# keras-team/keras#21928: what is rounded is what `quantize` was told, also after loading.
@pytest.mark.parametrize("adapted", [None, "block", "head"])
def test_quantized_by_a_config(adapted, tmp_path):
    model = randomized("ViT")
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    model.quantize(config=config)
    images = np.random.default_rng(0).normal(size=(2, *model.input_shape[1:]))
    if adapted:
        block, head = model.get_layer("blocks_0"), model.get_layer("head")
        (head if adapted == "head" else block.attention.qkv).enable_lora(2)
        with pytest.raises(ValueError, match="no LoRA when it is saved"):
            model.save(tmp_path / "m.keras")
        return
    expected = model.predict(images, verbose=0)
    model.save(tmp_path / "m.keras")
    found = keras.saving.load_model(tmp_path / "m.keras").predict(images, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's autocast")
def test_autocast_keeps_the_maps_of_deepvit():
    import torch

    model = kv.DeepViT_Mini(weights="cifar10")
    images = np.random.default_rng(0).normal(size=(8, 32, 32, 3)).astype("float32")
    with torch.no_grad():
        expected = model(images, training=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(images, training=False)
    np.testing.assert_allclose(found.float(), expected, atol=2e-2)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's autocast")
@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 1e-2), ("float16", 1e-3)])
@pytest.mark.parametrize("name", FAMILIES)
def test_autocast_keeps_what_a_family_computes(name, dtype, tolerance):
    import torch

    model, images = randomized(name, input_shape=(24, 16, 3)), numbers((4, 24, 16, 3))
    with torch.no_grad():
        expected = model(images, training=False)
        with torch.autocast("cpu", dtype=getattr(torch, dtype)):
            found = model(images, training=False)
    close(array(found.float()), array(expected), tolerance)


# Keras scales the loss by the policy of the outer model alone.
@pytest.mark.backend_free
def test_fit_scales_the_loss_of_a_float16_network_in_another():
    with precision("mixed_float16"):
        network = FAMILIES["ViT"](input_shape=(8, 8, 3), classes=10)
    model = keras.Sequential([keras.Input((8, 8, 3)), network])
    model.preprocessing = network.preprocessing
    kv.fit(model, "fashion_mnist", epochs=1, batch_size=8, fraction=0.01)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


# JAX finds the right class among the best five of NaN.
def test_nan_is_not_right():
    model = FAMILIES["ViT"](input_shape=(8, 8, 3), classes=10)
    model.get_layer("head").kernel.assign(np.full((8, 10), np.nan))
    results = kv.evaluate(model, "fashion_mnist")
    assert np.isnan([results[name] for name in ("loss", "accuracy", "top_5_accuracy")]).all()
