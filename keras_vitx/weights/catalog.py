"""The known checkpoints, as data."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from keras_vitx.preprocessing import (
    IMAGENET_DEFAULT,
    IMAGENET_INCEPTION,
    Preprocessing,
)
from keras_vitx.text import nearest

IMAGENET = "imagenet"
IMAGENET_21K = "imagenet-21k"
CIFAR10 = "cifar10"

PRETRAINED = {
    **{"lvd142m": "lvd-142m", "lvd1689m": "lvd-1689m", "v2_webli": "webli"},
    **{"mim_in22k": "mim-in22k", "mim_m38m": "mim-m38m"},
}
"""Datasets of checkpoints without a classifier, by timm's tag."""

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
        distillation_token: Whether it has DeiT's distillation token.
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
    dataset: str = IMAGENET
    preprocessing: Preprocessing = IMAGENET_DEFAULT
    license: str | None = "apache-2.0"
    distillation_token: bool = False
    also_starts: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None

    @property
    def fits(self) -> tuple[str, ...]:
        """Names of all constructors whose models it can be loaded into."""
        return (self.constructor, *self.also_starts)


# Checkpoints of timm on the hub. If several fit a constructor, "imagenet" prefers the earlier ones.
# Name; constructor; mean and deviation; crop ratio; top-1, top-5, ReaL top-1 and V2 top-1.
TIMM = """
cait_xxs24_224.fb_dist_in1k                CaiT_XXS24 default   1      78.40 94.326  85.24  67.29
cait_xxs24_384.fb_dist_in1k                CaiT_XXS24 default   1     80.954 95.638 87.414  70.55
cait_xxs36_224.fb_dist_in1k                CaiT_XXS36 default   1      79.75 94.866 86.323  68.37
cait_xxs36_384.fb_dist_in1k                CaiT_XXS36 default   1     82.204 96.148 88.161  72.14
cait_xs24_384.fb_dist_in1k                 CaiT_XS24  default   1     84.064 96.888 89.169  74.11
cait_s24_224.fb_dist_in1k                  CaiT_S24   default   1     83.484 96.586 88.447  73.01
cait_s24_384.fb_dist_in1k                  CaiT_S24   default   1     85.048  97.35  89.51  75.38
cait_s36_384.fb_dist_in1k                  CaiT_S36   default   1     85.458  97.48 89.829  76.01
cait_m36_384.fb_dist_in1k                  CaiT_M36   default   1      86.06 97.732 90.049  76.37
cait_m48_448.fb_dist_in1k                  CaiT_M48   default   1      86.48 97.748 90.181  76.84
convit_tiny.fb_in1k                        ConViT_Ti  default   0.875  73.14 91.704 81.132  61.43
convit_small.fb_in1k                       ConViT_S   default   0.875 81.412  95.74 87.038  70.71
convit_base.fb_in1k                        ConViT_B   default   0.875 82.296 95.936  87.20  71.52
deit_tiny_patch16_224.fb_in1k              ViT_Ti     default   0.9    72.19  91.10 80.026  59.92
deit_small_patch16_224.fb_in1k             ViT_S      default   0.9   79.856 95.056 85.672  68.53
deit_base_patch16_224.fb_in1k              ViT_B      default   0.9    81.98  95.74 86.833  70.97
deit_base_patch16_384.fb_in1k              ViT_B      default   1     83.108 96.376 87.862  72.52
deit_tiny_distilled_patch16_224.fb_in1k    ViT_Ti     default   0.9   74.538 91.898 82.012  62.76
deit_small_distilled_patch16_224.fb_in1k   ViT_S      default   0.9   81.204 95.378 86.985  70.51
deit_base_distilled_patch16_224.fb_in1k    ViT_B      default   0.9   83.384 96.492 88.212  72.97
deit_base_distilled_patch16_384.fb_in1k    ViT_B      default   1     85.438 97.332 89.434  75.40
vit_tiny_patch16_224.augreg_in21k_ft_in1k  ViT_Ti     inception 0.9   75.452 92.858 82.061  63.11
vit_tiny_patch16_384.augreg_in21k_ft_in1k  ViT_Ti     inception 1     78.438 94.542 84.822  66.41
vit_tiny_patch16_224.augreg_in21k          ViT_Ti     inception 0.9
vit_small_patch16_224.augreg_in21k_ft_in1k ViT_S      inception 0.9   81.402  96.15 86.854  70.63
vit_small_patch16_384.augreg_in21k_ft_in1k ViT_S      inception 1     83.814 97.106  88.65  73.17
vit_small_patch16_224.augreg_in1k          ViT_S      inception 0.9   78.842  94.28  84.51  66.59
vit_small_patch16_384.augreg_in1k          ViT_S      inception 1      81.13  95.59 86.502  69.19
vit_small_patch16_224.augreg_in21k         ViT_S      inception 0.9
vit_base_patch16_224.augreg2_in21k_ft_in1k ViT_B      inception 0.9   85.108  97.53 89.457  75.32
vit_base_patch16_224.augreg_in21k_ft_in1k  ViT_B      inception 0.9   84.534  97.30 88.887  74.10
vit_base_patch16_384.augreg_in21k_ft_in1k  ViT_B      inception 1      86.01 97.998 89.969  76.16
vit_base_patch16_224.augreg_in1k           ViT_B      inception 0.9   79.154 94.108 84.388  66.34
vit_base_patch16_384.augreg_in1k           ViT_B      inception 1     81.102 95.334 86.214  68.97
vit_base_patch16_224.augreg_in21k          ViT_B      inception 0.9
deit3_small_patch16_224.fb_in1k            DeiT3_S    default   0.9   81.382 95.454 87.002  70.77
deit3_small_patch16_224.fb_in22k_ft_in1k   DeiT3_S    default   1     83.082 96.774 88.343  73.85
deit3_small_patch16_384.fb_in1k            DeiT3_S    default   1     83.432 96.674 88.308  73.01
deit3_small_patch16_384.fb_in22k_ft_in1k   DeiT3_S    default   1     84.846 97.486 89.372  75.13
deit3_medium_patch16_224.fb_in1k           DeiT3_M    default   0.9    83.09 96.284 87.822  72.50
deit3_medium_patch16_224.fb_in22k_ft_in1k  DeiT3_M    default   1      84.55  97.18 88.921  74.68
deit3_base_patch16_224.fb_in1k             DeiT3_B    default   0.9    83.80 96.584 88.261  73.42
deit3_base_patch16_224.fb_in22k_ft_in1k    DeiT3_B    default   1     85.728 97.746 89.472  76.53
deit3_base_patch16_384.fb_in1k             DeiT3_B    default   1     85.088 97.252 88.940  74.76
deit3_base_patch16_384.fb_in22k_ft_in1k    DeiT3_B    default   1     86.742  98.11 89.888  77.98
vit_small_patch14_dinov2.lvd142m           DINOv2_S   default   1
vit_small_patch14_reg4_dinov2.lvd142m      DINOv2_S_Reg default 1
vit_base_patch14_dinov2.lvd142m            DINOv2_B   default   1
vit_base_patch14_reg4_dinov2.lvd142m       DINOv2_B_Reg default 1
vit_large_patch14_dinov2.lvd142m           DINOv2_L   default   1
vit_large_patch14_reg4_dinov2.lvd142m      DINOv2_L_Reg default 1
vit_small_patch16_rope_224.naver_in1k RoPEViT_S default 0.9 81.222 95.02 86.822 70.35
vit_small_patch16_rope_ape_224.naver_in1k RoPEViT_S_APE default 0.9 81.016 94.988 86.694 70.68
vit_small_patch16_rope_mixed_224.naver_in1k RoPEViT_S_Mixed default 0.9 81.252 95.056 86.831 70.92
vit_small_patch16_rope_mixed_ape_224.naver_in1k RoPEViT_S_Mixed_APE default 0.9 80.974 94.976 86.842 70.57
vit_base_patch16_rope_224.naver_in1k RoPEViT_B default 0.9 83.714 96.674 88.366 73.36
vit_base_patch16_rope_ape_224.naver_in1k RoPEViT_B_APE default 0.9 83.78 96.61 88.30 73.88
vit_base_patch16_rope_mixed_224.naver_in1k RoPEViT_B_Mixed default 0.9 83.806 96.722 88.475 73.60
vit_base_patch16_rope_mixed_ape_224.naver_in1k RoPEViT_B_Mixed_APE default 0.9 83.898 96.752 88.43 73.75
vit_large_patch16_rope_224.naver_in1k RoPEViT_L default 0.9 84.646 97.12 88.972 75.54
vit_large_patch16_rope_ape_224.naver_in1k RoPEViT_L_APE default 0.9 84.66 97.146 88.968 75.17
vit_large_patch16_rope_mixed_224.naver_in1k RoPEViT_L_Mixed default 0.9 84.84 97.128 89.013 75.15
vit_large_patch16_rope_mixed_ape_224.naver_in1k RoPEViT_L_Mixed_APE default 0.9 84.846 97.118 89.09 75.29
vit_small_patch16_dinov3.lvd1689m DINOv3_S default 1
vit_small_plus_patch16_dinov3.lvd1689m DINOv3_S_Plus default 1
vit_base_patch16_dinov3.lvd1689m DINOv3_B default 1
vit_large_patch16_dinov3.lvd1689m DINOv3_L default 1
eva02_tiny_patch14_224.mim_in22k EVA02_Ti clip 0.9
eva02_tiny_patch14_336.mim_in22k_ft_in1k EVA02_Ti clip 1 80.648 95.52 86.829 69.37
eva02_small_patch14_224.mim_in22k EVA02_S clip 0.9
eva02_small_patch14_336.mim_in22k_ft_in1k EVA02_S clip 1 85.77 97.616 89.372 75.83
eva02_base_patch14_224.mim_in22k EVA02_B clip 0.9
eva02_base_patch14_448.mim_in22k_ft_in1k EVA02_B clip 1 88.262 98.57 90.789 79.50
eva02_large_patch14_224.mim_in22k EVA02_L clip 0.9
eva02_large_patch14_448.mim_in22k_ft_in1k EVA02_L clip 1 89.634 98.954 90.93 82.22
eva02_large_patch14_224.mim_m38m EVA02_L clip 0.9
eva02_large_patch14_448.mim_m38m_ft_in1k EVA02_L clip 1 89.55 98.924 90.885 82.40
vit_base_patch16_siglip_224.v2_webli SigLIP2_B inception 0.9
vit_base_patch16_siglip_256.v2_webli SigLIP2_B inception 0.9
vit_base_patch16_siglip_384.v2_webli SigLIP2_B inception 0.9
vit_base_patch16_siglip_512.v2_webli SigLIP2_B inception 0.9
vit_base_patch16_siglip_gap_224.v2_webli SigLIP2_B_GAP inception 0.9
vit_base_patch16_siglip_gap_256.v2_webli SigLIP2_B_GAP inception 0.9
vit_base_patch16_siglip_gap_384.v2_webli SigLIP2_B_GAP inception 0.9
vit_base_patch16_siglip_gap_512.v2_webli SigLIP2_B_GAP inception 0.9
vit_large_patch16_siglip_256.v2_webli SigLIP2_L inception 0.9
vit_large_patch16_siglip_384.v2_webli SigLIP2_L inception 0.9
vit_large_patch16_siglip_512.v2_webli SigLIP2_L inception 0.9
vit_large_patch16_siglip_gap_256.v2_webli SigLIP2_L_GAP inception 0.9
vit_large_patch16_siglip_gap_384.v2_webli SigLIP2_L_GAP inception 0.9
vit_large_patch16_siglip_gap_512.v2_webli SigLIP2_L_GAP inception 0.9
vit_so400m_patch14_siglip_224.v2_webli SigLIP2_SO400M inception 0.9
vit_so400m_patch14_siglip_378.v2_webli SigLIP2_SO400M inception 0.9
vit_so400m_patch14_siglip_gap_224.v2_webli SigLIP2_SO400M_GAP inception 0.9
vit_so400m_patch14_siglip_gap_378.v2_webli SigLIP2_SO400M_GAP inception 0.9
vit_so400m_patch16_siglip_256.v2_webli SigLIP2_SO400M_16 inception 0.9
vit_so400m_patch16_siglip_384.v2_webli SigLIP2_SO400M_16 inception 0.9
vit_so400m_patch16_siglip_512.v2_webli SigLIP2_SO400M_16 inception 0.9
vit_so400m_patch16_siglip_gap_256.v2_webli SigLIP2_SO400M_16_GAP inception 0.9
vit_so400m_patch16_siglip_gap_384.v2_webli SigLIP2_SO400M_16_GAP inception 0.9
vit_so400m_patch16_siglip_gap_512.v2_webli SigLIP2_SO400M_16_GAP inception 0.9
pit_b_224.in1k                             PiT_B      default   0.9   82.458 95.704 86.707  71.65
pit_b_distilled_224.in1k                   PiT_B      default   0.9   83.774 96.468 88.106  73.82
mixer_b16_224.goog_in21k_ft_in1k           Mixer_B16  inception 0.875 76.616  92.25 82.012  63.22
mixer_b16_224.miil_in21k_ft_in1k           Mixer_B16  miil      0.875 82.314  95.71  87.23  71.20
mixer_b16_224.goog_in21k                   Mixer_B16  inception 0.875
mixer_b16_224.miil_in21k                   Mixer_B16  miil      0.875
"""  # noqa: E501

