from itertools import islice

import keras
import numpy as np
import pytest
from harness import run_python

import keras_vitx as kv
from keras_vitx.data import load_dataset, pipelines

grain = pytest.importorskip("grain")


@pytest.mark.backend_free
def test_a_split_is_a_source_of_grain(pets):
    train = load_dataset(pets).train
    dataset = grain.MapDataset.source(train)
    assert len(dataset) == train.size
    for index in (0, 7):
        image, label = dataset[index]
        np.testing.assert_array_equal(image, train.images[index])
        assert label == train.labels[index]
    with pytest.warns(DeprecationWarning, match="Examples"):
        assert kv.data.Examples(train) is train


@pytest.mark.backend_free
def test_batches_are_a_dataset_of_grain_from_any_step_on(pets, make_model):
    train = pipelines(pets, make_model((16, 16), classes=2), 4, augmentation="rand_augment").train
    found = list(islice(train.dataset(3), 4))
    for step, batch in enumerate(found, start=3):
        images, labels = train.finish(batch)
        expected = train.finish(train.make(*divmod(step, len(train))))
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(images), expected[0])
        np.testing.assert_array_equal(labels, expected[1])


def test_fit_takes_batches_of_grain(picture):
    images = np.stack([picture(20, 24, seed=i) for i in range(20)])
    model = kv.ViT(dim=8, depth=1, num_heads=2, patch_size=8, input_shape=(16, 16, 3), classes=2)
    train = pipelines((images, np.arange(20) % 2), model, 8, validation_split=0).train
    endless = train.dataset().map(lambda batch: tuple(batch[:2]))
    with pytest.raises(ValueError, match=r"number of batches is unknown .* `steps_per_epoch`"):
        kv.fit(model, endless, epochs=1, warmup_epochs=0)
    history = kv.fit(model, endless, epochs=2, warmup_epochs=0, steps_per_epoch=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    own = grain.MapDataset.source(list(islice(endless, 2)))
    with pytest.raises(ValueError, match=r"endless\. Give `steps_per_epoch`"):
        kv.fit(model, own.repeat(), epochs=1, warmup_epochs=0)
    loader = grain.DataLoader(data_source=own, sampler=grain.samplers.SequentialSampler(2))
    for dataset in (own, loader):
        history = model.fit(dataset, steps_per_epoch=2, shuffle=False, verbose=0)
        assert np.isfinite(history.history["loss"]).all()


WORKER = """
import os, sys
os.environ["KERAS_VITX_WORKER"] = "1"
import keras_vitx.data.worker
import keras_vitx as kv
assert "keras" not in sys.modules
assert callable(kv.ViT) and "keras" in sys.modules
"""


@pytest.mark.backend_free
def test_processes_that_make_batches_do_without_keras():
    run_python(WORKER)
