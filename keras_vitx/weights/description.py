"""The description of the model that a saved file holds besides the weights."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from keras_vitx.preprocessing import Preprocessing
from keras_vitx.weights.positions import Grid

LIBRARY = "keras_vitx"
CONFIG = "config.json"


class Refused(ValueError):
    """The file has the right format but is not accepted; the message says why."""


@dataclass(frozen=True)
class Description:
    """What a saved model's tensors don't tell; raises a ValueError for a malformed value."""

    model: str  # The model's name.
    family: str | None
    grid: Grid | None  # (rows, columns) of its patches, if it has positions.
    class_names: tuple[str, ...] | None
    preprocessing: Preprocessing | None

    def __post_init__(self):
        _check("model", self.model, "a name", isinstance(self.model, str))
        _check("family", self.family, "a name or None", isinstance(self.family, str | None))
        if self.grid is not None:
            numbers = self.grid if isinstance(self.grid, list | tuple) else ()
            fits = len(numbers) == 2 and all(isinstance(n, Integral) and n > 0 for n in numbers)
            _check("grid", self.grid, "(rows, columns) or None", fits)
            object.__setattr__(self, "grid", (int(numbers[0]), int(numbers[1])))
        if (names := self.class_names) is not None:
            fits = isinstance(names, list | tuple) and all(
                isinstance(name, str | Integral) for name in names
            )
            _check("class_names", names, "names or None", fits)
            object.__setattr__(self, "class_names", tuple(str(name) for name in names))
        if self.preprocessing is not None:
            object.__setattr__(self, "preprocessing", Preprocessing.of(self.preprocessing))

    def to_metadata(self) -> dict[str, str]:
        """Return it as safetensors metadata: strings, each in JSON."""
        metadata = {
            key: json.dumps(value.to_dict() if isinstance(value, Preprocessing) else value)
            for key, value in vars(self).items()
        }
        # "format" marks the names and layouts as those of PyTorch.
        return {"format": "pt", "library": LIBRARY, **metadata}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str] | None) -> "Description | None":
        """Read a description from safetensors metadata; None unless `save_safetensors` wrote it."""
        if not metadata or metadata.get("library") != LIBRARY:
            return None
        with _about("metadata"):
            missing = [key for key in cls.__annotations__ if key not in metadata]
            if missing:
                raise ValueError(f"`{missing[0]}` is missing.")
            return cls(**{key: json.loads(metadata[key]) for key in cls.__annotations__})

    @classmethod
    def from_config(cls, config: Any) -> "Description":
        """Read a description from the config of a saved `Chain`, without building the model."""
        with _about(CONFIG):
            config = config.get("config") if isinstance(config, dict) else None
            if not isinstance(config, dict):
                raise ValueError("it isn't the config of a model.")
            layers = config.get("layers")
            layers = layers if isinstance(layers, list) else []
            configs = [layer.get("config") for layer in layers if isinstance(layer, dict)]
            grids = (layer.get("grid") for layer in configs if isinstance(layer, dict))
            return cls(
                model=config.get("name"),
                family=config.get("family"),
                grid=next((grid for grid in grids if grid is not None), None),
                class_names=_values(config.get("class_names")),
                preprocessing=_values(config.get("preprocessing")),
            )


def describe(model) -> Description:
    """Return the description of a built model of this package."""
    positions = [layer for layer in model.layers if hasattr(layer, "grid")]
    return Description(
        model=model.name,
        family=getattr(model, "family", None),
        grid=positions[0].grid if positions else None,
        class_names=getattr(model, "class_names", None),
        preprocessing=getattr(model, "preprocessing", None),
    )


@contextlib.contextmanager
def _about(part: str) -> Iterator[None]:
    """Re-raise errors as `Refused`, naming the part of the file that holds the description."""
    try:
        yield
    except ValueError as error:
        raise Refused(f"The file's {part} can't be used: {error}") from error


def _check(name: str, value: Any, expected: str, fits: bool) -> None:
    if not fits:
        raise ValueError(f"`{name}` must be {expected}. Received: {value!r:.100}.")


def _values(entry: Any) -> Any:
    """Undo the way Keras serializes tuples and arrays in a config."""
    if isinstance(entry, dict) and entry.get("class_name") == "__numpy__":
        entry = entry["config"].get("value") if isinstance(entry.get("config"), dict) else None
    if isinstance(entry, dict):
        return {str(key): _values(value) for key, value in entry.items()}
    return [_values(value) for value in entry] if isinstance(entry, list) else entry
