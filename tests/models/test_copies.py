"""Copies, cuts and files of a model: what is frozen stays so, a cut model becomes a Chain again."""

import copy

import keras
import pytest
from harness import FAMILIES, array, close, numbers, randomized, same_weights
from keras import layers

import keras_vitx as kv
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import Attention

pytestmark = pytest.mark.backend_free


def by_file(model, directory):
    model.save(directory / "model.keras")
    return keras.saving.load_model(directory / "model.keras")


COPIES = {
    "file": by_file,
    "config": lambda model, _: type(model).from_config(model.get_config()),
    "deepcopy": lambda model, _: copy.deepcopy(model),
    "at_size": lambda model, _: model.at_size((24, 16)),
    # Keras clones the layers, and makes a new model around them, which knows no family.
    "clone": lambda model, _: kv.as_chain(keras.models.clone_model(model)),
}


def trained(model):
    return [variable.path for variable in model.trainable_variables]


def flags(model):
    parts = [(layer.name, layer.trainable) for layer in model.layers if layer.weights]
    return parts, [(variable.path, variable.trainable) for variable in model.weights]


# A layer at any depth, by its place (0 is the model), and whether it trains.
PARTS, MODEL = (
    [(5, False), (12, False), (-1, False), (15, False), (16, True)],
    [(0, False), (-2, True)],
)


@pytest.mark.parametrize("family", ("CaiT", "RefinedViT"))
@pytest.mark.parametrize("changes", ([*PARTS, *COPIES], [*MODEL, *list(COPIES)[:-1]]))
def test_frozen_in_every_copy(family, changes, tmp_path):
    model = FAMILIES[family](name="mine")
    count = len(trained(model))
    for index, change in enumerate(changes):
        if change in COPIES:
            target = tmp_path / str(index)
            target.mkdir()
            twin = COPIES[change](model, target)
            assert trained(twin) == trained(model)
            assert flags(twin) == flags(model)
            model = twin
        else:
            place, trains = change
            # Keras's clone is a new model around clones of the layers.
            parts = sublayers(model)["clone" in changes :]
            parts[place % len(parts)].trainable = trains
    model.trainable = False
    model.trainable = True
    assert len(trained(model)) == count


IMAGES = numbers((4, 16, 16, 3))


def nested(model):
    images = keras.Input((16, 16, 3))
    return keras.Model(images, layers.Activation("softmax")(model(images)))


# How a model is cut, and the number of its own layers that are left.
CUTS = {
    "prefix": (lambda m: keras.Model(m.input, layers.Softmax()(m.get_layer("norm").output)), 5),
    "new head": (lambda m: keras.Model(m.input, layers.Dense(5, "softmax")(m.output)), 8),
    "nested": (nested, 8),
}


# The second family has blocks that share maps.
@pytest.mark.parametrize("family", ["ViT", "RefinedViT"])
@pytest.mark.parametrize("cut", CUTS)
def test_a_line_of_layers_becomes_a_chain(family, cut):
    model = FAMILIES[family](drop_path=0.0, depth=2 if family == "RefinedViT" else 1)
    make, kept = CUTS[cut]
    assert kv.as_chain(model) is model
    before = make(model)
    after = kv.as_chain(before)
    kept += family == "RefinedViT"
    assert after.layers[:kept] == model.layers[:kept] and len(after.layers) == kept + 1
    close(array(after(IMAGES)), array(before(IMAGES)))
    close(*(array(one(IMAGES, training=True)) for one in (after, before)))
    trained, wanted = ({id(v) for v in one.trainable_variables} for one in (after, before))
    assert trained == wanted


def test_a_rate_set_by_hand_is_used_and_saved(tmp_path):
    model = FAMILIES["ViT"](drop_path=0.0)
    for block in model.blocks:
        block.drop_path1.rate = block.drop_path2.rate = 1 - 1e-7
    model.save(tmp_path / "model.keras")
    for one in (model, keras.saving.load_model(tmp_path / "model.keras")):
        assert [block.drop_path for block in one.blocks] == [1 - 1e-7] * 2
        x = numbers((2, 5, 8))
        close(array(one.blocks[1](x, training=True)), x)


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


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    model, path = randomized("ViT"), tmp_path / "new" / "model.keras"
    model.save(path)
    monkeypatch.setattr(kv.layers.MLP, "get_config", lambda self: {}["full disk"])
    with pytest.raises(KeyError):
        model.save(path)
    monkeypatch.undo()
    same_weights(keras.saving.load_model(path), model)
    assert list(path.parent.iterdir()) == [path]


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


@pytest.mark.parametrize("make", [FAMILIES["ViT"], lambda: kv.features(FAMILIES["ViT"]())])
def test_an_unknown_option_of_a_config_is_refused(make):
    model = make()
    with pytest.raises(TypeError, match="class_name"):
        type(model).from_config({**model.get_config(), "class_name": ["cat", "dog"]})
