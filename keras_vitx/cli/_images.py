"""The images that are given to a command."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

Images = Annotated[
    list[Path],
    typer.Argument(
        help="Image files, and folders whose images are taken, those of sub-folders too.",
        metavar="IMAGE|FOLDER",
    ),
]


def files_of(given: Sequence[Path]) -> list[Path]:
    """Return the files, and those of folders in the order of their paths.

    Raises:
        ValueError: if a folder has no images.
    """
    from keras_vitx.data.sources.folders import image_files

    paths = []
    for path in given:
        found = image_files(path) if path.is_dir() else [path]
        if not found:
            raise ValueError(f"The folder {path} has no images.")
        paths += found
    return paths
