"""Data: images and their preprocessing, augmentation, sources of labeled images, batches, names."""

import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
from harness import of_each, pictures, stand_in

import keras_vitx as kv
from keras_vitx.data import Augmentation, Mixing, from_files, load_dataset, pipelines
from keras_vitx.data.augmentation import PRESETS
from keras_vitx.data.images import preprocess_input
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.preprocessing import IMAGENET_INCEPTION, ModelInput, Preprocessing

BACKEND_FREE = True
X, Y = np.zeros((40, 6, 5, 3), "uint8"), np.arange(40) % 4
LEVEL, LEVELS = [0.5], [0.5, 0.5, 0.5]
PLAIN = SimpleNamespace(input_shape=(None, 8, 8, 3))
FLAT = keras.Sequential([keras.Input((3,))])


def changed(changes):
    return IMAGENET_INCEPTION.replace(**changes)


def prepared(images):
    return preprocess_input(images, stand_in())


def opened(source):
    return load_dataset(source)


def named(name):
    return kv.preprocess_input(X, name)


def layer(size=(32, 32), **options):
    return ImagePreprocessing(size, LEVELS, LEVELS, **options)


def batches(given):
    images, labels = pictures(24)
    options = {"labels": labels, "validation_split": 0, **given}
    return pipelines((images, options.pop("labels")), stand_in(), **options)


def load(files, tmp_path):
    """The dataset of a directory with these files, which are empty."""
    for file in map(tmp_path.joinpath, files.split()):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return load_dataset(tmp_path)


def table(lines, tmp_path):
    (tmp_path / "t.csv").write_text(lines.replace(" ", "\n"))
    return load_dataset(tmp_path / "t.csv")


def labeled(labels):
    return from_files(["a.jpg", "b.jpg"], labels)


def with_names(names):
    return from_files(["a.jpg", "b.jpg"], [0, 1], names)


def npz(given, tmp_path):
    np.savez(tmp_path / "set.npz", **given)
    return load_dataset(tmp_path / "set.npz")


def decoded(shape, model=None, **options):
    return kv.decode_predictions(np.zeros(shape), model=model, **options)


