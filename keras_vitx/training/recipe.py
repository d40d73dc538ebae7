"""The settings of a training run, as data."""

import dataclasses
from typing import Any

from keras_vitx.text import nearest


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of a training run.

    Attributes:
        name: Name of the recipe.
        epochs: Passes over the training images.
        batch_size: Images per step.
        learning_rate: Peak learning rate, reached at the end of the warm-up.
        final_learning_rate: Learning rate at the end of the cosine decay.
        warmup_epochs: Epochs of linear warm-up from zero; may be fractional.
        weight_decay: Decoupled weight decay (AdamW). It does not apply to biases, norms,
            LayerScale, tokens and position embeddings.
        label_smoothing: Label smoothing, in training only.
        augmentation: Name of the augmentation of the training images, or None.
        clip_norm: Maximum global norm of the gradient; None for no clipping.

    Raises:
        ValueError: if a value is out of range.
    """

    name: str
    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 5e-4
    final_learning_rate: float = 1e-6
    warmup_epochs: float = 1.0
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    augmentation: str | None = "crop_flip"
    clip_norm: float | None = 1.0

    def __post_init__(self):
        for name, valid, expected in (
            ("epochs", self.epochs >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("learning_rate", self.learning_rate > 0, "above 0"),
            (
                "final_learning_rate",
                0 <= self.final_learning_rate <= self.learning_rate,
                "from 0 to learning_rate",
            ),
            ("warmup_epochs", 0 <= self.warmup_epochs < self.epochs, "from 0 to below epochs"),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
            ("label_smoothing", 0 <= self.label_smoothing < 1, "in [0, 1)"),
            ("clip_norm", self.clip_norm is None or self.clip_norm > 0, "None or above 0"),
        ):
            if not valid:
                raise ValueError(f"`{name}` must be {expected}. Received: {getattr(self, name)}.")

    def but(self, **changes: Any) -> "Recipe":
        """Return a copy with some settings changed.

        None turns `augmentation` or `clip_norm` off and leaves any other setting as it
        is. If `epochs` changes without `warmup_epochs`, the warm-up scales with it.

        Raises:
            ValueError: if a setting is unknown or out of range.
        """
        known = {field.name for field in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                raise ValueError(
                    f"No setting of a recipe is named {name!r}. {nearest(name, known)}"
                )
        optional = ("augmentation", "clip_norm")
        changes = {
            name: value for name, value in changes.items() if value is not None or name in optional
        }
        if "epochs" in changes and "warmup_epochs" not in changes:
            changes["warmup_epochs"] = self.warmup_epochs * changes["epochs"] / self.epochs
        return dataclasses.replace(self, **changes)
