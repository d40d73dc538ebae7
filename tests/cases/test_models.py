"""Faults that were reported of other projects' layers and models."""

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
    randomized,
    run_python,
    same_weights,
)

import keras_vitx as kv
from keras_vitx.layers import Attention

IMAGES = numbers((2, 16, 16, 3))


# keras-team/keras#9589
@pytest.mark.backend_free
def test_a_frozen_model_inside_another_is_loaded_frozen(tmp_path):
    base = FAMILIES["CaiT"]()
    base.trainable = False
    keras.Sequential([base, keras.layers.Dense(2)]).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not loaded.layers[0].trainable and len(loaded.trainable_variables) == 2


# keras-team/keras#19381, keras-team/keras#21378
@pytest.mark.backend_free
@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_a_quantized_model_is_loaded(mode, tmp_path):
    model = keras.Sequential([keras.Input((16, 16, 3)), FAMILIES["ViT"](depth=1)])
    model.quantize(mode)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    close(loaded.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0))


# keras-team/keras#21639
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


# keras-team/keras#18398
@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's checkpoints")
def test_a_checkpoint_of_tensorflow_has_layers_in_lists(tmp_path):
    import tensorflow as tf

    model, other = randomized("RefinedViT", conv_stem=True), FAMILIES["RefinedViT"](conv_stem=True)
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    same_weights(other, model)


@pytest.mark.backend_free
def test_a_rate_set_by_hand_is_used_and_saved(tmp_path):
    model = FAMILIES["ViT"](drop_path=0.0)
    for block in model.blocks:
        block.drop_path1.rate = block.drop_path2.rate = 1 - 1e-7
    model.save(tmp_path / "model.keras")
    for one in (model, keras.saving.load_model(tmp_path / "model.keras")):
        assert [block.drop_path for block in one.blocks] == [1 - 1e-7] * 2
        x = numbers((2, 5, 8))
        close(array(one.blocks[1](x, training=True)), x)


# python-poetry/poetry-core#88; joblib/threadpoolctl#87, datalad/datalad#2461
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


@pytest.mark.backend_free
def test_clones_and_cut_models_tell_the_grid(tmp_path):
    # Its positions are of 2 x 3 patches, which 6 tokens do not say.
    model, images = FAMILIES["ConViT"](input_shape=(16, 24, 3)), numbers((2, 16, 24, 3))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    close(array(clone(images)), array(model(images)))
    cut = keras.Model(model.input, model.blocks[0].output)
    cut.save(tmp_path / "cut.keras")
    loaded = keras.saving.load_model(tmp_path / "cut.keras")
    close(array(loaded(images)), array(cut(images)))


class Failing(keras.utils.PyDataset):
    """A batch, then an error."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index:
            raise KeyboardInterrupt
        return IMAGES, np.zeros(2)


# keras-team/keras#21019, which mended `fit`
@pytest.mark.parametrize("how", ("predict", "evaluate"))
def test_a_model_outlives_what_ends_a_loop(how):
    model = FAMILIES["ViT"]()
    model.compile("sgd", "sparse_categorical_crossentropy")
    expected = model.predict(IMAGES, verbose=0)
    with pytest.raises(KeyboardInterrupt):
        getattr(model, how)(Failing(), verbose=0)
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), expected)


@pytest.mark.backend_free
def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    model, path = randomized("ViT"), tmp_path / "new" / "model.keras"
    model.save(path)
    monkeypatch.setattr(kv.layers.MLP, "get_config", lambda self: {}["full disk"])
    with pytest.raises(KeyError):
        model.save(path)
    monkeypatch.undo()
    same_weights(keras.saving.load_model(path), model)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.backend_free
def test_custom_objects_reach_the_layers_inside(tmp_path):
    class Halved(keras.layers.Layer):
        def call(self, maps):
            return maps / 2

    name = "cases>Halved"
    keras.saving.register_keras_serializable("cases")(Halved)
    model = FAMILIES["ViT"](attention=lambda _: Attention(2, on_weights=[Halved()]))
    model.save(tmp_path / "model.keras")
    keras.saving.get_custom_objects().pop(name)  # As in another process.
    loaded = keras.saving.load_model(tmp_path / "model.keras", custom_objects={name: Halved})
    close(array(loaded(IMAGES)), array(model(IMAGES)))


@pytest.mark.backend_free
@pytest.mark.parametrize("make", [FAMILIES["ViT"], lambda: kv.features(FAMILIES["ViT"]())])
def test_an_unknown_option_of_a_config_is_refused(make):
    model = make()
    with pytest.raises(TypeError, match="class_name"):
        type(model).from_config({**model.get_config(), "class_name": ["cat", "dog"]})


LABELS = np.eye(5, dtype="float32")[[0, 3]]


@pytest.mark.parametrize("two", (True, False) if BACKEND == "torch" else (True,))
def test_a_loss_may_call_the_model_again(two):
    model = FAMILIES["ViT"](drop_path=0.0, distillation_token=two)
    expected = array(model(IMAGES, training=True))

    def loss(labels, predictions):
        again = model(keras.ops.convert_to_tensor(IMAGES), training=True)
        return keras.ops.sum(keras.ops.abs(again - keras.ops.convert_to_tensor(expected)), -1)

    model.compile(keras.optimizers.SGD(0.1), loss)
    assert float(np.ravel(model.train_on_batch(IMAGES, LABELS))[0]) < 1e-5


@pytest.mark.backend_free
@pytest.mark.parametrize("argument", ["loss", "loss_weights", "metrics"])
def test_unknown_names_in_compile_raise(argument):
    model = FAMILIES["ViT"](distillation_token=True)
    given = {"loss": {"head": "mse"}, "loss_weights": {"head": 1.0}, "metrics": {"head": ["mse"]}}
    model.compile("sgd", **given)
    model.train_on_batch(IMAGES, LABELS)
    with pytest.raises(ValueError, match="dist"):
        model.compile(
            "sgd", **{**given, argument: {**given[argument], "dist": given[argument]["head"]}}
        )
        model.train_on_batch(IMAGES, LABELS)


@pytest.mark.backend_free
@pytest.mark.parametrize("activation", ["softmax", None])
def test_a_weight_of_one_loss_is_kerass(activation):
    losses = []
    for weights in (None, [2.0]):
        keras.utils.set_random_seed(0)
        model = randomized("ViT", classifier_activation=activation)
        loss = keras.losses.CategoricalCrossentropy(from_logits=activation is None)
        model.compile(keras.optimizers.SGD(0.0), loss, weights)
        losses += [model.train_on_batch(IMAGES, LABELS), model.test_on_batch(IMAGES, LABELS)]
    close(losses[2:], 2 * np.array(losses[:2]))


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "binary_crossentropy"])
def test_losses_of_keras_get_logits_in_a_step(loss):
    """Of a probability of 1e-44, which Keras clips at 1e-7, they have a gradient."""
    model = FAMILIES["ViT"](classifier_activation="softmax" if "sparse" in loss else "sigmoid")
    head = model.get_layer("head")
    head.kernel.assign(np.zeros(head.kernel.shape))
    head.bias.assign([-101.0, 0, 0, 0, 0])
    model.compile(keras.optimizers.SGD(1.0), loss)
    model.train_on_batch(IMAGES, np.zeros(2) if "sparse" in loss else np.eye(5)[[0, 0]])
    assert array(head.bias)[0] > -101
