"""Files that are elsewhere: on the Hugging Face hub, or shipped with the project."""

import re
from pathlib import Path

SCHEME = "hf://"


def download(address: str) -> Path:
    """Return the local copy of a file on the hub, downloaded if need be.

    A copy in the hub's cache is taken as it is, without asking the hub.

    Args:
        address: "hf://owner/repo" for its `model.safetensors`, or
            "hf://owner/repo/file".

    Raises:
        ValueError: when the address isn't of that form.
        OSError: when the file can't be had and isn't in the cache.
    """
    repository, file = parse(address)
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        try:
            return Path(hf_hub_download(repository, file, local_files_only=True))
        except LocalEntryNotFoundError:
            return Path(hf_hub_download(repository, file))
    except HFValidationError as error:
        raise ValueError(f"weights={address!r}: the hub allows no such name. {error}") from error
    except Exception as error:  # Network libraries raise errors of their own kinds.
        raise OSError(
            f"weights={address!r} can't be downloaded and isn't in the cache "
            f"({constants.HF_HUB_CACHE}). Download "
            f"https://huggingface.co/{repository}/resolve/main/{file} where there is a network, "
            f"and give its path as weights=, or copy that machine's cache folder "
            f"models--{repository.replace('/', '--')} into this one's. "
            f"The cause: {type(error).__name__}."
        ) from error


def parse(address: str) -> tuple[str, str]:
    """Split an address into ("owner/repo", "file").

    Raises:
        ValueError: when it isn't of the form "hf://owner/repo" or
            "hf://owner/repo/file".
    """
    match = re.fullmatch(r"hf://([^/\s]+/[^/\s]+)(?:/(\S+[^/\s]))?/?", address)
    if not match:
        raise ValueError(
            f'weights={address!r} should read "hf://owner/repo" or "hf://owner/repo/file".'
        )
    return match[1], match[2] or "model.safetensors"


def shipped(file: str) -> Path:
    """Return the path of a file of weights that ships with the project.

    Raises:
        OSError: when it is in neither the package nor a source checkout.
    """
    here = Path(__file__).resolve().parent
    places = [here / "files" / file, here.parents[1] / "weights" / file]
    for path in places:
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"The weights {file} should ship with the package, but aren't at "
        + " or ".join(str(path) for path in places)
        + "."
    )
