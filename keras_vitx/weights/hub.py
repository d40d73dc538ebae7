"""Files on the Hugging Face hub, and files that ship with the project."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from keras_vitx.preprocessing import Preprocessing

SCHEME = "hf://"
SAFETENSORS = "model.safetensors"
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""The filters of Transformers' settings, by Pillow's numbers."""


class Address(NamedTuple):
    """A file on the hub."""

    repository: str  # "owner/repo"
    file: str = SAFETENSORS
    revision: str | None = None  # Branch, tag or commit.


def parse(address: str) -> Address:
    """Parse "hf://owner/repo[@revision][/file]"; a "/" in a revision is written "%2F"."""
    from huggingface_hub import parse_hf_uri

    try:
        uri = parse_hf_uri(address)
    except ValueError as error:
        raise ValueError(f"weights={address!r}: {error}") from error
    if uri.type != "model":
        raise ValueError(f"weights={address!r} must be a repository of a model.")
    return Address(uri.id, uri.path_in_repo or SAFETENSORS, uri.revision)


def download(address: Address) -> Path:
    """Return the copy of a file in the hub's cache, downloaded if it is not there.

    Raises an OSError if it can't be.
    """
    from huggingface_hub import errors, hf_hub_download

    repository, file, revision = address
    try:
        return Path(hf_hub_download(repository, file, revision=revision))
    except errors.LocalEntryNotFoundError as error:
        rule = "could not reach the hub for {}: pass `weights=FILE`, or `weights=None`"
        raise OSError(rule.format(repository)) from error


def stated_preprocessing(find: Callable[[str], Path]) -> Preprocessing | None:
    """Return the preprocessing in the settings of Transformers or timm beside a weights file.

    `find` returns the path of a file by its name, or raises an OSError. The size is not read: a
    model has that of its input. None if there are no such settings.
    """
    with contextlib.suppress(OSError):
        stated = json.loads(find("preprocessor_config.json").read_text("utf-8"))
        if "image_mean" in stated:
            return _of_transformers(stated)
    with contextlib.suppress(OSError):
        stated = json.loads(find("config.json").read_text("utf-8")).get("pretrained_cfg") or {}
        if "mean" in stated:
            more = stated.get("crop_pct", 1.0), stated.get("interpolation", "bicubic")
            return Preprocessing(stated["mean"], stated["std"], *more)
    return None


def stated_activation(find: Callable[[str], Path]) -> str | None:
    """Return the activation of the MLPs in Transformers' settings beside a file, if any."""
    with contextlib.suppress(OSError):
        stated = json.loads(find("config.json").read_text("utf-8"))
        return stated.get("vision_config", stated).get("hidden_act")
    return None


def _of_transformers(stated: dict[str, Any]) -> Preprocessing:
    mean, std = stated["image_mean"], stated["image_std"]
    if not stated.get("do_normalize", True):
        mean, std = [0.0] * len(mean), [1.0] * len(std)
    # Theirs are of the values after rescaling, ours of 0..1.
    factor = stated.get("rescale_factor", 1 / 255) if stated.get("do_rescale", True) else 1.0
    mean, std = ([value / (255 * factor) for value in values] for values in (mean, std))
    crop, size = (_side(stated.get(name, 224)) for name in ("crop_size", "size"))
    ratio = crop / size if stated.get("do_center_crop") else 1.0
    return Preprocessing(mean, std, ratio, RESAMPLE[stated.get("resample", 2)])


def _side(size: object) -> int:
    return size.get("shortest_edge") or size["height"] if isinstance(size, dict) else size


def shipped_path(file: str) -> Path:
    """Return the path of a weights file that ships with the package or a source checkout."""
    here = Path(__file__).resolve().parent
    packaged = here / "files" / file
    return packaged if packaged.is_file() else here.parents[1] / "weights" / file
