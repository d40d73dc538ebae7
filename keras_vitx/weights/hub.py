"""Files on the Hugging Face hub, and files that ship with the project."""

from pathlib import Path
from typing import NamedTuple

SCHEME = "hf://"
SAFETENSORS = "model.safetensors"


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
    from huggingface_hub import hf_hub_download

    repository, file, revision = address
    return Path(hf_hub_download(repository, file, revision=revision))


def shipped_path(file: str) -> Path:
    """Return the path of a weights file that ships with the package or a source checkout."""
    here = Path(__file__).resolve().parent
    packaged = here / "files" / file
    return packaged if packaged.is_file() else here.parents[1] / "weights" / file
