"""Images that are decoded when they are used."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_vitx.data.preprocessing import read_image, read_picture


class EncodedImages(Sequence):
    """Encoded images, decoded to RGB when they are used.

    Args:
        keys: What identifies each image: a path, an index, ...
    """

    def __init__(self, keys: Sequence[Any]):
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, indices: np.ndarray) -> "EncodedImages":
        """Return the images at `indices`."""
        taken = copy.copy(self)
        taken.keys = [self.keys[index] for index in indices]
        return taken

    def open(self, key: Any) -> Any:
        """Return the path of an encoded image, or a binary file."""
        raise NotImplementedError

    def id(self, index: int) -> Any:
        """Return what names an image in messages."""
        return self.keys[index]

    def name(self, index: int) -> str:
        """Return what names an image in a list of held-out images."""
        return str(self.id(index))

    def __getitem__(self, index: int) -> np.ndarray:
        """Return uint8 (height, width, 3). Raises OSError if the image can't be decoded."""
        return self._read(read_image, index)

    def picture(self, index: int) -> Image.Image:
        """Return the same as a picture of Pillow, of which a window can be cropped at less cost."""
        return self._read(read_picture, index)

    def _read(self, read: Callable, index: int) -> Any:
        file = self.open(self.keys[index])
        try:
            return read(file)
        except OSError as error:
            if isinstance(file, Path):  # The message names it.
                raise
            raise OSError(f"{self.id(index)}: {error}") from error


class ImageFiles(EncodedImages):
    """Image files.

    Args:
        paths: The files.
        root: The folder that `name` is relative to, so that it may move.
    """

    def __init__(self, paths: Sequence[Path], root: Path | None = None):
        super().__init__(list(paths))
        self.root = root

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return self.keys

    def open(self, key: Path) -> Path:
        """Return the path."""
        return key

    def name(self, index: int) -> str:
        """Return the path of an image, relative to `root`."""
        path = self.keys[index]
        return path.relative_to(self.root).as_posix() if self.root else str(path)
