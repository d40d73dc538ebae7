"""What a device lacks is one error before the first step."""

import pytest
from devices.zoo import TINY
from harness import precision

import keras_vitx as kv
from keras_vitx.training import devices

pytestmark = pytest.mark.backend_free


def fits(monkeypatch, model, *device):
    monkeypatch.setattr(devices, "device_of", lambda: device)
    return kv.fit(model, "fashion_mnist", epochs=1)


def test_a_precision_that_the_device_lacks(monkeypatch):
    with precision("mixed_bfloat16"):
        model = TINY["ViT"]()
    with pytest.raises(ValueError, match=r"`precision` .* 'mixed_float16', 'float32' on a T4.*bfl"):
        fits(monkeypatch, model, "a T4", None, ("bfloat16",))
    devices.check_limits(TINY["ViT"]())


def test_weights_that_do_not_fit(monkeypatch):
    model = TINY["ViT"]()
    held = 4 * sum(v.value.nbytes for v in model.trainable_variables)
    with pytest.raises(ValueError, match=r"`model` must fit .* a small GPU.*shard_weights=True"):
        fits(monkeypatch, model, "a small GPU", held // 2, ())
    devices.check_limits(model, num_shards=8)
