from itertools import islice

import numpy as np
import pytest

import keras_vitx as kv
from keras_vitx.data import Examples, Mixing, grain_batches, load_dataset, pipelines

grain = pytest.importorskip("grain")
backend_free = pytest.mark.backend_free


@pytest.fixture
def source(picture):
    images = np.stack([picture(20, 24, seed=i) for i in range(20)])
    return images, np.arange(20) % 2


@backend_free
def test_a_part_is_a_source_of_grain(pets):
    train = load_dataset(pets).train
    dataset = grain.MapDataset.source(Examples(train))
    assert len(dataset) == train.size
    for index in (0, 7):
        image, label = dataset[index]
        np.testing.assert_array_equal(image, train.images[index])
        assert label == train.labels[index]


@backend_free
@pytest.mark.parametrize("augmentation", ["rand_augment", "crop_flip", None])
def test_the_seed_gives_the_same_batches(source, make_model, augmentation):
    model = make_model((16, 16), classes=2)

    def batches(seed, mixing=None):
        options = {"augmentation": augmentation, "mixing": mixing, "validation_split": 0}
        return list(islice(grain_batches(source, model, 5, seed=seed, **options), 8))

    first = batches(3)
    for found, wanted in zip(batches(3), first, strict=True):
        for array, expected in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(array, expected)
    assert (batches(4)[0][0] != first[0][0]).any()
    images, labels = first[0]
    assert images.shape == (5, 16, 16, 3) and images.dtype == np.float32 and labels.shape == (5,)
    epochs = [np.concatenate([first[4 * e + i][1] for i in range(4)]) for e in range(2)]
    for labels in epochs:  # each image once
        assert np.bincount(labels).tolist() == [10, 10]
    mixed = batches(3, {"mixup": 0.8})[0]
    assert mixed[1].shape == (5, 2) and mixed[1].dtype == np.float32


@backend_free
def test_unaugmented_images_are_those_of_pipelines(source, make_model):
    model = make_model((16, 16), classes=2, crop_ratio=0.8)
    options = {"augmentation": None, "validation_split": 0}
    images, _ = next(iter(grain_batches(source, model, 20, **options)))
    expected, _ = pipelines(source, model, 20, **options).train[0]
    distance = np.abs(images[:, None] - expected).max(axis=(2, 3, 4))
    assert sorted(distance.argmin(axis=1)) == list(range(20)) and distance.min(axis=1).max() < 1e-6


def test_fit_takes_batches_of_grain(source):
    model = kv.ViT(
        dim=8, depth=1, num_heads=2, patch_size=8, input_shape=(16, 16, 3), classes=2, name="vit"
    )
    batches = grain_batches(source, model, 8, mixing=Mixing())
    with pytest.raises(ValueError, match=r"number of batches is unknown .* `steps_per_epoch`"):
        kv.fit(model, batches, epochs=1, warmup_epochs=0)
    history = kv.fit(model, batches, epochs=2, warmup_epochs=0, steps_per_epoch=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    own = grain.MapDataset.source(list(islice(batches, 2)))
    with pytest.raises(ValueError, match=r"endless\. Give `steps_per_epoch`"):
        kv.fit(model, own.repeat(), epochs=1, warmup_epochs=0)
    loader = grain.DataLoader(data_source=own, sampler=grain.samplers.SequentialSampler(2))
    for dataset in (own, loader):
        history = model.fit(dataset, steps_per_epoch=2, shuffle=False, verbose=0)
        assert np.isfinite(history.history["loss"]).all()
