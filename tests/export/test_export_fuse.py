import keras
import pytest
from harness import FAMILIES, FAMILIES_HERE, array, close, numbers, randomize

import keras_vitx as kv


@pytest.mark.parametrize("name", FAMILIES_HERE)
def test_same_outputs(name, tmp_path):
    model = FAMILIES[name](classifier_activation=None)
    randomize(model)
    before = [array(weight) for weight in model.weights]
    images = numbers((2, *model.input_shape[1:]))
    expected = array(model(images, training=False))
    fused = kv.fuse(model)
    close(array(fused(images, training=False)), expected, 1e-5)
    assert not any("/ls1/" in weight.path for weight in fused.weights)
    assert not any("scale_channel" in weight.path for weight in fused.weights)
    if name in ("CaiT", "RefinedViT"):
        assert len(fused.weights) < len(model.weights)
    for weight, value in zip(model.weights, before, strict=True):
        assert (array(weight) == value).all()
    fused.save(tmp_path / "fused.keras")
    loaded = keras.saving.load_model(tmp_path / "fused.keras")
    close(array(loaded(images, training=False)), expected, 1e-5)


class Custom(keras.layers.Layer):
    """An attention with a child without a name."""

    def build(self, input_shape):
        self.inner = keras.layers.Dense(input_shape[-1])
        self.inner.build(input_shape)

    def call(self, x):
        return self.inner(x)


def test_custom_attention_stays():
    model = FAMILIES["ViT"](layer_scale=0.5, attention=lambda index: Custom())
    randomize(model)
    images = numbers((2, *model.input_shape[1:]))
    fused = kv.fuse(model)
    assert len(fused.weights) == len(model.weights)
    close(array(fused(images)), array(model(images)), 1e-5)


def test_errors():
    images = keras.Input((8, 8, 3))
    with pytest.raises(ValueError, match="`model` must be a model of keras_vitx"):
        kv.fuse(keras.Model(images, keras.layers.Flatten()(images)))
    model = FAMILIES["ViT"]()
    model.steps[-1].enable_lora(2)
    with pytest.raises(ValueError, match="neither LoRA nor quantized"):
        kv.fuse(model)
