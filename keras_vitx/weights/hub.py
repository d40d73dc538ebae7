"""Files on the Hugging Face hub, and files that ship with the project."""

import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from keras_vitx.checks import check
from keras_vitx.weights.description import SAFETENSORS, FileError

SCHEME = "hf://"
SHA256 = re.compile("[0-9a-f]{64}")

# Names, joined by slashes, that can't lead out of a directory as "..", "C:" or "%2e" do.
NAME = r"\.*[\w+-][\w.+=,&~()-]*"
PATH = rf"{NAME}(?:/{NAME})*"


class Address(NamedTuple):
    """A file on the hub."""

    repository: str  # "owner/repo"
    file: str = SAFETENSORS
    revision: str | None = None  # Branch, tag or commit.

    def __str__(self):
        revision = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"{SCHEME}{self.repository}{revision}/{self.file}"


def parse(address: str) -> Address:
    """Parse "hf://owner/repo[@revision][/file]"; a "/" in a revision is written "%2F".

    Raises a ValueError if it is malformed, or a part of it could point outside of the repository.
    """
    from huggingface_hub import parse_hf_uri

    try:
        uri = parse_hf_uri(address)
        parts = (uri.path_in_repo or SAFETENSORS, uri.revision or "main")
        if uri.type != "model" or not all(re.fullmatch(PATH, part) for part in parts):
            raise ValueError("It is no file of a model, or leads out of the repository.")
    except ValueError as error:
        raise ValueError(
            f'weights={address!r} must read "hf://owner/repo" or "hf://owner/repo/file", with '
            '"@revision" after the repository to pin a branch, tag or commit, and plain names '
            "between the slashes."
        ) from error
    return Address(uri.id, uri.path_in_repo or SAFETENSORS, uri.revision)


def download(address: Address, sha256: str | None = None) -> Path:
    """Return the local copy of a file on the hub, downloaded if it is not in the cache.

    It is checked against `sha256`, or a prefix of it, or else against the hash in its name in the
    cache. A large file, which the cache names by its hash, is read for this only when it is
    downloaded. Raises a ValueError if a hash is wrong, and an OSError if the file can't be
    downloaded.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    repository, name, revision = address
    arguments = {"repo_id": repository, "filename": name, "revision": revision}
    is_new = False
    try:
        try:
            path = Path(hf_hub_download(**arguments, local_files_only=True))
        except LocalEntryNotFoundError:
            _check_names(address)
            path, is_new = Path(hf_hub_download(**arguments)), True
    except (HFValidationError, FileError) as error:
        raise ValueError(f"weights='{address}': the hub's names can't be used. {error}") from error
    except Exception as error:  # Network libraries raise their own types.
        branch = quote(revision or "main", safe="")
        url = f"{constants.ENDPOINT}/{repository}/resolve/{branch}/{name}"
        raise OSError(
            f"weights='{address}' can't be downloaded and isn't in the cache "
            f"({constants.HF_HUB_CACHE}). Download {url} where there is a network, and pass its "
            f"path as weights=, or copy the directory models--{repository.replace('/', '--')} of "
            "that machine's cache into this one's. "
            f"The cause: {_network_cause(error)}."
        ) from error
    blob = path.resolve()
    known = blob.name if SHA256.fullmatch(blob.name) else None
    if not is_new and known and known.startswith((sha256 or "").lower()):
        return path
    try:
        check_hash(path, sha256 or known)
    except ValueError as error:
        hint = f"Delete {blob} from the hub's cache to download it again."
        if is_new:
            path.unlink()
            blob.unlink(missing_ok=True)
            hint = "It is not kept in the hub's cache."
        raise ValueError(f"weights='{address}': {error} {hint}") from error
    return path


def _check_names(address: Address) -> None:
    """Check the hub's hashes, which name files in the cache and could point outside of it."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    metadata = get_hf_file_metadata(
        hf_hub_url(address.repository, address.file, revision=address.revision or "main")
    )
    for header, value in (("ETag", metadata.etag), ("X-Repo-Commit", metadata.commit_hash)):
        if not re.fullmatch("[0-9a-f]+", value or ""):
            raise FileError(f"{header} must be hexadecimal. Received: {value!r:.100}.")


def _network_cause(error: BaseException) -> str:
    """Return the type of a network error, the HTTP status, and the server."""
    from huggingface_hub import constants

    status, cause = None, error
    while cause is not None and status is None:
        status = getattr(getattr(cause, "response", None), "status_code", None)
        cause = cause.__cause__ or cause.__context__
    suffix = f", status {status}" if status else ""
    return f"{type(error).__name__}{suffix}, from {constants.ENDPOINT}"


def check_hash(path: Path, sha256: str | None) -> None:
    """Raise a ValueError unless the SHA-256 of a file begins with `sha256` (None: any)."""
    if sha256 and not (digest := hash_of(path)).startswith(sha256.lower()):
        raise ValueError(
            f"The file {path} is damaged or another one: its SHA-256 is {digest}, "
            f"and should be {sha256}."
        )


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal; it is computed again if the file changes."""
    path = path.resolve()
    stat = path.stat()
    return _hash_of(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache
def _hash_of(path: Path, *version: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def upload(directory: Path, repository: str, names: Sequence[str], private: bool = False) -> str:
    """Upload the files of a directory that are in `names`; return "hf://owner/repo@COMMIT".

    The repository is created if it doesn't exist. Raises a ValueError for a malformed name, and an
    OSError if the hub refuses or can't be reached.
    """
    from huggingface_hub import HfApi

    is_name = re.fullmatch(f"{NAME}/{NAME}", repository)
    check(is_name, '`repository` must be "owner/repo".', repository)
    try:
        api = HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=directory,
            allow_patterns=list(names),
            commit_message="A model of keras_vitx",
        )
    except Exception as error:  # Network libraries raise their own types.
        raise OSError(
            f"{repository!r} can't be written ({_network_cause(error)}). `hf auth login` stores a "
            "token with write access."
        ) from error
    return f"{SCHEME}{repository}@{commit.oid}"


def shipped_path(file: str) -> Path:
    """Return the path of a weights file that ships with the package or a source checkout."""
    here = Path(__file__).resolve().parent
    packaged, checkout = here / "files" / file, here.parents[1] / "weights" / file
    for path in (packaged, checkout):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"The weights {file} should ship with the package, but are not at {packaged} or {checkout}."
    )
