"""Data: faults that were reported of other projects, in the order of the tests.

source                        what was said                       right value, and from where
huggingface/diffusers#14323,  a thin image is resized to no row   the level of all pixels, in the
mlverse/torchvision#44,       or column                           shape that is asked for
datature/discolight#23
keras-team/keras#19156,       loaders of unknown length, batches  the number of images given; an
#9737,                        and tensors of others fail          error where there is no batch
tensorflow/tensorflow#36287
tensorflow/tensorflow#8484,   a label that no class has makes     an error, as by TensorFlow on a
keras-team/keras#11786        the loss NaN, in silence            CPU
"""

import keras
import numpy as np
import pytest
from harness import FAMILIES

import keras_vitx as kv
from keras_vitx.data.augmentation.windows import resized_crop
from keras_vitx.data.images import resize_and_crop

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize("sides", [(1, 2000), (2000, 1), (3, 900), (900, 3)])
def test_thin_images_keep_a_row_and_a_column(sides):
    image, random = np.full((*sides, 3), 7, "uint8"), np.random.default_rng(0)
    assert resize_and_crop(image, (32, 32)).shape == (32, 32, 3)
    for ratio in ((0.1, 0.3), (3, 10)):
        assert (resized_crop(image, (32, 32), random, ratio=ratio) == 7).all()


def test_batches_and_tensors_that_others_make():
    torch = pytest.importorskip("torch")
    model, random = FAMILIES["ViT"](), np.random.default_rng(0)
    images = random.random((10, *model.input_shape[1:]), "float32")
    pairs = list(zip(images, np.arange(10) % 5, strict=True))

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(pairs)

    def fit(source, **options):
        return kv.fit(model, source, epochs=1, warmup_epochs=0, **options).history

    known, stream = (torch.utils.data.DataLoader(each, 4) for each in (pairs, Stream()))
    assert kv.evaluate(model, stream)["images"] == 10  # Its length is not known.
    assert "val_loss" in fit((known, stream))
    tensors = [keras.ops.convert_to_tensor(each) for each in (images, np.arange(10) % 5)]
    assert kv.evaluate(model, tensors)["images"] == 10
    empty = torch.utils.data.DataLoader(pairs, 11, drop_last=True)
    with pytest.raises(ValueError, match="`source` must have batches"):
        fit(empty)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_a_label_out_of_range_of_a_later_batch(activation):
    model = FAMILIES["ViT"](classifier_activation=activation)

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return np.zeros((4, *model.input_shape[1:]), "float32"), np.arange(4) + 2 * index

    with pytest.raises((FloatingPointError, RuntimeError)):
        kv.fit(model, Batches(), epochs=1, warmup_epochs=0)


# renpy/renpy#2327: a Mac writes "é" as two characters
def test_a_name_in_two_forms_is_one_class():
    table = kv.data.from_files(["a.jpg", "b.jpg", "c.jpg"], ["caf\u00e9", "cafe\u0301", "tea"])
    assert table.class_names == ("caf\u00e9", "tea")
    assert table.train.labels.tolist() == [0, 0, 1]
