"""Attention maps in few bytes: levels from 0 to 255 per row, compressed, as text."""

import base64
import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Quantized:
    """Attention maps, each row in levels between its own extremes.

    A weight is `low + step * level`, so it differs from the original by at most half a step.

    Attributes:
        low: Smallest weight of each row, float32 `(heads, queries)`.
        step: Difference between two levels, in the same form.
        levels: uint8 `(heads, queries, keys)`.
    """

    low: np.ndarray
    step: np.ndarray
    levels: np.ndarray

    @classmethod
    def of(cls, maps: np.ndarray, count: int = 256) -> "Quantized":
        """Quantize maps `(heads, queries, keys)` to `count` levels per row."""
        low, high = maps.min(-1), maps.max(-1)
        step = (high - low) / (count - 1)
        levels = (maps - low[..., None]) / np.where(step > 0, step, 1)[..., None]
        return cls(low.astype("<f4"), step.astype("<f4"), np.rint(levels).astype("uint8"))

    def maps(self) -> np.ndarray:
        """Return the maps, float32 `(heads, queries, keys)`."""
        return self.low[..., None] + self.step[..., None] * self.levels

    def text(self) -> str:
        """Return low, step and levels one after the other, by zlib and Base64."""
        content = b"".join(part.tobytes() for part in (self.low, self.step, self.levels))
        return base64.b64encode(zlib.compress(content)).decode()

    @classmethod
    def from_text(cls, text: str, shape: tuple[int, int, int]) -> "Quantized":
        """Read what `text` wrote, for maps of a shape `(heads, queries, keys)`."""
        content = zlib.decompress(base64.b64decode(text))
        rows = shape[0] * shape[1]
        low, step = np.frombuffer(content, "<f4", 2 * rows).reshape(2, *shape[:2])
        levels = np.frombuffer(content, "uint8", offset=8 * rows).reshape(shape)
        return cls(low, step, levels)
