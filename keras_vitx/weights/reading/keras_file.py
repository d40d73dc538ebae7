"""`.keras` archives: a config and a weights file in a zip, read without building the model."""

import contextlib
import copy
import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_vitx.weights.description import Description
from keras_vitx.weights.reading.h5 import check_h5, tensors_of
from keras_vitx.weights.reading.tensors import Refused, Tensors, describing

CONFIG, WEIGHTS = "config.json", "model.weights.h5"


@contextlib.contextmanager
def read_keras(path: Path, model) -> Iterator[Tensors]:
    """Open a `.keras` file, without building the model of its config as Keras would."""
    config, content = _read(path)
    with describing(CONFIG):
        description = Description.from_config(config)
    yield tensors_of(content, np.frombuffer(content.getbuffer(), "uint8"), model, description)


def check_archive(path: str | os.PathLike) -> dict[str, Any]:
    """Check a `.keras` file before passing it to `keras.saving.load_model`.

    Keras accepts archives that expand to a hundred times their size and weights files that
    expand to a thousand times theirs. A file that passes this check takes memory in
    proportion to its size.

    Args:
        path: The file.

    Returns:
        The config in the archive.

    Raises:
        ValueError: if the file is damaged, is not a `.keras` file, or expands to more than
            Keras would have written.
        OSError: if it can't be read.
    """
    path = Path(path)
    try:
        config, content = _read(path)
        check_h5(content, np.frombuffer(content.getbuffer(), "uint8"))
    except Refused as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # The readers raise whatever a bad file provokes.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        cause = str(error).split("\n")[0][:200]
        raise ValueError(
            f"{path}: The file is damaged or no .keras file ({type(error).__name__}: {cause})."
        ) from error
    return config


def _read(path: Path) -> tuple[dict[str, Any], io.BytesIO]:
    """Return the config and the weights of an archive, having checked the size of every member."""
    # Keras does not compress archives, but repacked ones may be compressed.
    limit = 2 * path.stat().st_size + (1 << 20)
    contents = {CONFIG: io.BytesIO(), WEIGHTS: io.BytesIO()}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            limit -= info.file_size
            if limit < 0:
                raise Refused(
                    f"The file is refused: its {info.filename[:200]} would expand to "
                    f"{info.file_size} bytes, which is too much for a file of its size."
                )
            _copy(archive, info, contents.get(info.filename))
        for name in contents.keys() - archive.namelist():
            raise Refused(f"The file holds no {name}.")
    config = json.loads(contents[CONFIG].getvalue())
    if not isinstance(config, dict):
        raise Refused(f"The file is damaged: its {CONFIG} holds a {type(config).__name__}.")
    return config, contents[WEIGHTS]


def _copy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: io.BytesIO | None) -> None:
    """Expand a member into `target`, if any; it must have the size that it declares."""
    name = info.filename[:200]
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused(f"The file is refused: its {name} is compressed in an unusual way.")
    if target is not None:
        # Allocate the full size at once: growing would take up to twice as much.
        target.seek(max(info.file_size - 1, 0))
        target.write(b"\0")
        target.seek(0)
    # zipfile truncates data beyond the declared size, but only after expanding it.
    unbounded = copy.copy(info)
    unbounded.file_size = info.file_size + 1
    size = 0
    with archive.open(unbounded) as member:
        # In pieces, so that memory is bounded whatever the real size is.
        while (piece := member.read(1 << 20)) and size <= info.file_size:
            size += len(piece)
            if target is not None:
                target.write(piece)
    if size != info.file_size:
        raise Refused(
            f"The file is damaged: its {name} does not have the {info.file_size} bytes that it "
            "declares."
        )
