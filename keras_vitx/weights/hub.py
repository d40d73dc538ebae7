"""Files on the Hugging Face hub, and files that ship with the project."""

import contextlib
import hashlib
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

SCHEME = "hf://"
SHA256 = re.compile("[0-9a-f]{64}")


class Address(NamedTuple):
    """A file on the hub.

    Attributes:
        repository: "owner/repo".
        file: Path of the file in the repository.
        revision: Branch, tag or commit; None for the main branch.
    """

    repository: str
    file: str = "model.safetensors"
    revision: str | None = None

    def __str__(self):
        revision = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"{SCHEME}{self.repository}{revision}/{self.file}"


def parse(address: str) -> Address:
    """Read "hf://owner/repo[@revision][/file]"; a "/" in a revision is written "%2F".

    Raises:
        ValueError: if the address is malformed, or a part of it could point outside of
            the repository.
    """
    match = re.fullmatch(r"hf://([^/@\s]+/[^/@\s]+)(?:@([^/@\s]+))?(?:/(\S*[^/\s]))?/?", address)
    if not match:
        raise ValueError(
            f'weights={address!r} must read "hf://owner/repo" or "hf://owner/repo/file", with '
            '"@revision" after the repository to pin a branch, tag or commit.'
        )
    parsed = Address(match[1], match[3] or "model.safetensors", match[2] and unquote(match[2]))
    for name, path in zip(parsed._fields, parsed, strict=True):
        if path is not None and not _is_inside(path):
            raise ValueError(
                f"weights={address!r}: the {name} {path!r} must be plain names joined by single "
                'slashes, without "..".'
            )
    return parsed


def _is_inside(path: str) -> bool:
    return path.isprintable() and all(
        part.strip(".") and not re.search(r"[\\:%?#*\s]", part) for part in path.split("/")
    )


def download(address: str | Address, sha256: str | None = None) -> Path:
    """Return the local copy of a file on the hub, downloaded if necessary.

    A copy in the hub's cache is used without contacting the hub. It is checked against
    `sha256`, or else against the hash in its name in the cache. If the hash differs, the file
    is downloaded again, once.

    Args:
        address: As in `parse`.
        sha256: SHA-256 of the file, or a prefix of it; None if unknown.

    Raises:
        ValueError: if the address is malformed, or the hash of the file is wrong.
        OSError: if the file is not in the cache and can't be downloaded.
    """
    where = parse(address) if isinstance(address, str) else address
    address = str(address)
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    def get(**options) -> Path:
        return Path(
            hf_hub_download(where.repository, where.file, revision=where.revision, **options)
        )

    cached = True
    try:
        try:
            path = get(local_files_only=True)
        except LocalEntryNotFoundError:
            cached = False
            path = get()
    except HFValidationError as error:
        raise ValueError(f"weights={address!r}: the hub allows no such name. {error}") from error
    except Exception as error:  # Network libraries raise their own types.
        folder = Path(constants.HF_HUB_CACHE, f"models--{where.repository.replace('/', '--')}")
        broken = _broken_link(folder, where.file)
        revision = quote(where.revision or "main", safe="")
        url = f"https://huggingface.co/{where.repository}/resolve/{revision}/{where.file}"
        raise OSError(
            f"weights={address!r} can't be downloaded and isn't in the cache "
            f"({broken or constants.HF_HUB_CACHE}{' leads nowhere' if broken else ''}). Download "
            f"{url} where there is a network, and give its path as weights=, or copy that "
            f"machine's cache folder {folder.name} into this one's. "
            f"The cause: {type(error).__name__}."
        ) from error
    # The hub's cache names large files by their hash.
    sha256 = sha256 or (path.resolve().name if SHA256.fullmatch(path.resolve().name) else None)
    try:
        try:
            return verified(path, sha256)
        except ValueError:
            if not cached or constants.HF_HUB_OFFLINE:
                raise
            # Without a network, the error is still about the cached file.
            with contextlib.suppress(Exception):
                path = get(force_download=True)
            return verified(path, sha256)
    except ValueError as error:
        raise ValueError(
            f"weights={address!r}: {error} Delete {path.resolve()} from the hub's cache to have it "
            "downloaded again."
        ) from error


def verified(path: Path, sha256: str | None) -> Path:
    """Return `path` if the file has the expected hash; None accepts any file.

    Args:
        path: A file.
        sha256: Its SHA-256 in hexadecimal, or a prefix of it.

    Raises:
        ValueError: if the hash differs.
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
    """Return the entry of a file in a repository's cache if it is a broken link."""
    links = (commit / file for commit in sorted(folder.glob("snapshots/*")))
    return next((link for link in links if link.is_symlink() and not link.exists()), None)


def shipped(file: str) -> Path:
    """Return the path of a weights file that ships with the project.

    Raises:
        OSError: if it is neither in the package nor in a source checkout.
    """
    here = Path(__file__).resolve().parent
    places = [here / "files" / file, here.parents[1] / "weights" / file]
    for path in places:
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"The weights {file} should ship with the package, but are not at "
        + " or ".join(str(path) for path in places)
        + "."
    )
