"""The residual stream in float32 under a policy of half precision."""

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, blocks, close, numbers

IMAGES = numbers((4, 16, 16, 3))
LABELS = np.arange(4)


@pytest.fixture(params=("mixed_bfloat16", "mixed_float16"))
def policy(request):
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


def stream(model):
    """The tokens after each block."""
    outputs = [keras.tree.flatten(block.output)[0] for block in blocks(model)]
    return keras.Model(model.input, outputs)(IMAGES, training=False)


@pytest.mark.parametrize("family", ("CaiT", "RefinedViT"))
def test_small_branches_are_not_lost(policy, family):
    """With LayerScale from 1e-5, sums in half precision round to the tokens."""
    small = {"depth": 4, "layer_scale": 1e-5, "drop_path": 0.0}
    model = FAMILIES[family](residual_dtype="float32", **small)
    half = FAMILIES[family](**small)
    half.set_weights(model.get_weights())
    tokens, rounded = stream(model), stream(half)
    assert {keras.backend.standardize_dtype(x.dtype) for x in tokens} == {"float32"}
    dtype = keras.config.dtype_policy().compute_dtype
    assert {keras.backend.standardize_dtype(x.dtype) for x in rounded} == {dtype}
    if family == "CaiT":
        unchanged, lost = (np.mean(array(x[0]) == array(x[1])) for x in (tokens, rounded))
        assert lost > 0.95 and unchanged < 0.9
    close(array(model(IMAGES)), array(half(IMAGES)), 0.05)
    model.compile("sgd", "sparse_categorical_crossentropy")
    history = model.fit(IMAGES, LABELS, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    assert all(block.residual_dtype == "float32" for block in blocks(twin))


def test_float32_stays_as_it_is():
    model, same = FAMILIES["CaiT"](), FAMILIES["CaiT"](residual_dtype="float32")
    same.set_weights(model.get_weights())
    np.testing.assert_array_equal(array(model(IMAGES)), array(same(IMAGES)))
    with pytest.raises(ValueError, match=r"`residual_dtype` must be None or 'float32'.*'half'"):
        FAMILIES["ViT"](residual_dtype="half")
