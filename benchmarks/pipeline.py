"""Images per second of the pipeline alone, over those of a training step.

    python benchmarks/pipeline.py [--model ViT_Ti] [--size 224] [--images 256] [--batch-size 32]

Prints two tables: the sources with RandAugment and MixUp or CutMix, and the augmentations on
arrays. "x step" is the pipeline's rate over that of training steps on a batch that is already in
memory: above 1, the pipeline keeps up. Sources hold the same synthetic images of 500 x 375
pixels, as JPEG of about 80 kB; a rate is the faster of two passes after one that is not
counted. Sources that need a missing package are left out.
"""

import argparse
import importlib.util
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
from PIL import Image

import keras_vitx as kv
from keras_vitx.data import batches as batches_module
from keras_vitx.data.sources.parts import Part, Source
from keras_vitx.data.sources.tfds import EncodedImages

HEIGHT, WIDTH = 375, 500
PASSES = 2


def photographs(count: int) -> Iterator[np.ndarray]:
    """Smooth shading, edges and noise, which take as many bytes as a photograph."""
    random = np.random.default_rng(0)
    for _ in range(count):
        coarse = Image.fromarray(random.integers(256, size=(12, 16, 3), dtype="uint8"))
        image = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), "float32")
        yield np.clip(image + random.normal(0, 9, image.shape), 0, 255).astype("uint8")


def varint(value: int) -> bytes:
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def write_tfrecords(path: Path, encoded: list[bytes], labels: np.ndarray) -> None:
    """Write `tf.train.Example`s without checksums, which our reader ignores."""
    with path.open("wb") as file:
        for data, label in zip(encoded, labels, strict=True):
            values = {
                "image": block(1, block(1, data)),
                "label": block(3, block(1, bytes([label]))),
            }
            entries = (block(1, block(1, k.encode()) + block(2, v)) for k, v in values.items())
            record = block(1, b"".join(entries))
            file.write(struct.pack("<QI", len(record), 0) + record + bytes(4))


def sources(folder: Path, count: int) -> dict[str, Source]:
    """The same images from each kind of source."""
    labels, images, encoded = np.arange(count) % 2, [], []
    for index, image in enumerate(photographs(count)):
        path = folder / "files" / "ab"[labels[index]] / f"{index:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, quality=92)
        encoded.append(path.read_bytes())
        images.append(image)
    write_tfrecords(folder / "images.tfrecord", encoded, labels)
    examples = [{"image": data} for data in encoded]
    part = Part(EncodedImages(examples, np.arange(count), "tfds"), labels.astype("int32"))
    return {
        "arrays": kv.data.open_source((np.stack(images), labels), validation_split=0),
        "folder of JPEG": kv.data.open_source(folder / "files", validation_split=0),
        "tfds": Source("tfds", ("a", "b"), part),
        "TFRecord": kv.data.open_source(folder / "images.tfrecord", validation_split=0),
    }


def rate(one_pass: Callable[[], int]) -> float:
    """Images per second of the fastest pass."""
    one_pass()
    rates = []
    for _ in range(PASSES):
        start = time.perf_counter()
        count = one_pass()
        rates.append(count / (time.perf_counter() - start))
    return max(rates)


def rate_of_batches(train, size: int, steps: int) -> float:
    iterator = iter(train) if not hasattr(train, "set_epoch") else None

    def one_pass() -> int:
        if iterator is None:
            return sum(len(images) for images, _ in train)
        return sum(size for _ in range(steps) if next(iterator))

    return rate(one_pass)


def rate_of_steps(model, size: int) -> float:
    random = np.random.default_rng(0)
    images = random.normal(size=(size, *model.input_shape[1:])).astype("float32")
    labels = random.random((size, model.output_shape[-1])).astype("float32")
    model.compile("adamw", keras.losses.CategoricalCrossentropy())

    def one_pass() -> int:
        for _ in range(2):
            loss = model.train_on_batch(images, labels)
        float(loss)
        return 2 * size

    return rate(one_pass)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT_Ti")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    size, steps = options.batch_size, options.images // options.batch_size
    batches_module.IN_MEMORY_BYTES = 0  # as with a data set that does not fit in memory
    model = kv.create_model(options.model, input_shape=(options.size, options.size, 3), classes=2)
    step = rate_of_steps(model, size)
    print(
        f"{os.cpu_count()} cores, {keras.backend.backend()}, {options.model}, {options.size} x "
        f"{options.size}, batches of {size}: {step:.0f} images/s in training steps"
    )

    def row(name: str, train) -> None:
        found = rate_of_batches(train, size, steps)
        print(f"| {name} | {found:.0f} | {found / step:.1f} |", flush=True)

    def pipeline(source, augmentation, mixing=None):
        return kv.data.pipelines(
            source, model, size, augmentation=augmentation, mixing=mixing
        ).train

    strong = "rand_augment", kv.data.Mixing()
    with tempfile.TemporaryDirectory() as folder:
        opened = sources(Path(folder), options.images)
        print("\n| source | images/s | x step |\n|---|---|---|")
        for name, source in opened.items():
            row(name, pipeline(source, *strong))
        if importlib.util.find_spec("grain"):
            folder_source = opened["folder of JPEG"]
            row(
                "Grain, folder",
                kv.data.grain_batches(
                    folder_source, model, size, augmentation=strong[0], mixing=strong[1]
                ),
            )
        print("\n| augmentation of arrays | images/s | x step |\n|---|---|---|")
        arrays = opened["arrays"]
        for name in (None, "crop_flip", "random_resized_crop", "rand_augment"):
            row(str(name), pipeline(arrays, name))
        row("rand_augment, mixing", pipeline(arrays, *strong))
        if importlib.util.find_spec("keras_cv"):
            row("keras_cv", pipeline(arrays, "keras_cv"))


if __name__ == "__main__":
    main()
