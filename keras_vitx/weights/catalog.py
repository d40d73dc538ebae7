"""The known checkpoints, as data."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from math import prod
from typing import Any

from keras_vitx.checks import check
from keras_vitx.preprocessing import IMAGENET_DEFAULT, Preprocessing
from keras_vitx.text import nearest

CONSTRUCTORS: dict[str, Callable[..., Any]] = {}
"""The constructor of every size, by name; `models.variant` registers them."""


@dataclass(frozen=True)
class Checkpoint:
    """A published weights file, with its metadata.

    Attributes:
        name: A unique name, accepted by `weights=`.
        constructor: Name of the constructor whose models it fits, such as "CaiT_XXS24".
        image_size: Side of the square training images, in pixels.
        top1: Top-1 accuracy on the dataset's test images, in percent, as timm or else its authors
            measured it for the file; None without a head of these classes.
        top5: Top-5 accuracy, likewise.
        top1_real: Top-1 accuracy with the ImageNet-ReaL labels.
        top1_v2: Top-1 accuracy on ImageNet-V2 (matched frequency).
        source: "hf://owner/repo"; "package:FILE" for a file that ships with this project; or the
            URL of a page to download it from by hand.
        classes: Number of classes of the head; 0 without a head.
        dataset: The dataset whose classes the head has, also accepted by `weights=`.
        preprocessing: Preprocessing of the images.
        license: SPDX identifier in lower case; None if no license is stated. "dinov3-license" is
            Meta's own, with conditions.
        arguments: Arguments of the constructor, for timm's network of that name.
        also_starts: Other constructors with the same variables, whose models it only initializes.
        class_names: One name per class; None for the dataset's standard names.
    """

    name: str
    constructor: str
    image_size: int
    top1: float | None = None
    top5: float | None = None
    top1_real: float | None = None
    top1_v2: float | None = None
    source: str = ""
    classes: int = 1000
    dataset: str = "imagenet"
    preprocessing: Preprocessing = IMAGENET_DEFAULT
    license: str | None = "apache-2.0"
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    also_starts: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None

    def data(self, has_head: bool) -> dict[str, Any]:
        """Return the arguments of its network, with a classifier if it has one or `has_head`."""
        data = {**self.arguments, "input_shape": (self.image_size, self.image_size, 3)}
        data["classes"] = self.classes or 1000
        return data | {"include_top": True} if has_head else data

    @property
    def architecture(self) -> str:
        """timm's name of the network, which it is pretrained weights of."""
        return self.name.partition(".")[0]

    @property
    def distillation_token(self) -> bool:
        """Whether it has DeiT's distillation token."""
        return self.arguments.get("distillation_token", False)

    @property
    def fits(self) -> tuple[str, ...]:
        """Names of all constructors whose models it can be loaded into."""
        own = self.constructor if self.constructor in CONSTRUCTORS else self.architecture
        return (own, *self.also_starts)


