"""The description of the model that a saved file holds besides the weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from keras_vitx.preprocessing import Preprocessing
from keras_vitx.weights.positions import Grid

LIBRARY = "keras_vitx"


@dataclass(frozen=True)
class Description:
    """What a saved model is, which can't be read off its tensors.

    Attributes:
        model: The model's name.
        family: Its family, such as "CaiT", or None.
        grid: (rows, columns) of its patches, or None if it has no positions.
        class_names: One name per class, or None.
        preprocessing: Preprocessing of its images, or None.

    Raises:
        ValueError: if a value is malformed; the message names the attribute.
    """

    model: str
    family: str | None
    grid: Grid | None
    class_names: tuple[str, ...] | None
    preprocessing: Preprocessing | None

    def __post_init__(self):
        if not isinstance(self.model, str):
            raise ValueError(f"`model` must be a name. Received: {self.model!r:.100}.")
        if not isinstance(self.family, str | None):
            raise ValueError(f"`family` must be a name or None. Received: {self.family!r:.100}.")
        object.__setattr__(self, "grid", _grid(self.grid))
        object.__setattr__(self, "class_names", _names(self.class_names))
        if self.preprocessing is not None:
            object.__setattr__(self, "preprocessing", Preprocessing.of(self.preprocessing))

    def to_metadata(self) -> dict[str, str]:
        """Return them as safetensors metadata: strings, each in JSON."""
        metadata = {
            key: json.dumps(value.to_dict() if isinstance(value, Preprocessing) else value)
            for key, value in vars(self).items()
        }
        # "format" marks the names and layouts as those of PyTorch.
        return {"format": "pt", "library": LIBRARY, **metadata}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str] | None) -> "Description | None":
        """Read a description from safetensors metadata; None unless `save_safetensors` wrote it.

        Raises:
            ValueError: if an entry is missing or malformed.
        """
        if not metadata or metadata.get("library") != LIBRARY:
            return None
        missing = [key for key in cls.__annotations__ if key not in metadata]
        if missing:
            raise ValueError(f"`{missing[0]}` is missing.")
        return cls(**{key: json.loads(metadata[key]) for key in cls.__annotations__})

    @classmethod
    def from_config(cls, config: Any) -> "Description":
        """Read a description from the config of a saved `Chain`.

        Args:
            config: The result of `keras.saving.serialize_keras_object`, from JSON.

        Raises:
            ValueError: if an entry is missing or malformed.
        """
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


def _grid(value: Any) -> Grid | None:
    if value is None:
        return None
    numbers = value if isinstance(value, (list, tuple)) else ()
    if len(numbers) != 2 or not all(isinstance(n, Integral) and n > 0 for n in numbers):
        raise ValueError(f"`grid` must be (rows, columns) or None. Received: {value!r:.100}.")
    return int(numbers[0]), int(numbers[1])


def _names(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    is_list = isinstance(value, (list, tuple))
    if not is_list or not all(isinstance(name, (str, Integral)) for name in value):
        raise ValueError(f"`class_names` must be names or None. Received: {value!r:.100}.")
    return tuple(str(name) for name in value)


def _values(entry: Any) -> Any:
    """Undo the way Keras serializes tuples and arrays in a config."""
    if isinstance(entry, dict) and entry.get("class_name") == "__numpy__":
        entry = entry["config"].get("value") if isinstance(entry.get("config"), dict) else None
    if isinstance(entry, dict):
        return {str(key): _values(value) for key, value in entry.items()}
    return [_values(value) for value in entry] if isinstance(entry, list) else entry
