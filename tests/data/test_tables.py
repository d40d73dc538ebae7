import numpy as np
import pytest

from keras_vitx.data import load_dataset

pytestmark = pytest.mark.backend_free


@pytest.fixture
def write(pets):
    def write(*lines):
        (pets / "table.csv").write_text("\n".join(lines) + "\n")
        return pets / "table.csv"

    return write


def test_files_and_classes(write):
    lines = [f"cat/{i}.jpg,cat" for i in range(5)] + [f"dog/{i}.jpg,dog" for i in range(5)]
    source = load_dataset(write("File,Label", *lines), validation_split=0.2)
    assert source.class_names == ("cat", "dog")
    assert np.bincount(source.train.labels).tolist() == [4, 4]
    assert set(source.train.names() + source.validation.names()) == {x.split(",")[0] for x in lines}
    assert source.train.images[0].shape[-1] == 3


def test_several_classes_per_image_and_splits(write):
    path = write(
        "filename,tags,split",
        "cat/0.jpg,soft;grey,train",
        "cat/1.jpg,,train",
        "dog/0.jpg,loud,Val",
        "dog/1.jpg, loud ; soft,test",
    )
    source = load_dataset(path)
    assert source.class_names == ("grey", "loud", "soft")
    assert source.train.labels.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert source.validation.labels.tolist() == [[0, 1, 0]]
    assert source.test.labels.tolist() == [[0, 1, 1]]


def test_a_column_per_class_and_numbers(write):
    source = load_dataset(
        write("image,MEL,NV", "cat/0.jpg,1.0,0.0", "cat/1.jpg,0,1"), validation_split=0
    )
    assert source.class_names == ("MEL", "NV") and source.train.labels.tolist() == [[1, 0], [0, 1]]
    source = load_dataset(
        write("path,label", "cat/0.jpg,23.0", "cat/1.jpg,31.0"), validation_split=0
    )
    assert source.class_names is None and source.train.labels.tolist() == [23, 31]


@pytest.mark.parametrize(
    "lines, error, message",
    [
        (["a,b", "x,y"], ValueError, r"a column `file`.*Received: the columns a, b"),
        (["file,label"], ValueError, "0 rows"),
        (["file,label", "cat/none.jpg,a"], OSError, "1 files that do not exist"),
        (["file,label", "cat/0.jpg,a"], ValueError, "at least two classes"),
        (
            ["file,label", "cat/0.jpg,a", "cat/1.jpg,"],
            ValueError,
            "row 3 of the table has no label",
        ),
        (
            ["file,label,split", "cat/0.jpg,a,later"],
            ValueError,
            "unknown split 'later'|two classes",
        ),
        (["file,a,b", "cat/0.jpg,1,x"], ValueError, "numbers in 0..1 in the columns a, b"),
    ],
)
def test_wrong_tables_are_named(write, lines, error, message):
    with pytest.raises(error, match=message):
        load_dataset(write(*lines))