OPENAI_CLIP = Preprocessing(
    (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
)


def _checkpoint(row: str, source: str = "hf://timm/") -> Checkpoint:
    """Return the checkpoint of a row of a table.

    Its columns: name, constructor, its arguments, image size, classes, dataset, mean, deviation,
    crop ratio, interpolation, license; if known, top-1, top-5, ReaL top-1 and V2 top-1.
    """
    name, constructor, own, side, classes, dataset, mean, std, crop, filter, license, *tops = (
        row.split("\t")
    )
    return Checkpoint(
        name,
        constructor,
        int(side),
        *map(float, tops),
        source=source + name if source.endswith("/") else source,
        classes=int(classes),
        dataset=dataset,
        preprocessing=Preprocessing(json.loads(mean), json.loads(std), float(crop), filter),
        license=license or None,
        arguments=json.loads(own),
        # Context Broadcasting adds no variables.
        also_starts=(f"CB{constructor}",) if name.startswith(("deit_", "pit_b")) else (),
        class_names=tuple(CIFAR10.split()) if dataset == "cifar10" else None,
    )


CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
# timm's, by benchmarks/timm_names.py. If several fit a size, "imagenet" prefers earlier rows.
TIMM = files(__package__).joinpath("timm.tsv").read_text("utf-8")
OTHERS = files(__package__).joinpath("others.tsv").read_text("utf-8")  # Of authors; shipped.

OF_TIMM = {"num_classes": "classes", "img_size": "input_shape", "pretrained": "weights"}
OF_TIMM |= {"drop_path_rate": "drop_path", "drop_rate": "dropout", "in_chans": "input_shape"}
"""This package's arguments, by timm's."""


def timm_hints(arguments: Mapping[str, Any]) -> list[str]:
    """Return what this package calls the arguments that are timm's."""
    return [f"`{OF_TIMM[name]}` is timm's `{name}`." for name in arguments if name in OF_TIMM]


CHECKPOINTS = (
    *map(_checkpoint, TIMM.splitlines()),
    *(_checkpoint(*row.split("\t", 1)[::-1]) for row in OTHERS.splitlines()),
)

DATASETS = {checkpoint.dataset for checkpoint in CHECKPOINTS}

BY_NAME = {}
"""Every checkpoint by its name, and timm's by those of networks, which mean the first."""
for _one in CHECKPOINTS:
    BY_NAME |= {_one.name: _one, f"timm/{_one.name}": _one}
    BY_NAME.setdefault(_one.architecture, _one)


def checkpoints_of(constructor: str | None) -> tuple[Checkpoint, ...]:
    """Return the known checkpoints that fit a constructor, or all for None."""
    return tuple(c for c in CHECKPOINTS if constructor is None or constructor in c.fits)


def find(
    name: str,
    constructor: str | None,
    image_size: int | tuple[int, int] | None = None,
    distillation_token: bool = False,
) -> Checkpoint:
    """Return the checkpoint that `weights=name` refers to.

    Args:
        name: A checkpoint's name; or a dataset's, such as "imagenet", "imagenet-21k",
            "lvd-1689m" or "cifar10", for the constructor's checkpoint with the nearest resolution.
        constructor: Name of the constructor of the model; None for any.
        image_size: Side or (height, width) of the model's images, in pixels. None selects the
            smallest resolution.
        distillation_token: Whether the model has DeiT's distillation token.

    Raises:
        ValueError: if the name is unknown, belongs to another constructor or another number of
            class tokens, or if the constructor has no such checkpoint.
    """
    fitting = checkpoints_of(constructor)
    candidates = [c for c in fitting if c.distillation_token == distillation_token]
    offer = "It has: " + ", ".join(c.name for c in fitting) + "."
    if not fitting:
        offer = "No checkpoint of it is public. Pass None, or the path or hub address of a file."
    if name in DATASETS:
        entries = [c for c in candidates if c.dataset == name]
        rule = f"weights={name!r} needs the constructor of a size; name a checkpoint:"
        check(constructor is not None, f"{rule} {', '.join(c.name for c in entries)}.", constructor)
        token = " with distillation_token=True" if distillation_token else ""
        text = f"weights={name!r}: {constructor}{token} has no public checkpoint of it. {offer}"
        if not entries:
            raise ValueError(text)
        sides = (image_size,) if isinstance(image_size, int) else image_size or (0,)
        side = prod(sides) ** (1 / len(sides))
        return min(entries, key=lambda c: abs(c.image_size - side))
    entry = BY_NAME.get(name)
    if entry is None:
        names = [c.name for c in fitting] + [*{c.dataset for c in candidates}]
        hint = nearest(name, names) if fitting else offer
        raise ValueError(f"weights={name!r} is neither a file nor a known checkpoint. {hint}")
    if entry not in fitting:
        known = f"weights={name!r} is a checkpoint of {entry.constructor}"
        raise ValueError(f"{known}, not of {constructor}. {offer}")
    rule = f"weights={name!r} needs distillation_token={entry.distillation_token}."
    check(not constructor or entry in candidates, rule, distillation_token)
    return entry
