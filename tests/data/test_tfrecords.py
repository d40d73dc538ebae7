import io

import numpy as np
import pytest
from PIL import Image

from keras_vitx.data import load_dataset, pipelines

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backend_free


def example(features):
    """A `tf.train.Example`, of bytes and lists of integers."""
    lists = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        if isinstance(value, bytes)
        else tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        for name, value in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()


def write(path, records):
    path.parent.mkdir(exist_ok=True, parents=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path


def png(image):
    data = io.BytesIO()
    Image.fromarray(image).save(data, "png")
    return data.getvalue()


@pytest.fixture
def images(picture):
    return [picture(20 + i, 24, seed=i) for i in range(12)]


def test_shards_are_the_images_that_were_written(tmp_path, images, make_model):
    names = ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001")
    for split, name in enumerate(names):
        records = [
            example({"image": png(images[i]), "label": [i % 3], "file_name": b"x" * 300})
            for i in range(split * 4, split * 4 + 4)
        ]
        write(tmp_path / f"pets-{name.replace('-0', '.tfrecord-0', 1)}", records)
    (tmp_path / "label.labels.txt").write_text("cat\ndog\nbird\n")
    for source in (tmp_path, f"{tmp_path}/pets-*.tfrecord*", f"{tmp_path}/pets-*"):
        opened = load_dataset(source)
        assert opened.class_names == ("cat", "dog", "bird") and opened.test is None
        assert opened.train.labels.tolist() == [i % 3 for i in range(8)]
        assert opened.validation.labels.tolist() == [2, 0, 1, 2]
        for split, first in ((opened.train, 0), (opened.validation, 8)):
            assert len(split.images) == split.size
            for i in range(split.size):
                np.testing.assert_array_equal(split.images[i], images[first + i])
    assert "pets-train.tfrecord-00001-of-00002, byte" in opened.train.id(4)
    result = pipelines(opened, make_model((16, 16), classes=3), 4, augmentation="rand_augment")
    batch, labels = result.train[0]
    assert batch.shape == (4, 16, 16, 3) and labels.shape == (4,)


@pytest.mark.parametrize("name", ["valid-0-of-1", "eval-00000-of-00001", "a.DEV.tfrecord"])
def test_shards_of_validation_by_any_name(tmp_path, images, name):
    records = [example({"image": png(image), "label": [i % 2]}) for i, image in enumerate(images)]
    write(tmp_path / "train-0-of-1", records)
    write(tmp_path / name, records[:4])
    opened = load_dataset(f"{tmp_path}/*")
    assert (opened.train.size, opened.validation.size) == (12, 4)


def test_labels_of_imagenet_start_at_one(tmp_path, images):
    names = "image/encoded", "image/class/label"

    def shard(labels):
        records = [
            example(dict(zip(names, (png(image), [label]), strict=True)))
            for image, label in zip(images, labels, strict=False)
        ]
        return write(tmp_path / "a.tfrecord", records)

    opened = load_dataset(shard([1, 2, 3] * 4), validation_split=0)
    assert opened.train.labels.tolist() == [0, 1, 2] * 4 and opened.class_names == ("0", "1", "2")
    opened = load_dataset(shard([0, 1, 3] * 4), validation_split=0)
    assert opened.train.labels.tolist() == [0, 1, 3] * 4
    with pytest.raises(ValueError, match="must be integers"):
        load_dataset(shard([-1, 1, 2] * 4))
    with pytest.raises(ValueError, match="at least two classes"):
        load_dataset(shard([5] * 12))


def test_a_validation_part_is_split_off(tmp_path, images):
    records = [example({"image": png(image), "label": [i % 2]}) for i, image in enumerate(images)]
    opened = load_dataset(write(tmp_path / "all.tfrecord", records), validation_split=0.3)
    whole = load_dataset(tmp_path, validation_split=0).train

    def ids(split):
        return {split.id(i) for i in range(split.size)}

    assert ids(opened.train) | ids(opened.validation) == ids(whole)
    assert not ids(opened.train) & ids(opened.validation)
    assert np.bincount(opened.validation.labels).tolist() == [2, 2]


@pytest.mark.parametrize(
    "records, message",
    [
        ([example({"pixels": b"", "label": [1]})], "Found the features label, pixels"),
        ([example({"image": b"", "label": [1, 2]})], "one image and one integer label"),
        ([example({"image": b"", "label": b"cat"})], "one image and one integer label"),
        ([], "there are no images of the split train in .*bad"),
    ],
)
def test_other_features_are_named(tmp_path, records, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(write(tmp_path / "bad.tfrecord", records))


def test_files_that_are_not_tfrecords_are_named(tmp_path, images):
    record = example({"image": png(images[0]), "label": [1]})
    path = write(tmp_path / "bad.tfrecord", [record] * 3)
    whole = path.read_bytes()
    write(path, [b"\xff" * 30])
    with pytest.raises(OSError, match=r"bad\.tfrecord can't be read as TFRecords: .*pars"):
        load_dataset(path)
    for data, message in (
        (whole[:-40], "truncated"),
        (b"\x1f\x8b" + whole[2:], "compressed"),
        (whole[:12] + b"\xff" * 30 + whole[42:], "corrupted"),
    ):
        path.write_bytes(data)
        with pytest.raises(OSError, match=f"bad.tfrecord .*{message}"):
            load_dataset(path)
    with pytest.raises(ValueError, match="has no training images, only test"):
        load_dataset(write(tmp_path / "x" / "a-test.tfrecord", [record]))
    with pytest.raises(ValueError, match=r"does not exist\. Expected .*TFRecord shards"):
        load_dataset(f"{tmp_path}/none-*.tfrecord")


def test_a_damaged_image_is_named(tmp_path, images):
    record = example({"image": png(images[0])[:60], "label": [1]})
    good = example({"image": png(images[1]), "label": [0]})
    split = load_dataset(write(tmp_path / "a.tfrecord", [good, record]), validation_split=0).train
    assert split.images[0].shape == images[1].shape
    with pytest.raises(OSError, match=r"a\.tfrecord, byte \d+: .*decoded"):
        split.images[1]
