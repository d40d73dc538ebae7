"""The known checkpoints, as data."""

from dataclasses import dataclass
from math import sqrt

from keras_vitx.text import nearest

IMAGENET = "imagenet"


@dataclass(frozen=True)
class Checkpoint:
    """One published file of weights and what it takes to use it.

    Attributes:
        name: What `weights=` calls it.
        constructor: The function whose model it fits, such as "CaiT_XXS24".
        source: "hf://owner/repo", or "package:FILE" for a file that ships with
            this project.
        image_size: Side of the square images it was trained on, in pixels.
        classes: Number of classes of its head.
        mean, std: Of each channel, for images in [0, 1].
        top1: Accuracy on the data set's test images, in percent, as published.
        file: File name in the repository on the hub.
        url: Its authors' own file (PyTorch), where there is one.
        crop_ratio: Share of the resized image's side that the crop keeps.
        interpolation: Of the resize.
        licence: SPDX name in lower case.
        distilled: Whether it was trained with a teacher.
        class_names: One for each class; None where the data set's own apply.
    """

    name: str
    constructor: str
    source: str
    image_size: int
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    top1: float | None
    file: str = "model.safetensors"
    url: str | None = None
    crop_ratio: float = 1.0
    interpolation: str = "bicubic"
    licence: str = "apache-2.0"
    distilled: bool = False
    class_names: tuple[str, ...] | None = None

    @property
    def preprocessing(self) -> dict:
        """What images need before this checkpoint's model sees them."""
        return {
            "mean": self.mean,
            "std": self.std,
            "crop_ratio": self.crop_ratio,
            "interpolation": self.interpolation,
        }


def _cait(size: str, image_size: int, top1: float) -> Checkpoint:
    name = f"cait_{size.lower()}_{image_size}.fb_dist_in1k"
    return Checkpoint(
        name=name,
        constructor=f"CaiT_{size}",
        source=f"hf://timm/{name}",
        url=f"https://dl.fbaipublicfiles.com/deit/{size}_{image_size}.pth",
        image_size=image_size,
        classes=1000,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        top1=top1,
        distilled=True,
    )


CHECKPOINTS = (
    _cait("XXS24", 224, 78.400),
    _cait("XXS24", 384, 80.954),
    _cait("XXS36", 224, 79.750),
    _cait("XXS36", 384, 82.204),
    _cait("XS24", 384, 84.064),
    _cait("S24", 224, 83.484),
    _cait("S24", 384, 85.048),
    _cait("S36", 384, 85.458),
    _cait("M36", 384, 86.060),
    _cait("M48", 448, 86.480),
    Checkpoint(
        name="cifar10",
        constructor="CaiT_Mini",
        source="package:cait_mini_cifar10.safetensors",
        image_size=32,
        classes=10,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        top1=71.35,
        class_names=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
    ),
)


def checkpoints_of(constructor: str | None) -> tuple[Checkpoint, ...]:
    """Return the known checkpoints that fit a constructor; None means all."""
    return tuple(c for c in CHECKPOINTS if constructor in (None, c.constructor))


def find(
    name: str, constructor: str | None, image_size: int | tuple[int, int] | None = None
) -> Checkpoint:
    """Return the checkpoint that `weights=name` means.

    Args:
        name: A checkpoint's name, or "imagenet" for the constructor's ImageNet
            checkpoint; of several, the one whose resolution is nearest.
        constructor: The function that builds the model, None for any.
        image_size: Side or (height, width) of the model's images, in pixels.
            Without it, the smallest resolution is taken.

    Raises:
        ValueError: when the name is unknown, belongs to another constructor,
            or the constructor has no such checkpoint.
    """
    mine = checkpoints_of(constructor)
    entries = [c for c in mine if c.classes == 1000]
    if name == IMAGENET:
        if constructor is None:
            raise ValueError(
                'weights="imagenet" needs the constructor of a size; name a checkpoint: '
                + ", ".join(c.name for c in entries)
                + "."
            )
        if entries:
            return min(entries, key=lambda c: abs(c.image_size - _side(image_size)))
        raise ValueError(
            f'weights="imagenet": {constructor} has no public ImageNet checkpoint. {_offer(mine)}'
        )
    for checkpoint in CHECKPOINTS:
        if checkpoint.name == name:
            if checkpoint in mine:
                return checkpoint
            raise ValueError(
                f"weights={name!r} is a checkpoint of {checkpoint.constructor}, "
                f"not of {constructor}. {_offer(mine)}"
            )
    names = [c.name for c in mine] + [IMAGENET] * bool(entries)
    hint = nearest(name, names) if mine else _offer(mine)
    of = f" of {constructor}" if constructor else ""
    raise ValueError(f"weights={name!r} is neither a file nor a known checkpoint{of}. {hint}")


def _side(image_size: int | tuple[int, int] | None) -> float:
    if image_size is None:
        return 0
    return image_size if isinstance(image_size, int) else sqrt(image_size[0] * image_size[1])


def _offer(checkpoints: tuple[Checkpoint, ...]) -> str:
    if checkpoints:
        return "It has: " + ", ".join(c.name for c in checkpoints) + "."
    return (
        "No checkpoint of it is public: give None, the path of a file of your own, "
        'or "hf://owner/repo".'
    )
