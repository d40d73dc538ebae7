"""What a file of ours says about the model that it was saved from."""

import json
from dataclasses import dataclass

from keras_vitx.preprocessing import Preprocessing
from keras_vitx.weights.positions import Grid

LIBRARY = "keras_vitx"


@dataclass(frozen=True)
class Description:
    """Facts about a saved model that its tensors don't show.

    Attributes:
        model: The model's name.
        family: Its family, such as "CaiT".
        grid: (rows, columns) of its patches, None where it has no positions.
        class_names: One for each class, or None.
        preprocessing: How its images are prepared, or None.
    """

    model: str
    family: str
    grid: Grid | None
    class_names: tuple[str, ...] | None
    preprocessing: Preprocessing | None

    def to_metadata(self) -> dict[str, str]:
        """Return the facts as the strings that a safetensors file holds, JSON each."""
        facts = {
            key: json.dumps(value.to_dict() if isinstance(value, Preprocessing) else value)
            for key, value in vars(self).items()
        }
        # Tensors stand under PyTorch's names and in its layout, and the
        # "format" entry is how readers of safetensors know that.
        return {"format": "pt", "library": LIBRARY, **facts}

    @classmethod
    def from_metadata(cls, metadata: dict[str, str] | None) -> "Description | None":
        """Read the facts back; None when the file isn't one of ours.

        Raises:
            ValueError: when an entry is missing or isn't of the form it should have.
        """
        if not metadata or metadata.get("library") != LIBRARY:
            return None
        try:
            facts = {key: json.loads(metadata[key]) for key in cls.__annotations__}
            grid, names, preprocessing = (
                facts[key] for key in ("grid", "class_names", "preprocessing")
            )
            return cls(
                model=str(facts["model"]),
                family=str(facts["family"]),
                grid=None if grid is None else (int(grid[0]), int(grid[1])),
                class_names=None if names is None else tuple(str(name) for name in names),
                preprocessing=None if preprocessing is None else Preprocessing.of(preprocessing),
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"The file's metadata can't be read: {error!r}.") from error


def describe(model) -> Description:
    """Describe a model of the zoo, for `to_metadata`."""
    positions = [layer for layer in model.layers if hasattr(layer, "grid")]
    names = getattr(model, "class_names", None)
    preprocessing = getattr(model, "preprocessing", None)
    return Description(
        model=model.name,
        family=getattr(model, "family", ""),
        grid=tuple(int(n) for n in positions[0].grid) if positions else None,
        class_names=None if names is None else tuple(names),
        preprocessing=None if preprocessing is None else Preprocessing.of(preprocessing),
    )