def without(library, call, given, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    call(given)


PREPROCESSING = {
    "`mean` must be a finite number per channel": {"std": (np.nan,) * 3},
    "and `std` a positive one": {"std": (1, 1)},
    "`crop_ratio` must be a number in (0, inf). Received: 0": {"crop_ratio": 0},
    "of `Preprocessing`. Received: 'crop'...'crop_ratio'": {"crop": 0.9},
}
IMAGES = {
    "channels). Received: (5,)": np.zeros(5),
    "float64 in 300.0..300": np.full((8, 8, 3), 300.0),
    "numbers in 0..255, or floats in 0..1. Received: float64 in nan": np.full((8, 8, 3), np.nan),
    "Received: int64": np.full((8, 8, 3), 256),
    "Received: bool": np.zeros((8, 8, 3), bool),
    "must be convertible to 3 channels": np.zeros((3, 8, 8), "uint8"),
}
AUGMENTATION = {
    "`crop` must be one of ... Received: 'center'": {"crop": "center"},
    "`scale` ... Received: (0.5, 0.2)": {"scale": (0.5, 0.2)},
    "`rand_augment` must be ... inc1": {"rand_augment": "m9-mstd0.5"},
    "`rand_augment` must have m in 0..10": {"rand_augment": "m11-inc1"},
    "`color_jitter` must be": {"rand_augment": "m9-inc1", "color_jitter": 0.4},
    "Did you mean 'crop_flip'? Received: 'crop_flop'": "crop_flop",
    "of `Augmentation`. Received: 'erase'": {"erase": 0.25},
}
MIXING = {
    "`cutmix` ... Received: nan": {"cutmix": float("nan")},
    "`group_size` must be an even number. Received: 3": {"group_size": 3},
    "of `Mixing`. Received: 'alpha'": {"alpha": 1},
}
BATCHES = {
    "`mixing` must be None for regression": {"mixing": Mixing(), "labels": np.linspace(-1, 1, 24)},
}
SOURCES = {
    "Received: ...-2... for 2": (X, [0, 1, -2, 3] * 10),
    "each of 40 images. Received: (3,)": (X, [0, 1, 2]),
    "(40, 2, 2)": (X, np.zeros((40, 2, 2))),
    "two classes. Received: array([7": (X, [7] * 40),
    "Received: ...nan... for 1": (X, np.where(np.eye(40)[1], np.nan, 0.5)),
    "Received: ...inf... for 1": (X, np.where(np.eye(2)[Y % 2] * [0, 1], np.inf, 0)),
    "Received: datetime.date(2020, 1, 1)": (X, np.full(40, "2020-01-01", "M8[D]")),
    "channels])...Received: (40, 6)": (X[:, :, 0, 0], Y),
    "Images of the train split ...int64": (X.astype("int64"), Y),
    "in 0..1, not normalized. Received: 'float32 in 255..255'": (X + np.float32(255), Y),
    "`source` must be a directory ...cifar10, and there is no such": "cifar10",
}
LAYOUTS = {
    "one sub-directory per class": "",
    "at least two classes": "cat/0.jpg",
    "not the one above it. Received: ...photos (cat, dog)": "photos/cat/0.jpg photos/dog/0.jpg",
    "of train/ in all splits. ...wolf": "train/cat/0.jpg train/dog/0.jpg val/wolf/0.jpg",
}
TABLES = {
    "must have file,label or file,label,split...['a', 'b']": "a,b x,y",
    "'note']": "file,label,note cat/0.jpg,a,b",
    "in each row": "file,label cat/0.jpg,a cat/1.jpg",
    "Received: [['file', 'label']]": "file,label",
    "at least two classes": "file,label cat/0.jpg,a",
    "`split` must be train, val or test": "file,label,split cat/0.jpg,a,later",
}
LABELS = {
    "finite numbers for each image. Received: None for b.jpg": ["a", None],
    "['b', 'a']...for a.jpg": [["b", "a"], ["a"]],
    "`labels`...{'a': 1}...for b.jpg": ["a", {"a": 1}],
    "`labels`...Received: ()": {"a.jpg": "cat"},
    "one spelling of each number. Received: ['1', '1.0']": ["1", "1.0"],
}
NAMES = {
    "`class_names` must be a list of different names": ["a", "a"],
    "of the form {0: 'cat', 1: 'dog'}. Received: {'cat'": {"cat": 0, "dog": 1},
    "Received: ['a', None]": ["a", None],
}
OTHER = from_files(["a.jpg", "b.jpg"], ["a", "b"]).train
KERAS_CV = {"augmentation": "keras_cv"}
NPZ = {
    "x_train and ... Received: ['images', 'labels']": {"images": X, "labels": Y},
    "each with a class name. Received: ...3... for 3": {
        "x_train": X,
        "y_train": Y,
        "class_names": list("abc"),
    },
}
ERRORS = {
    ImportError: {
        'needs keras-cv: ... extra "keras-cv"': partial(without, "keras_cv", batches, KERAS_CV),
        'pip install ".[data]"': partial(without, "tensorflow_datasets", opened, "tfds:cifar10"),
    },
    OSError: {
        "An image that was given as bytes can't ... none of": lambda: prepared(b"no image"),
    },
    ValueError: {
        **of_each(changed, PREPROCESSING),
        **of_each(prepared, IMAGES),
        **of_each(Augmentation.of, AUGMENTATION),
        **of_each(Mixing.of, MIXING),
        **of_each(batches, BATCHES),
        **of_each(opened, SOURCES),
        **of_each(load, LAYOUTS),
        **of_each(table, TABLES),
        **of_each(npz, NPZ),
        # Preprocessing of a model.
        "dictionary with `mean` and `std`. Received: None": lambda: Preprocessing.of(None),
        "with `mean` and `std`. Received: {'mean'": lambda: Preprocessing.of({"mean": [0.5]}),
        "`model.preprocessing` must be set": lambda: preprocess_input(X, PLAIN),
        "Received: (None, None, 32, 3)": lambda: ModelInput.of(stand_in((None, 32))),
        "each of 3 channels": lambda: ModelInput.of(stand_in(mean=LEVEL, std=LEVEL)),
        "No model is named 'CaiT_S244'...'CaiT_S24'": partial(named, "CaiT_S244"),
        # Resizing.
        "`crop_ratio` must be at most": lambda: preprocess_input(X, stand_in(crop_ratio=17)),
        "must resize images to at most": lambda: preprocess_input(X, stand_in((1, 1 << 22))),
        "one channel for each": lambda: layer()(np.zeros((1, 9, 9, 1), "uint8")),
        "must have an input of shape": lambda: ImagePreprocessing.of(FLAT),
        # Augmentation of images with other channels, mixing of labels.
        "must be off ...(1, 3)... Received: 4": lambda: PRESETS["rand_augment"].check(4),
        "must be off ...keras_cv... Received: 1": lambda: PRESETS["keras_cv"].check(1),
        "`group_size` must divide the batch of 6": lambda: Mixing(group_size=4).check(Y[:6], 4, 6),
        "Labels must be in 0..2. Received: 3": lambda: Mixing().check(Y, 3, 6),
        # Sources.
        "validation_split...1": lambda: load_dataset((X, Y), validation_split=1),
        "classes of two": lambda: load_dataset((X, np.arange(40)), validation_split=0.5),
        "`validation_split` must name ": lambda: load_dataset((X, Y), validation_split=["?"]),
        "each of 1 images. Received: (2,)": lambda: from_files(["a.jpg"], ["a", "b"]),
        **of_each(labeled, LABELS),
        **of_each(with_names, NAMES),
        "`split` must be ...later": lambda: from_files(["a.jpg"], [0], split=["later"]),
        "must have the dataset's class names": lambda: replace(load_dataset((X, Y)), test=OTHER),
        # Names of outputs.
        "as many classes as ImageNet's 1000, or pass the `model`. Received: 10": lambda: decoded(
            (1, 10)
        ),
        "the 1 of `class_names`...Received: 3": lambda: decoded(
            (1, 3), SimpleNamespace(class_names=["a"])
        ),
        "Received: (1000,)": lambda: decoded((1000,)),
        "`top` must be an integer in [1, inf)": lambda: decoded((1, 1000), top=0),
    },
}
