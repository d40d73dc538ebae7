"""Files that are elsewhere: on the Hugging Face hub, or shipped with the project."""

import contextlib
import hashlib
import re
from pathlib import Path

SCHEME = "hf://"


def download(address: str, sha256: str | None = None) -> Path:
    """Return the local copy of a file on the hub, downloaded if need be.

    A copy in the hub's cache is taken without asking the hub. It is checked
    against `sha256`, or else against the hash by which the cache names it, and
    downloaded again, once, when it differs.

    Args:
        address: "hf://owner/repo" for its `model.safetensors`, or
            "hf://owner/repo/file".
        sha256: Hash of the file, or how it begins; None where it isn't known.

    Raises:
        ValueError: when the address isn't of that form, or the file's hash is
            another.
        OSError: when the file can't be had and isn't in the cache.
    """
    repository, file = parse(address)
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    cached = True
    try:
        try:
            path = Path(hf_hub_download(repository, file, local_files_only=True))
        except LocalEntryNotFoundError:
            cached = False
            path = Path(hf_hub_download(repository, file))
    except HFValidationError as error:
        raise ValueError(f"weights={address!r}: the hub allows no such name. {error}") from error
    except Exception as error:  # Network libraries raise errors of their own kinds.
        folder = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}")
        broken = _broken_link(folder, file)
        raise OSError(
            f"weights={address!r} can't be downloaded and isn't in the cache "
            f"({broken or constants.HF_HUB_CACHE}{' leads nowhere' if broken else ''}). Download "
            f"https://huggingface.co/{repository}/resolve/main/{file} where there is a network, "
            f"and give its path as weights=, or copy that machine's cache folder "
            f"{folder.name} into this one's. "
            f"The cause: {type(error).__name__}."
        ) from error
    # The hub names large files by their hash.
    sha256 = sha256 or (path.resolve().name if SHA256.fullmatch(path.resolve().name) else None)
    try:
        try:
            return verified(path, sha256)
        except ValueError:
            if not cached or constants.HF_HUB_OFFLINE:
                raise
            # Where there is no network after all, the cached file is what is wrong.
            with contextlib.suppress(Exception):
                path = Path(hf_hub_download(repository, file, force_download=True))
            return verified(path, sha256)
    except ValueError as error:
        raise ValueError(
            f"weights={address!r}: {error} Delete {path.resolve()} from the hub's cache to have it "
            "downloaded again."
        ) from error


SHA256 = re.compile("[0-9a-f]{64}")


def verified(path: Path, sha256: str | None) -> Path:
    """Return `path` when the file has the hash that it should; None fits any file.

    Args:
        path: A file.
        sha256: Its SHA-256 in hexadecimal, or how that begins.

    Raises:
        ValueError: when the hash is another.
    """
    if sha256 is None:
        return path
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if not found.startswith(sha256.lower()):
        raise ValueError(
            f"The file {path} is damaged or another one: its SHA-256 is {found}, "
            f"and should be {sha256}."
        )
    return path


def _broken_link(folder: Path, file: str) -> Path | None:
    """The entry of a file in a repository's cache, where what it leads to is gone."""
    links = (commit / file for commit in sorted(folder.glob("snapshots/*")))
    return next((link for link in links if link.is_symlink() and not link.exists()), None)


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