OPENAI_CLIP = Preprocessing(
    (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
)
NORMALIZATION = {
    "default": IMAGENET_DEFAULT,
    "inception": IMAGENET_INCEPTION,
    "clip": OPENAI_CLIP,
    "miil": Preprocessing((0.0,) * 3, (1.0,) * 3, interpolation="bilinear"),
}


def _timm(row: str) -> Checkpoint:
    name, constructor, normalization, crop_ratio, *accuracies = row.split()
    stem, _, tag = name.partition(".")
    has_head = tag not in PRETRAINED
    default = "518" if "dinov2" in stem else "256" if "dinov3" in stem else "224"
    side = re.search(r"\d{3}$|$", stem)[0] or default
    # Accuracies are those of ImageNet-1k.
    classes = 1000 if accuracies else 11221 if normalization == "miil" else 21843
    dataset = IMAGENET if accuracies else IMAGENET_21K
    if not has_head:
        classes, dataset = 0, PRETRAINED[tag]
    licenses = {"eva02": "mit", "dinov3": "dinov3-license"}
    return Checkpoint(
        name,
        constructor,
        int(side),
        *map(float, accuracies),
        source=f"hf://timm/{name}",
        classes=classes,
        dataset=dataset,
        preprocessing=NORMALIZATION[normalization].replace(crop_ratio=float(crop_ratio)),
        license=next((licenses[one] for one in licenses if one in stem), "apache-2.0"),
        distillation_token="_distilled" in name,
        # Context Broadcasting adds no variables.
        also_starts=(f"CB{constructor}",) if stem.startswith(("deit_", "pit")) else (),
    )


def _drive(name: str, constructor: str, side: int, top1: float, key: str) -> Checkpoint:
    """Return a checkpoint that only its authors host."""
    # Refiner, Section 4.4: receptive field calibration.
    crop_ratio = 1.13 if constructor.startswith("RefinedViT") else 0.9
    return Checkpoint(
        name,
        constructor,
        side,
        top1,
        source=f"https://drive.google.com/file/d/{key}",
        license=None,
        preprocessing=IMAGENET_INCEPTION.replace(crop_ratio=crop_ratio),
    )


def _cifar10(size: str, top1: float, preprocessing: Preprocessing = IMAGENET_DEFAULT) -> Checkpoint:
    classes = "airplane automobile bird cat deer dog frog horse ship truck"
    return Checkpoint(
        f"{size.lower()}_cifar10",
        size,
        32,
        top1,
        source=f"package:{size.lower()}_cifar10.safetensors",
        classes=10,
        dataset=CIFAR10,
        preprocessing=preprocessing,
        class_names=tuple(classes.split()),
    )


CHECKPOINTS = (
    *map(_timm, TIMM.strip().splitlines()),
    _drive("deepvit_24b", "DeepViT_24B", 224, 79.99, "1lPmKdNMPJq-mq-4FivqIY4JNAPoQHYxV"),
    _drive("deepvit_32b", "DeepViT_32B", 224, 80.90, "1kUBrAbAQfMT5FQJprITRxDtOE6ECZM0M"),
    _drive("deepvit_s", "DeepViT_S", 224, 82.3, "1evhBjla4Nth7LawW2PAXnGEcpv3YBWEC"),
    _drive("deepvit_l", "DeepViT_L", 224, 83.1, "1MTRm0NK_sPGRSyuD_hHJ1Zgw2diEaKLR"),
    _drive("refined_vit_l_448", "RefinedViT_L", 448, 86.0, "12v1WbxG6_mZQ0FYnXIhKiqbtg5bI4pGL"),
    _cifar10("ViT_Mini", 83.95),
    _cifar10("CaiT_Mini", 85.14),
    _cifar10("ConViT_Mini", 89.22),
    _cifar10("DeepViT_Mini", 80.29, IMAGENET_INCEPTION),
    _cifar10("RefinedViT_Mini", 82.69, IMAGENET_INCEPTION),
    _cifar10("CBViT_Mini", 83.70),
)

DATASETS = {checkpoint.dataset for checkpoint in CHECKPOINTS}


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
        if constructor is None:
            raise ValueError(
                f"weights={name!r} needs the constructor of a size; name a checkpoint: "
                f"{', '.join(c.name for c in entries)}."
            )
        if not entries:
            token = " with distillation_token=True" if distillation_token else ""
            raise ValueError(
                f"weights={name!r}: {constructor}{token} has no public checkpoint of it. {offer}"
            )
        sides = (image_size,) if isinstance(image_size, int) else image_size or (0,)
        side = prod(sides) ** (1 / len(sides))
        return min(entries, key=lambda c: abs(c.image_size - side))
    entry = next((c for c in CHECKPOINTS if c.name == name), None)
    if entry is None:
        names = [c.name for c in fitting] + [*{c.dataset for c in candidates}]
        hint = nearest(name, names) if fitting else offer
        raise ValueError(f"weights={name!r} is neither a file nor a known checkpoint. {hint}")
    if entry not in fitting:
        size = entry.constructor
        raise ValueError(
            f"weights={name!r} is a checkpoint of {size}, not of {constructor}. {offer}"
        )
    if constructor and entry not in candidates:
        raise ValueError(
            f"weights={name!r} needs distillation_token={entry.distillation_token}. "
            f"Received: {distillation_token}."
        )
    return entry
