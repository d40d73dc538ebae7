"""From image files to pixels: the one place where Pillow opens files."""

import contextlib
import io
import math
import os
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL import TiffImagePlugin as tiff

from keras_vitx.pixels import Pixels

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "TGA", "QOI", "JPEG2000")
FORMATS += ("AVIF", "HEIF", "JXL")  # Where Pillow has them, the last two by plugins.
"""The formats of images that are opened, by Pillow's names. For EPS, it would start a program."""

SMALL, PIXELS_PER_BYTE = 25_000_000, 32
"""Pixels that any file may decode to, and how many more for its size; a bomb claims thousands."""


@contextlib.contextmanager
def open_image(
    file: str | os.PathLike | BinaryIO, name: str | None = None
) -> Iterator[Image.Image]:
    """Open an image file of `FORMATS`; errors, also in the `with` body, are OSErrors that name it.

    Since a small file can decode to any number of pixels, no more than `SMALL` or, for larger
    files, `PIXELS_PER_BYTE` are accepted, nor more than twice `PIL.Image.MAX_IMAGE_PIXELS`
    (179 million unless set); any number if that is None.
    """
    limit = 2 * (Image.MAX_IMAGE_PIXELS or math.inf)
    with contextlib.ExitStack() as stack:
        if isinstance(file, dict):  # Hugging Face's, of a file or of its content.
            file = io.BytesIO(file["bytes"]) if file.get("bytes") else file.get("path")
        if isinstance(file, (str, os.PathLike)):
            path = name = os.path.expanduser(file)
            if os.path.exists(path) and not os.path.isfile(path):
                raise OSError(f"{path} is not a file.")  # Opening a pipe would wait for ever.
            file = stack.enter_context(open(path, "rb"))
        try:
            limit = min(limit, max(SMALL, PIXELS_PER_BYTE * file.seek(0, os.SEEK_END)))
            Image.init()
            formats = [format for format in FORMATS if format in Image.OPEN]
            image = stack.enter_context(Image.open(file, formats=formats))
            if Image.MAX_IMAGE_PIXELS is not None and math.prod(image.size) > limit:
                raise Image.DecompressionBombError(
                    f"it has more than {limit:,} pixels. If you trust it, set "
                    "`PIL.Image.MAX_IMAGE_PIXELS`; None is no limit"
                )
            yield image
        except Exception as error:  # Decoders raise many types of them on damaged files.
            unknown = f"Pillow reads it as none of {', '.join(FORMATS)}"
            cause = unknown if isinstance(error, UnidentifiedImageError) else error
            name = name or "An image that was given as bytes"
            raise OSError(f"{name} can't be decoded as an image: {cause}") from error


def decode_image(file: str | os.PathLike | BinaryIO, channels: int = 3) -> Pixels:
    """Decode an image file to uint8 (height, width, channels).

    The EXIF orientation is applied, transparency is dropped, and the first frame of an animation is
    returned. Unsigned gray of 12 and 16 bits is scaled from its range; signed, 32-bit and
    floating-point gray, whose range is not known, from the image's own minimum and maximum.

    Args:
        file: A file in one of `FORMATS`: its path, or an open binary file.
        channels: 3 for RGB, 1 for gray.

    Raises:
        OSError: if the file can't be read or fully decoded, or has too many pixels for its size or
            for `PIL.Image.MAX_IMAGE_PIXELS`; the message names it.
    """
    pixels = np.array(read_picture(file, "RGB" if channels == 3 else "L"))
    return pixels.reshape(*pixels.shape[:2], channels)


def read_picture(
    file: str | os.PathLike | BinaryIO, mode: str = "RGB", name: str | None = None
) -> Image.Image:
    """Return the result of `decode_image` as a Pillow image of mode "RGB" or "L"."""
    with open_image(file, name) as image:
        picture = as_mode(image, mode)
        picture.load()
        return picture


def as_mode(picture: Image.Image, mode: str) -> Image.Image:
    """Return an upright picture of mode "RGB" or "L"."""
    is_16_bit = picture.mode.startswith("I;16") or (picture.mode, picture.format) == ("I", "PPM")
    tags = picture.tag_v2 if picture.format == "TIFF" else {}
    bits, (kind, *_) = tags.get(tiff.BITSPERSAMPLE, (16,)), tags.get(tiff.SAMPLEFORMAT, (1,))
    if (bits[0], kind) == (8, 2):  # python-pillow/Pillow#811
        raise ValueError("Pillow reads signed levels of 8 bits as unsigned")
    if picture.getexif().get(ExifTags.Base.Orientation, 1) != 1:  # Avoids a copy.
        picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith(("I", "F")):
        # Pillow would clip levels above 255 instead of scaling.
        levels = np.array(picture, "float64")
        if tags and kind == 1:
            levels %= 2**32  # Pillow reads them as signed (python-pillow/Pillow#112).
        low, high = (0, 2 ** bits[0]) if is_16_bit else (levels.min(), levels.max())
        if not np.isfinite(high - low):
            raise ValueError("its levels are not finite")
        scale = (256 if is_16_bit else 255) / ((high - low) or 1)
        levels = ((levels - low) * scale).astype("uint8")
        # Pillow inverts TIFFs with 0 = white in up to 8 bits only.
        is_negative = tags.get(tiff.PHOTOMETRIC_INTERPRETATION) == 0
        picture = Image.fromarray(255 - levels if is_negative else levels)
    return picture if picture.mode == mode else picture.convert(mode)
