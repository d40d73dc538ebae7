import sys

import numpy as np
import pytest

from keras_vitx.data import Augmentation, pipelines

pytestmark = pytest.mark.backend_free


@pytest.fixture
def source(picture):
    return np.stack([picture(20, 24, seed=i) for i in range(10)]), np.arange(10) % 2


@pytest.fixture
def keras_cv():
    return pytest.importorskip("keras_cv")


def test_the_second_route_makes_the_same_batches_from_a_seed(keras_cv, source, make_model):
    model = make_model((16, 16), classes=2)

    def train(augmentation="keras_cv"):
        return pipelines(source, model, 4, augmentation=augmentation, validation_split=0).train

    first = train()
    expected = [first.finish(first.make(0, index)) for index in (0, 1)]
    for found, wanted in zip(
        first.finish(first.make(0, 0)), expected[0], strict=True
    ):  # again, after another
        np.testing.assert_array_equal(found, wanted)
    images, labels = expected[0]
    assert images.shape == (4, 16, 16, 3) and images.dtype == np.float32
    assert labels.tolist() == [i % 2 for i in first.ids(0, 0)]
    assert images.std() > 0.3 and len({image.tobytes() for image in images}) == 4
    assert (expected[1][0] != images).any()

    mild = Augmentation(crop="shift", color_jitter=0.4, by="keras_cv")
    images, _ = train(mild)[0]
    assert np.isfinite(images).all() and images.min() >= -2 and images.max() <= 2
    flipped = Augmentation(crop=None, flip=1.0, by="keras_cv")
    found, plain = (train(a)[0][0] for a in (flipped, None))
    np.testing.assert_allclose(found, plain[:, :, ::-1], atol=0.02)


def test_it_names_what_it_can_not_do(source, make_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_cv", None)
    with pytest.raises(ImportError, match=r'needs keras-cv: .* extra "keras-cv"'):
        pipelines(source, make_model((16, 16), classes=2), 4, augmentation="keras_cv")
