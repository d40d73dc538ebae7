import io

import numpy as np
import pytest
from harness import picture, stand_in
from PIL import Image

from keras_vitx.data import load_dataset, pipelines

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backend_free
PIXELS = [picture(20 + i, 24, seed=i) for i in range(12)]


def example(image, label, names=("image", "label"), **features):
    """A serialized `tf.train.Example` of an encoded image and integer labels."""
    lists = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        if isinstance(value, bytes)
        else tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        for name, value in ({names[0]: image, names[1]: label} | features).items()
    }
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()


def encoded(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def records(**features):
    """Records of 12 images of three classes."""
    return [example(encoded(image), [i % 3], **features) for i, image in enumerate(PIXELS)]


@pytest.fixture
def write(tmp_path):
    def write(name, records):
        with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
            for record in records:
                writer.write(record)
        return tmp_path / name

    return write


def test_shards_are_the_images_that_were_written(tmp_path, write):
    each = records(file_name=b"x" * 300)
    for i, name in enumerate(("train-00000-of-2", "train-00001-of-2", "validation-00000-of-1")):
        write(f"pets-{name.replace('-0', '.tfrecord-0', 1)}", each[4 * i : 4 * i + 4])
    (tmp_path / "label.labels.txt").write_text("cat\ndog\nbird\n")
    for source in (tmp_path, f"{tmp_path}/pets-*.tfrecord*", f"{tmp_path}/pets-*"):
        opened = load_dataset(source)
        assert opened.class_names == ("cat", "dog", "bird") and opened.test is None
        assert opened.train.labels.tolist() == [i % 3 for i in range(8)]
        assert opened.validation.labels.tolist() == [2, 0, 1, 2]
        found = [*opened.train.images, *opened.validation.images]
        assert all(map(np.array_equal, found, PIXELS)) and len(found) == 12
    assert "pets-train.tfrecord-00001-of-2, byte" in opened.train.id(4)
    result = pipelines(opened, stand_in(classes=3), 4, augmentation="rand_augment")
    batch, labels = result.train[0]
    assert batch.shape == (4, 16, 16, 3) and labels.shape == (4,)


def test_shards_of_validation_by_another_name(tmp_path, write):
    write("train-0-of-1", records())
    write("a.DEV.tfrecord", records()[:4])
    opened = load_dataset(f"{tmp_path}/*")
    assert (opened.train.size, opened.validation.size) == (12, 4)


SYNSETS = {1: b"n01440764", 2: b"n01443537", 5: b"n01494475"}
TEXTS = {1: b"daisy", 2: b"tulip", 5: b"rose"}


@pytest.mark.parametrize(
    "labels, wanted, options, names",
    [  # (labels in the file, labels, arguments or features or labels.txt, the first three names)
        ((1, 2, 5), "`first_label` must be 0 or 1.*None, labels in 1..5", {}, None),
        ((2, 3, 4), "`first_label` must be 0 or 1", {}, None),
        ((1, 2, 5), (0, 1, 4), {"first_label": 1}, ("0", "1", "2")),
        ((1, 2, 5), (1, 2, 5), {"first_label": 0}, ("0", "1", "2")),
        ((0, 2, 5), (0, 2, 5), {}, ("0", "1", "2")),
        ((1, 2, 5), (0, 1, 4), {"image/class/synset": SYNSETS}, ("n01440764", "n01443537")),
        ((1, 2, 5), (0, 1, 2), {"image/class/text": TEXTS}, ("daisy", "tulip", "rose")),
        ((1, 2, 5), (0, 2, 1), {"image/class/text": TEXTS, "txt": "daisy rose tulip"}, ("daisy",)),
        ((1, 2, 5), (0, 1, 4), {"image/class/text": TEXTS, "first_label": 1}, ("0", "1")),
        ((1, 2, 3), (0, 1, 2), {"txt": "a b c"}, ("a", "b", "c")),
        ((0, 1, 2), (0, 1, 2), {"txt": "a b c"}, ("a", "b", "c")),
        ((1, 2, 3), (0, 1, 2), {"txt": "1:a 2:b 3:c"}, ("a", "b", "c")),
        ((1, 2, 2), (1, 2, 2), {"txt": "\ufeff0:a 1:b 2:c  "}, ("a", "b", "c")),
        ((0, 1, 1), (0, 1, 1), {"txt": "1:a 3:b  "}, ("1:a", "3:b")),
        ((1, 2, 1), "`first_label` must be 0 or 1", {"txt": "a b c"}, None),
        ((1, 2, 9), "integers in", {"txt": "a b c", "first_label": 1}, None),
        ((-1, 1, 2), "must be integers", {}, None),
        ((5, 5, 5), "at least two classes", {"first_label": 1}, None),
    ],
)
def test_labels_of_imagenet_start_where_the_file_says(
    tmp_path, write, labels, wanted, options, names
):
    options = dict(options)
    if text := options.pop("txt", None):
        (tmp_path / "labels.txt").write_text(text.replace(" ", "\n"), "utf-8")
    features = {name: options.pop(name) for name in list(options) if name.startswith("image/")}
    records = [
        example(
            encoded(PIXELS[0]),
            [label],
            ("image/encoded", "image/class/label"),
            **{name: by_label[label] for name, by_label in features.items()},
        )
        for label in labels * 2
    ]
    shard = write("a.tfrecord", records)
    if isinstance(wanted, str):
        with pytest.raises(ValueError, match=wanted):
            load_dataset(shard, validation_split=0, **options)
        return
    source = load_dataset(shard, validation_split=0, **options)
    assert source.train.labels.tolist() == [*wanted, *wanted]
    assert source.class_names[: len(names)] == names


@pytest.mark.parametrize(
    "written, message",
    [
        ([example(b"", [1], ("pixels", "label"))], "Received: the features label, pixels"),
        ([example(b"", [1, 2])], "one image and one integer label"),
        ([example(b"", b"cat")], "one image and one integer label"),
        ([], "bad.tfrecord, without train"),
    ],
)
def test_other_features_are_named(write, written, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(write("bad.tfrecord", written))


def test_files_that_are_not_tfrecords_are_named(write):
    path = write("bad.tfrecord", [b"\xff" * 30])
    with pytest.raises(OSError, match=r"bad\.tfrecord can't be read as TFRecords: .*pars"):
        load_dataset(path)
    whole = write("bad.tfrecord", records()).read_bytes()
    for data, message in (
        (whole[:-40], "truncated"),
        # 1 TiB, with its checksum.
        (bytes(5) + b"\1\0\0" + b"\xaa=k\xe4" + bytes(99), "truncated"),
        (b"\x1f\x8b" + whole[2:], "compressed"),
        (whole[:12] + b"\xff" * 30 + whole[42:], "corrupted"),
    ):
        path.write_bytes(data)
        with pytest.raises(OSError, match=f"bad.tfrecord .*{message}"):
            load_dataset(path)
    source = load_dataset(write("a-test.tfrecord", records()))
    assert source.train is None and source.test.size == 12


def test_a_damaged_image_is_named(write):
    good = records()[0]
    split = load_dataset(write("a.tfrecord", [good, example(b"no image", [1])]), validation_split=0)
    assert split.train.images[0].shape == (20, 24, 3)
    with pytest.raises(OSError, match=r"a\.tfrecord, byte \d+ can't be decoded(?!.*BytesIO)"):
        split.train.images[1]
