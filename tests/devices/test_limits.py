"""What a device lacks is one error before the first step."""

import keras
import pytest
from devices.zoo import TINY

import keras_vitx as kv
from keras_vitx.training import devices

pytestmark = pytest.mark.backend_free


def on(monkeypatch, *device):
    monkeypatch.setattr(devices, "device_of", lambda: device)


def test_a_precision_that_the_device_lacks(monkeypatch):
    on(monkeypatch, "a T4", None, ("bfloat16",))
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = TINY["ViT"]()
    finally:
        keras.config.set_dtype_policy("float32")
    with pytest.raises(ValueError, match=r"`precision` .* 'mixed_float16', 'float32' on a T4.*bfl"):
        kv.fit(model, "fashion_mnist", epochs=1)
    devices.check_limits(TINY["ViT"]())


def test_weights_that_do_not_fit(monkeypatch):
    model = TINY["ViT"]()
    held = 4 * sum(v.value.nbytes for v in model.trainable_variables)
    on(monkeypatch, "a small GPU", held // 2, ())
    with pytest.raises(ValueError, match=r"`model` must fit .* a small GPU.*shard_weights=True"):
        kv.fit(model, "fashion_mnist", epochs=1)
    devices.check_limits(model, num_shards=8)
