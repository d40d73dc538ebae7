import numpy as np
import pytest

from keras_vitx.data import Mixing
from keras_vitx.data.augmentation.mixing import check_mixable, soft_labels
from keras_vitx.data.worker import share_of_batch

pytestmark = pytest.mark.backend_free


def batch(count=6, size=8):
    """Images that hold their index, and one-hot labels."""
    images = np.ones((count, size, size, 3)) * np.arange(count)[:, None, None, None]
    return images.astype("float32"), np.eye(count, dtype="float32")


@pytest.mark.parametrize("mixing", [Mixing(), Mixing(mixup=0), Mixing(cutmix=0)])
def test_labels_are_mixed_by_the_share_of_pixels(mixing):
    shares = []
    for seed in range(50):
        images, labels = mixing(*batch(), np.random.default_rng(seed))
        assert images.dtype == labels.dtype == np.float32
        np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-6)
        for i in range(6):
            share = labels[i, i]
            np.testing.assert_allclose(labels[i, 5 - i], 1 - share, atol=1e-6)
            np.testing.assert_allclose(images[i].mean(), share * i + (1 - share) * (5 - i), 1e-5)
            if not mixing.mixup:
                assert set(np.unique(images[i])) <= {i, 5 - i}
        shares.append(labels[0, 0])
    assert min(shares) < 0.4 and max(shares) > 0.7


@pytest.mark.parametrize("group_size, groups", [(None, 1), (2, 4), (4, 2), (8, 1)])
def test_a_coefficient_per_group(group_size, groups):
    mixing = Mixing(cutmix=0, group_size=group_size)
    images, labels = mixing(*batch(8), np.random.default_rng(1))
    assert len(set(np.round(labels.diagonal(), 6))) == groups
    np.testing.assert_allclose(images[:, 0, 0, 0], labels @ np.arange(8), rtol=1e-5)
    for shares in (2, 4):  # Devices that mix their own images mix the same.
        for share in range(shares):
            own = share_of_batch(8, share, shares)
            given = [array[own] for array in batch(8)]
            mixed, of_mixed = mixing(*given, np.random.default_rng(1), share, shares)
            np.testing.assert_array_equal(mixed, images[own])
            np.testing.assert_array_equal(of_mixed, labels[own])
    with pytest.raises(ValueError, match="`group_size` must divide the batch of 6"):
        Mixing(group_size=4).check_batch(6)


def test_bytes_are_rounded():
    images = np.arange(4 * 16 * 16 * 3, dtype="uint8").reshape(4, 16, 16, 3)
    mixing = Mixing(cutmix=0)
    found, _ = mixing(images.copy(), np.eye(4), np.random.default_rng(0))
    wanted, _ = mixing(images.astype("float32"), np.eye(4), np.random.default_rng(0))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, np.rint(wanted))


def test_an_unmixed_batch_is_unchanged():
    for mixing in (Mixing(mixing_probability=0), Mixing(mixup=0, cutmix=0)):
        assert not mixing.on and Mixing.of(mixing) is None
        images, labels = mixing(*batch(), np.random.default_rng(0))
        np.testing.assert_array_equal(images, batch()[0])
        np.testing.assert_array_equal(labels, batch()[1])
    assert Mixing.of({"mixup": 0.2, "cutmix": 0.0}) == Mixing(0.2, 0.0)


def test_labels_of_every_kind_become_soft():
    np.testing.assert_array_equal(soft_labels(np.array([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(soft_labels(np.array([1, 0]), 1), [1, 0])
    multi = np.array([[1, 1, 0], [0, 0, 0]])
    found = soft_labels(multi, None)
    np.testing.assert_array_equal(found, multi)
    assert found.dtype == soft_labels(np.array([1, 0]), 1).dtype == np.float32


@pytest.mark.parametrize(
    "labels, classes, message",
    [
        ([0, 1], None, "the number of classes of these integer labels is unknown"),
        ([0, 3], 3, r"Labels must be in 0\.\.2\. Received: 3"),
        ([0.5, 1.5], 1, "For regression, use no mixing"),
        ([[0.5, 1.5]], 2, "For regression, use no mixing"),
    ],
)
def test_labels_that_can_not_be_mixed_are_named(labels, classes, message):
    with pytest.raises(ValueError, match=message):
        check_mixable(np.array(labels), classes)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"mixup": -1}, "`mixup` must be a number, at least 0. Received: -1"),
        ({"cutmix": float("nan")}, "`cutmix` .* Received: nan"),
        ({"mixing_probability": 2}, "`mixing_probability` .* Received: 2"),
        ({"group_size": 3}, "`group_size` must be an even number or None. Received: 3"),
        ({"switch": "half"}, "`switch` .* Received: 'half'"),
    ],
)
def test_a_field_out_of_range_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        Mixing(**fields)
    with pytest.raises(ValueError, match="Mixing has no 'alpha'"):
        Mixing.of({"alpha": 1})
    with pytest.raises(ValueError, match=r"`mixing` must be a Mixing or None\. Received: 0\.8"):
        Mixing.of(0.8)
