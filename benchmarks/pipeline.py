"""Images per second of the pipeline, beside timm's loader in the same run.

    python benchmarks/pipeline.py [--images 512] [--size 224] [--batch-size 64] [--workers 0 1 2]

All read the same synthetic JPEG files of 500 x 375 pixels, about 80 kB each.

The first table is the work of one core: images per second of processor time, of all threads of
the process, for ours and timm's in turns. "uint8" is what a worker does for a device: decode,
augment, mix, collate. "float32" has normalization and erasing as well, as on a CPU. timm mixes in
its collate function, as ours.

The second table is wall time with worker processes, and the processor time of workers and parent
together, after the first batches; on a busy machine only the latter is meaningful.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from contenders import skip_torchvision
from PIL import Image, ImageOps

import keras_vitx as kv
from keras_vitx.data import loading
from keras_vitx.preprocessing import IMAGENET_DEFAULT

HEIGHT, WIDTH = 375, 500
POSTERIZE = ImageOps.posterize
RECIPES = {
    "crop, flip": {"augmentation": "random_resized_crop"},
    "DeiT": {"augmentation": "rand_augment", "mixing": kv.data.Mixing()},
}


def photographs(count: int) -> Iterator[np.ndarray]:
    """Smooth shading, edges and noise, which take as many bytes as a photograph."""
    random = np.random.default_rng(0)
    for _ in range(count):
        coarse = Image.fromarray(random.integers(256, size=(12, 16, 3), dtype="uint8"))
        image = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), "float32")
        yield np.clip(image + random.normal(0, 9, image.shape), 0, 255).astype("uint8")


def write_files(directory: Path, count: int) -> None:
    for index, image in enumerate(photographs(count)):
        path = directory / "ab"[index % 2] / f"{index:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, quality=92)


def our_batches(directory: Path, size: int, batch_size: int, name: str, workers=0, pixels=False):
    shapes = {"input_shape": (None, size, size, 3), "output_shape": (None, 2)}
    spec = SimpleNamespace(**shapes, preprocessing=IMAGENET_DEFAULT)
    settings = {"validation_split": 0, "workers": workers, "pixels": pixels}
    return kv.data.pipelines(directory, spec, batch_size, **settings, **RECIPES[name]).train


def timm_loader(directory: Path, size: int, batch_size: int, name: str, workers: int = 0):
    import torch

    skip_torchvision()
    from timm.data import FastCollateMixup, ImageDataset, create_loader

    # Since Pillow 13, timm's posterization to 0 bits raises.
    ImageOps.posterize = lambda picture, bits: POSTERIZE(picture, max(bits, 1))
    deit = name == "DeiT"
    mixup = FastCollateMixup(0.8, 1.0, label_smoothing=0.0, num_classes=2) if deit else None
    return create_loader(
        ImageDataset(str(directory)),
        (3, size, size),
        batch_size,
        is_training=True,
        re_prob=0.25 if deit else 0.0,
        re_mode="pixel",
        color_jitter=0.0,
        auto_augment="rand-m9-mstd0.5-inc1" if deit else None,
        interpolation="bicubic",
        mean=IMAGENET_DEFAULT.mean,
        std=IMAGENET_DEFAULT.std,
        num_workers=workers,
        collate_fn=mixup,
        pin_memory=False,
        device=torch.device("cpu"),
        persistent_workers=workers > 0,
    )


def endless(batches: Iterable) -> Iterator:
    while True:
        yield from batches


def in_this_thread(batches) -> Iterator:
    """Our batches, made in this thread."""
    yield from map(batches.dataset().__getitem__, itertools.count())


def per_core(batches: Iterator, steps: int, size: int) -> float:
    """Images per second of processor time."""
    start = time.process_time()
    for _ in range(steps):
        next(batches)
    return steps * size / (time.process_time() - start)


def in_turns(sides: dict[str, Iterator], steps: int, size: int, turns: int) -> dict[str, float]:
    """The median rate of each side, measured in turns after a first one that is not counted."""
    rates = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name, batches in sides.items():
            rate = per_core(batches, steps, size)
            if turn:
                rates[name].append(rate)
    return {name: statistics.median(found) for name, found in rates.items()}


def processor_time(pids: Iterable[int]) -> float:
    """Seconds of processor time of running processes (Linux)."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def with_workers(make: Callable[[int], Iterable], workers: int, steps: int, size: int):
    """Images per second of wall time and of processor time, of this process and its workers."""
    import psutil

    batches = endless(make(workers))
    for _ in range(2 * workers + 2):
        next(batches)
    pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    begun, start = processor_time(pids), time.perf_counter()
    for _ in range(steps):
        next(batches)
    wall = time.perf_counter() - start
    return steps * size / wall, steps * size / (processor_time(pids) - begun)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    options = parser.parse_args()
    size, steps = options.batch_size, options.images // options.batch_size

    import torch

    torch.set_num_threads(1)
    loading.IN_MEMORY_BYTES = 0  # as with a data set that does not fit in memory
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        write_files(directory, options.images)
        arguments = directory, options.size, size
        print("| images/s of one core | ours, uint8 | ours, float32 | timm, float32 | ratio |")
        print("|---|---|---|---|---|")
        for name in RECIPES:
            sides = {
                "uint8": in_this_thread(our_batches(*arguments, name, pixels=True)),
                "float32": in_this_thread(our_batches(*arguments, name)),
                "timm": endless(timm_loader(*arguments, name)),
            }
            found = in_turns(sides, steps, size, options.turns)
            row = " | ".join(f"{rate:.0f}" for rate in found.values())
            print(f"| {name} | {row} | {found['float32'] / found['timm']:.2f} |", flush=True)
        print(f"\n| DeiT, {os.cpu_count()} cores, workers | ours, wall | ours, per core "
              "| timm, wall | timm, per core |\n|---|---|---|---|---|")  # fmt: skip
        for workers in options.workers:
            rates = [
                with_workers(lambda w, side=side: side(*arguments, "DeiT", w), workers, steps, size)
                for side in (our_batches, timm_loader)
            ]
            row = " | ".join(f"{rate:.0f}" for pair in rates for rate in pair)
            print(f"| {workers} | {row} |", flush=True)


if __name__ == "__main__":
    main()
