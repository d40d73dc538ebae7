"""Data: faults reported of other projects."""

import numpy as np
import pytest

from keras_vitx.data import load_dataset
from keras_vitx.data.augmentation.windows import resized_crop
from keras_vitx.data.images import resize_and_crop

pytestmark = pytest.mark.backend_free


# huggingface/diffusers#14323, mlverse/torchvision#44, datature/discolight#23
@pytest.mark.parametrize("sides", [(1, 2000), (2000, 1), (3, 900), (900, 3)])
def test_thin_images_keep_a_row_and_a_column(sides):
    image, random = np.full((*sides, 3), 7, "uint8"), np.random.default_rng(0)
    assert resize_and_crop(image, (32, 32)).shape == (32, 32, 3)
    for ratio in ((0.1, 0.3), (3, 10)):
        assert (resized_crop(image, (32, 32), random, ratio=ratio)[0] == 7).all()


# tototoshi/scala-csv#137, awslabs/gluonts#920, juspay/neurolink#1099
@pytest.mark.parametrize("note", ["a\x85b", "a\u2028b", "a\x0cb", '"a\rb"'])
def test_a_row_of_a_table_ends_at_the_end_of_a_line_only(tmp_path, note):
    for name in ("0.jpg", "1.jpg"):
        (tmp_path / name).touch()
    text = f"file,label,note\n0.jpg,cat,{note}\n1.jpg,dog,\n"
    (tmp_path / "t.csv").write_text(text, "utf-8", newline="")
    assert load_dataset(tmp_path / "t.csv", validation_split=0).train.labels.tolist() == [0, 1]
