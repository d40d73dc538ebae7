"""Data: images and their preprocessing, augmentation, sources of labeled images, batches, names."""

import sys
from dataclasses import FrozenInstanceError
from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
from harness import of_each, pictures, stand_in
from PIL import Image

import keras_vitx as kv
from keras_vitx.data import Augmentation, Mixing, batches_of_files, load_dataset, pipelines
from keras_vitx.data.augmentation import PRESETS
from keras_vitx.data.images import decode_image, preprocess_input
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.preprocessing import IMAGENET_INCEPTION, ModelInput, Preprocessing
from keras_vitx.training.evaluate import _match_outputs

BACKEND_FREE = True
X, Y = np.zeros((40, 6, 5, 3), "uint8"), np.arange(40) % 4
LEVEL, LEVELS = [0.5], [0.5, 0.5, 0.5]
PLAIN = SimpleNamespace(input_shape=(None, 8, 8, 3))
FLAT = keras.Sequential([keras.Input((3,))])
NONE = {"source": "no/such/folder"}


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


def input_of(*shape, crop_ratio=1.0):
    return ModelInput((None, *shape), Preprocessing(*[[0.5] * shape[-1]] * 2, crop_ratio))


def batches(given):
    images, labels = pictures(24)
    options = {"channels": 3, "classes": 4, "labels": labels, "validation_split": 0, **given}
    channels, classes, labels = (options.pop(name) for name in ("channels", "classes", "labels"))
    source = options.pop("source", (np.repeat(images[..., :1], channels, axis=-1), labels))
    return pipelines(source, stand_in(channels=channels, classes=classes), **options)


def load(files, tmp_path):
    """The dataset of a directory with these files, which are empty."""
    for file in map(tmp_path.joinpath, files.split()):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return load_dataset(tmp_path)


def table(lines, tmp_path):
    """The dataset of a table beside cat/0.jpg, cat/1.jpg and dog/0.jpg."""
    (tmp_path / "t.csv").write_text(lines.replace(" ", "\n"))
    for image in ("cat/0.jpg", "cat/1.jpg", "dog/0.jpg"):
        (tmp_path / image).parent.mkdir(exist_ok=True)
        (tmp_path / image).touch()
    return load_dataset(tmp_path / "t.csv", validation_split=0)


def npz(given, tmp_path):
    file = tmp_path / "set.npz"
    file.write_bytes(given) if isinstance(given, bytes) else np.savez(file, **given)
    return load_dataset(file)


def decoded(shape, model=None, **options):
    return kv.decode_predictions(np.zeros(shape), model=model, **options)


def matched(given):
    """The order of labels among the names of a model's outputs, or their number."""
    outputs, labels = given
    count = outputs if isinstance(outputs, int) else len(outputs)
    names = None if isinstance(outputs, int) else outputs
    model = SimpleNamespace(class_names=names, output_shape=(None, count))
    return _match_outputs(model, labels, count)


