"""Write the tables of docs/real-network.md, and draw pictures of the network's attention.

    KERAS_BACKEND=torch python benchmarks/pretrained_report.py runs/real docs/real-network.md
    KERAS_BACKEND=torch python benchmarks/pretrained_report.py runs/real docs/real-network.md \\
        --weights dinov2_vits14.safetensors --reference reference.npz --pictures docs/figures

The results are those of benchmarks/pretrained.py. A table replaces that with the same header.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import tables
from PIL import Image
from pretrained import COLORS, FORMS, IMAGES, MEASURES, SIMILARITIES, VARIANTS, WEIGHTS, network

from keras_vitx import analysis

PICTURES = {"class": 1100, "heads": 1050, "query": 980, "similarity": 460, "entropy": 460}
"""Names of the pictures, and their widths in pixels."""
Rows = list[list[str]]
BACKENDS = ("torch", "jax", "tensorflow")
NAMES = [n for name in MEASURES for n in ((name, f"{name}-") if name in SIMILARITIES else (name,))]
NAMES.remove("uniform_entropy")
TRAINED = 4
"""Number of blocks that were fine-tuned."""
UNTOLD = ("feature_similarity", "attention_branch", "mlp_branch")
AFTER = ("entropy", "map_similarity-", "head_similarity-", "attention_branch")
"""Measures of fine-tuned networks."""


def read(directory: Path, *parts: Any) -> dict[str, Any] | None:
    """Return a result of `pretrained.py`, or None if it is not there."""
    name = "-".join(map(str, parts)).replace(",", "").replace(" ", "-")
    file = directory / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def compared(directory: Path) -> Rows:
    rows = [["form", "backend", "s to load", "difference", "cosine", "lowest", "class token"]]
    for form in FORMS:
        for backend in BACKENDS:
            if result := read(directory, "compare", form, backend):
                seconds, difference, *cosines = result.values()
                figures = (f"{each:.6f}" for each in cosines)
                rows.append([form, backend, f"{seconds:.1f}", f"{difference:.1e}", *figures])
    return rows


def by_block(directory: Path, images: str) -> Rows:
    """Return measures of each block, and their mean over blocks with random weights."""
    trained, random = (read(directory, "blocks", weights, images) for weights in WEIGHTS)
    if not (trained and random):
        return []
    count = len(trained["entropy"])
    rows = [[images, *map(str, range(1, count + 1)), "random"]]
    for name in NAMES:
        values = [f"{value:.2f}" for value in trained[name]]
        title = f"{name[:-1]}, centered" if name.endswith("-") else name
        # Of a network that starts with LayerScale near 0, branches and features say nothing.
        at_start = "" if name in UNTOLD else f"{abs(np.mean(random[name])):.2f}"
        rows.append([title, *[""] * (count - len(values)), *values, at_start])
    return rows


def tuned(directory: Path) -> Rows:
    head = ["modification", "added", "start", "moved", "accuracy, %", "gained, lost", "min"]
    rows = [head, *([name, "", "", "", value, "", ""] for name, value in probed(directory))]
    for name, seeds in results_of(directory):
        values = [100 * each["accuracy"] for each in seeds.values()]
        changes = []
        for seed, each in seeds.items():
            plain = read(directory, "tune", "plain", seed)
            pairs = list(zip(plain["right"] if plain else "", each["right"], strict=False))
            changes.append(f"{pairs.count(('0', '1'))}, {pairs.count(('1', '0'))}")
        first = seeds[min(seeds)]
        rows.append(
            [
                *(name, str(first["parameters"]), f"{first['difference_at_start']:.0e}"),
                f"{max(each['moved'] for each in seeds.values()):.3f}",
                f"{np.mean(values):.2f} ({', '.join(f'{v:.2f}' for v in values)})",
                "" if name == "plain" else "; ".join(changes),
                f"{np.mean([each['seconds'] for each in seeds.values()]) / 60:.1f}",
            ]
        )
    return rows


def after_tuning(directory: Path) -> Rows:
    """Return means over the blocks that were trained and over seeds."""
    rows = [["fine-tuned", *(name.replace("-", ", centered") for name in AFTER)]]
    for name, seeds in results_of(directory):
        measures = [each["measures"] for each in seeds.values()]
        deep = (np.mean([each[m][-TRAINED:] for each in measures]) for m in AFTER)
        rows.append([name, *(f"{value:.3f}" for value in deep)])
    return rows


def probed(directory: Path) -> list[tuple[str, str]]:
    result = read(directory, "probe") or {}
    return [(name, f"{100 * value:.2f}") for name, value in result.items()]


def results_of(directory: Path) -> list[tuple[str, dict[int, dict[str, Any]]]]:
    """Return the results of fine-tuning by modification and seed."""
    found = {
        name: {seed: r for seed in range(10) if (r := read(directory, "tune", name, seed))}
        for name in VARIANTS
    }
    return [(name, seeds) for name, seeds in found.items() if seeds]


def draw(options: argparse.Namespace) -> None:
    """Draw the attention of the class token and of a patch, and measures by block."""
    with np.load(options.reference) as arrays:
        images = arrays["x"]
    shown = np.clip(images * COLORS.std + COLORS.mean, 0, 1).astype("float32")
    model = network(options, images.shape[1], include_top=False)
    depth, middle = len(model.blocks), model.grid[0] // 2
    some = [f"blocks_{index}" for index in sorted({0, depth // 3, 2 * depth // 3, depth - 1})]
    path = {name: options.pictures / f"real-{name}.png" for name in PICTURES}
    cat = slice(1, 2)
    analysis.plot_class_attention(model, images[1:3], path["class"], shown[1:3])
    analysis.plot_class_attention(model, images[cat], path["heads"], shown[cat], mode="heads")
    analysis.plot_query({"": model}, images[cat], path["query"], (middle,) * 2, some, shown[cat])
    curves = {}
    for weights in WEIGHTS:
        measures = read(options.directory, "blocks", weights, IMAGES[0])
        for label, mark in ((weights, ""), (f"{weights}, centered", "-")):
            similar = dict(enumerate([np.nan, *measures[f"map_similarity{mark}"]]))
            curves[label] = {
                "map_similarity": similar,
                "entropy": dict(enumerate(measures["entropy"])),
            }
    analysis.plot_by_block(curves, ["map_similarity"], path["similarity"])
    raw = {weights: curves[weights] for weights in WEIGHTS}
    analysis.plot_by_block(raw, ["entropy"], path["entropy"])
    for name, width in PICTURES.items():
        shrink(path[name], width)


def shrink(path: Path, width: int) -> None:
    """Rewrite a picture with at most this width and 256 colors."""
    with Image.open(path) as picture:
        small = picture.convert("RGB")
    small.thumbnail((width, small.height), Image.Resampling.LANCZOS)
    small.quantize(256, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="directory of the results")
    parser.add_argument("page", type=Path, help="Markdown file with the tables")
    parser.add_argument("--weights", help="dinov2_vits14, for the pictures")
    parser.add_argument("--reference", type=Path, help="npz with photographs, x")
    parser.add_argument("--pictures", type=Path, help="directory of the pictures")
    parser.add_argument("--smoke", action="store_true", help="a tiny network")
    options = parser.parse_args(words)
    measured = (lambda d, i=images: by_block(d, i) for images in IMAGES)
    for table in (compared, *measured, tuned, after_tuning):
        if len(rows := table(options.directory)) > 1:
            new = tables.markdown(rows)
            if not tables.replace(options.page, new):
                print(new)
    if options.pictures:
        draw(options)


if __name__ == "__main__":
    main()
