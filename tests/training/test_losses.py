import keras
import numpy as np
import pytest
from harness import array, close, numbers

from keras_vitx.training import SmoothedCrossentropy


@pytest.mark.parametrize("smoothing", (0.0, 0.1, 0.6))
@pytest.mark.parametrize("from_logits", (False, True))
@pytest.mark.parametrize("axes", (1, 2))
def test_formula(smoothing, from_logits, axes):
    logits = numbers((6, 4))
    labels = np.array([0, 1, 2, 3, 3, 0]).reshape((6, 1) if axes == 2 else 6)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    targets = np.eye(4)[labels.reshape(-1)] * (1 - smoothing) + smoothing / 4
    loss = SmoothedCrossentropy(smoothing, from_logits=from_logits)
    found = loss(labels, logits if from_logits else probabilities)
    close(array(found), (-targets * np.log(probabilities)).sum(-1).mean())


def test_serialization():
    loss = SmoothedCrossentropy(0.2, from_logits=True, name="mine")
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert isinstance(twin, SmoothedCrossentropy)
    assert twin.get_config() == loss.get_config()
    assert (twin.label_smoothing, twin.from_logits, twin.name) == (0.2, True, "mine")