def without(library, call, given, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    call(given)


PREPROCESSING = {
    "`mean` must be one finite number per channel. Received: 0.5": {"mean": 0.5},
    "`std` must be one finite number per channel. Received: (nan": {"std": (np.nan,) * 3},
    "must have one value per channel": {"std": (1, 1)},
    "`std` must be positive": {"std": (1, 0, 1)},
    "`crop_ratio` must be a number in (0, inf). Received: 0": {"crop_ratio": 0},
    "`crop_ratio` must be a number in (0, inf). Received: '0.9'": {"crop_ratio": "0.9"},
    "`interpolation` must be one of 'bicubic', ... Received: 'bicubik'": {
        "interpolation": "bicubik"
    },
    "of `Preprocessing`. Received: 'crop'...'crop_ratio'": {"crop": 0.9},
}
IMAGES = {
    "Received: shape (5,)": np.zeros(5),
    "float64 in 300.0..300": np.full((8, 8, 3), 300.0),
    "floats in 0..1...nan": np.full((8, 8, 3), np.nan),
    "Received: int64": np.full((8, 8, 3), 256),
    "Received: bool": np.zeros((8, 8, 3), bool),
    "must be convertible to 3 channels": np.zeros((3, 8, 8), "uint8"),
    "must be at least one image. Received: none": [],
    "Received: shape (8, 0, 3)": np.zeros((8, 0, 3), "uint8"),
    "Received: shape (0, 8, 3)": Image.new("RGB", (8, 0)),
}
AUGMENTATION = {
    "`crop` must be one of ... Received: 'center'": {"crop": "center"},
    "`scale` ... Received: (0.5, 0.2)": {"scale": (0.5, 0.2)},
    "`scale` ... in (0, 1]. Received: (0.5, 1.2)": {"scale": (0.5, 1.2)},
    "`ratio` ... Received: 1.5": {"ratio": 1.5},
    "`flip` must be a number in [0, 1]. Received: 1.5": {"flip": 1.5},
    "`repeats` ... Received: 0": {"repeats": 0},
    "`by` must be one of": {"by": "albumentations"},
    "`rand_augment` must be ... inc1": {"rand_augment": "m9-mstd0.5"},
    "`rand_augment` must have m in 0..10": {"rand_augment": "m11-inc1"},
    "`color_jitter` must be": {"rand_augment": "m9-inc1", "color_jitter": 0.4},
    "Received: 'crop_flop'. Did you mean 'crop_flip'": "crop_flop",
    "of `Augmentation`. Received: 'erase'": {"erase": 0.25},
}
MIXING = {
    "`mixup` must be a number in [0, inf). Received: -1": {"mixup": -1},
    "`cutmix` ... Received: nan": {"cutmix": float("nan")},
    "`group_size` must be an even number. Received: 3": {"group_size": 3},
    "`switch` ... Received: 'half'": {"switch": "half"},
    "of `Mixing`. Received: 'alpha'": {"alpha": 1},
    "`mixing` must be a Mixing or None. Received: 0.8": 0.8,
}
BATCHES = {
    "3 outputs, but the source arrays has 4 classes": {"classes": 3},
    "`sampling` ...'even'": {"sampling": "even"},
    "`sampling` ... Received: 'cat'": {"sampling": {"cat": 1}},
    "`sampling` ...24 training images": {"sampling": [1, 2]},
    "`sampling` ...at least 0": {"sampling": [-1] * 24},
    "`cutmix` must be 0...1.0": {"mixing": Mixing(), "targets": print},
    "For regression, use no mixing.": {"mixing": Mixing(), "labels": np.linspace(-1, 1, 24)},
    "`rand_augment` ... Received: 4 channels": {"augmentation": "rand_augment", "channels": 4},
    # Found before the source is opened.
    "`batch_size` ... Received: 0": {**NONE, "batch_size": 0},
    "`batch_size` ... Received: 2.5": {**NONE, "batch_size": 2.5},
    "`seed` ... Received: -1": {**NONE, "seed": -1},
    "`fraction` ": {**NONE, "fraction": 0},
    "Did you mean 'random_resized_crop'": {**NONE, "augmentation": "random_resize_crop"},
}
SOURCES = {
    "Received: -2": (X, [0, 1, -2, 3] * 10),
    "Received: nan": (X, [0, 1, np.nan, 3] * 10),
    "3 labels for 40 images": (X, [0, 1, 2]),
    "integers or floats, not <U3. Received: 'cat', 'dog'": (X, ["cat", "dog"] * 20),
    "Received: shape (40, 2, 2)": (X, np.zeros((40, 2, 2))),
    str(2**40): (X, [0, 2**40] * 20),
    "every label is 7": (X, [7] * 40),
    "not empty": (X[:0], Y),
    "Received: int64": (X.astype("int64"), Y),
    "Received: float32 in 255..255": (X + np.float32(255), Y),
    "one size": ([np.zeros((4, 4, 3)), np.zeros((5, 4, 3))], Y),
    "one form ... int32 ... float32 (40, 4)": ((X, Y), (X, np.eye(4)[Y])),
    "no class has two images": (X, np.arange(40)),
    '`source` ..."fashion_mnist", "tfds:NAME", a directory': "cifar10",
    "`source` ...NoneType...a directory": None,
    "does not exist. Expected ...TFRecord shards": "/no/such/none-*.tfrecord",
}
LAYOUTS = {
    "0 class directories ... one sub-directory per class": "",
    "1 class directories ... one sub-directory per class": "cat/0.jpg",
    "readable image ... none of fish": "cat/0.jpg dog/0.jpg fish/x.cr2",
    "different numbers. Received: 01, 1": "1/0.jpg 01/0.jpg",
    "with wolf": "train/cat/0.jpg train/dog/0.jpg val/wolf/0.jpg",
    "either val/ or validation/": "train/a/0.jpg train/b/0.jpg val/a/0.jpg validation/a/0.jpg",
}
TABLES = {
    "a column `file`...Received: the columns a, b": "a,b x,y",
    "at least two classes": "file,label cat/0.jpg,a",
    "none in row 3": "file,label cat/0.jpg,a cat/1.jpg,",
    "Received: 'later'": "file,label,split cat/0.jpg,a,later",
    "numbers in 0..1 ... with the columns a, b": "file,a,b cat/0.jpg,1,x",
    "one label and split per file": "file,label cat/0.jpg,a cat/0.jpg,b",
    "label and split per": "file,label,split cat/0.jpg,a,val ./cat/0.jpg,a,train",
    "`separator` must be ... 'a|b'": "file,label cat/0.jpg,a|b cat/1.jpg,b",
    "`separator` ... \"['a']\"": "file,label cat/0.jpg,['a'] cat/1.jpg,['b']",
    "`separator`...'a,b'": "file;label cat/0.jpg;a,b cat/1.jpg;a dog/0.jpg;b",
    "`separator`...'1,5'": "file;label cat/0.jpg;1,5 cat/1.jpg;2,5",
    "one column `label` or one per class": "file,class,label cat/0.jpg,pet,a",
    "3 values in line 2": "file,label cat/0.jpg,a,b",
    "1 values in line 2": "file,label cat/0.jpg",
    "in its column of splits...Received: '0'": "file,label,fold cat/0.jpg,a,0",
    "column of splits...Received: '0'": "file,label,is_train cat/0.jpg,a,0",
    "true or false in is_valid": "file,label,is_valid cat/0.jpg,a,maybe",
}
KERAS_CV = {"augmentation": "keras_cv"}
DAMAGED = {"npz can't be": b"", "npz can't": b"of no kind", "set.npz": b"PK\x03\x04 cut"}
NPZ = {
    "x_train and ... Received: images, labels": {"images": X, "labels": Y},
    "in 0..2. Received: 3": {"x_train": X, "y_train": Y, "class_names": list("abc")},
}
MATCHED = {
    "must have only classes ...no `class_names`": (12, [str(i) for i in range(1, 13)]),
    "Received: cat, dog": (12, ["cat", "dog"]),
    "Received: x": (["a", "b", "c"], ["c", "x"]),
    "Received: 3.": (["a", "b", "c"], ["2", "3"]),
}
ERRORS = {
    FrozenInstanceError: {"crop_ratio": lambda: setattr(IMAGENET_INCEPTION, "crop_ratio", 0.9)},
    ImportError: {
        'needs keras-cv: ... extra "keras-cv"': partial(without, "keras_cv", batches, KERAS_CV),
        'pip install ".[data]"': partial(without, "tensorflow_datasets", opened, "tfds:cifar10"),
    },
    OSError: {
        "1 files that do not exist": lambda tmp_path: table("file,label none.jpg,a", tmp_path),
        **of_each(npz, DAMAGED),
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
        **of_each(matched, MATCHED),
        # Preprocessing of a model.
        "dictionary with `mean` and `std`. Received: None": lambda: Preprocessing.of(None),
        "with `mean` and `std`. Received: {'mean'": lambda: Preprocessing.of({"mean": [0.5]}),
        "`model.preprocessing` must be set": lambda: preprocess_input(X, PLAIN),
        "Received: (None, None, 32, 3)": lambda: ModelInput.of(stand_in((None, 32))),
        "each of 3 channels": lambda: ModelInput.of(stand_in(mean=LEVEL, std=LEVEL)),
        "at most 33,554,432 values": lambda: input_of(20_000, 20_000, 3),
        "most 33,554,432 values": lambda: input_of(32, 32, 3, crop_ratio=0.002),
        "No model or checkpoint is named 'CaiT_S244'...'CaiT_S24'": partial(named, "CaiT_S244"),
        # Resizing.
        "`crop_ratio` must be at most": lambda: preprocess_input(X, stand_in(crop_ratio=17)),
        "must resize images to at most": lambda: preprocess_input(X, stand_in((1, 1 << 22))),
        "`channels` must be one of 1, 3. Received: 4": lambda: decode_image("any.png", channels=4),
        "`batch_size` must be ...Received: 0.": lambda: batches_of_files([], stand_in(), 0),
        "`size` must be ... (32, 0)": lambda: layer((32, 0)),
        "at most the shorter side": lambda: layer(crop_ratio=100.0),
        "one channel for each": lambda: layer()(np.zeros((1, 9, 9, 1), "uint8")),
        "must have an input of shape": lambda: ImagePreprocessing.of(FLAT),
        # Augmentation of images with other channels, mixing of labels.
        "must be off ... 1 or 3 ...Received: 4": lambda: PRESETS["rand_augment"].check(4),
        "must be off ...keras_cv... Received: 1": lambda: PRESETS["keras_cv"].check(1),
        "`group_size` must divide the batch of 6": lambda: Mixing(group_size=4).check(Y[:6], 4, 6),
        "Labels must be in 0..2. Received: 3": lambda: Mixing().check(Y, 3, 6),
        "regression, use no mixing": lambda: Mixing().check(np.array([[0.5, 1.5]]), 2, 6),
        # Sources.
        "validation_split...1": lambda: load_dataset((X, Y), validation_split=1),
        "validation_split...'0.1'": lambda: load_dataset((X, Y), validation_split="0.1"),
        "validation_split...nan": lambda: load_dataset((X, Y), validation_split=float("nan")),
        "`validation_split` must name images": lambda: load_dataset((X, Y), validation_split=["?"]),
        "`first_label` must be one of 0, 1, or None": lambda: load_dataset((X, Y), first_label=2),
        # Names of outputs.
        "ImageNet with 1000 classes. Received: 10": lambda: decoded((1, 10)),
        "with 1 classes. Received: 3": lambda: decoded((1, 3), SimpleNamespace(class_names=["a"])),
        "Received: (1000,)": lambda: decoded((1000,)),
        "`top` must be an integer in [1, inf)": lambda: decoded((1, 1000), top=0),
    },
}
