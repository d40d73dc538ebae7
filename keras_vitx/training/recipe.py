"""The settings of a training run, as data."""

import dataclasses
import json
import math
import textwrap
import typing
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import starmap, zip_longest
from typing import Annotated, Any, Literal

from keras_vitx.checks import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    Remat,
    check,
    check_argument,
    check_fields,
    is_optional,
)
from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.mixing import Mixing
from keras_vitx.text import nearest

Fraction = Annotated[float, "[0, 1)"]
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run.

    ```python
    recipe = kv.training.recipes.get("deit").replace(epochs=100, mixup=0.2)
    print(recipe)
    ```

    Attributes:
        name: Name of the recipe.
        epochs: Passes over the training images, warm-up included and cool-down excluded.
        batch_size: Images per update of the weights, over all devices.
        learning_rate: Peak learning rate; for `base_batch_size` images per update, if that is set.
        base_batch_size: If set, the learning rate is proportional to the batch size:
            `learning_rate * batch_size / base_batch_size`.
        warmup_epochs: Epochs of linear warm-up; may be fractional.
        warmup_learning_rate: Learning rate at the start of the warm-up.
        decay: `"cosine"` falls to `final_learning_rate`, `"constant"` stays at the peak.
        final_learning_rate: Learning rate at the end of the cosine decay.
        cooldown_epochs: Further epochs at the last learning rate.
        steps_per_epoch: Batches per epoch; None for all. Needed for endless batches.
        min_updates: Minimum number of updates of a run, or None: with few images, the batch is
            halved as needed, down to 8 images, and then epochs are added.
        patience: Epochs without improvement after which training ends, with `result="best"`; None
            for no early stopping.
        algorithm: `"adamw"`, or `"muon"` for the matrices of the blocks and AdamW for the rest.
        weight_decay: Decoupled weight decay. It does not apply to biases, norms, LayerScale, tokens
            and position embeddings.
        beta_1: AdamW's decay of the mean of the gradients.
        beta_2: Decay of the mean of their squares.
        epsilon: Added to the root of that mean, corrected for its start at 0, as in PyTorch.
        clip_norm: Maximum global norm of the gradient; None for no clipping.
        layer_decay: Factor of the learning rate from one block to the block before it; None gives
            all layers the same rate.
        ema: Momentum of the moving average of the weights, which is validated and is the result;
            None keeps no average. In a `Chain`, statistics of normalization are averaged too.
        accumulate_steps: Number of micro-batches of a batch, computed one after the other to save
            memory. It divides `batch_size`.
        augmentation: Augmentation of the training images, or its name (see
            `keras_vitx.data.pipelines`); None uses the evaluation transform.
        mixing: MixUp and CutMix; None for neither.
        drop_path: Rate of stochastic depth. For this and the settings up to `precision`, None
            leaves the network as it was built.
        drop_path_schedule: `"linear"`, from 0 to that rate in the last block, or `"constant"`.
        remat: What training recomputes to save memory: False, `"products"` or True, as in `Chain`.
        crop_ratio: Crop ratio in evaluation.
        train: `"head"` freezes all but the classifier, for a first stage; `"all"` trains all, as
            `model.trainable = True`; None leaves what is frozen.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.
        label_smoothing: Label smoothing, in training only.
        distillation: `"hard"` or `"soft"`, the kind of distillation from the teacher passed to
            `fit` (`keras_vitx.training.Distillation`). None is `"hard"` and makes the teacher
            optional.
        temperature: Temperature of soft distillation.
        distillation_weight: Weight of the teacher in the loss; None is 0.5 for `"hard"` and 0.1 for
            `"soft"`.
        result: Epoch whose weights are the result: `"last"`, or `"best"` on the validation images.

    Raises:
        ValueError: if a value is out of range.
    """

    name: str
    epochs: PositiveInt = 10
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = 5e-4
    base_batch_size: PositiveInt | None = None
    warmup_epochs: NonNegativeFloat = 1.0
    warmup_learning_rate: NonNegativeFloat = 0.0
    decay: Literal["cosine", "constant"] = "cosine"
    final_learning_rate: NonNegativeFloat = 1e-6
    cooldown_epochs: NonNegativeInt = 0
    steps_per_epoch: PositiveInt | None = None
    min_updates: PositiveInt | None = None
    patience: PositiveInt | None = None

    algorithm: Literal["adamw", "muon"] = "adamw"
    weight_decay: NonNegativeFloat = 0.05
    beta_1: Fraction = 0.9
    beta_2: Fraction = 0.999
    epsilon: PositiveFloat = 1e-8
    clip_norm: PositiveFloat | None = None
    layer_decay: Annotated[float, "(0, 1]"] | None = None
    ema: Annotated[float, "(0, 1)"] | None = None
    accumulate_steps: PositiveInt = 1

    augmentation: Augmentation | None = field(default_factory=Augmentation)
    mixing: Mixing | None = None

    drop_path: Fraction | None = None
    drop_path_schedule: Literal["linear", "constant"] = "linear"
    remat: Remat | None = None
    crop_ratio: PositiveFloat | None = None
    train: Literal["all", "head"] | None = None
    precision: Precision | None = None

    label_smoothing: Fraction = 0.1
    distillation: Literal["hard", "soft"] | None = None
    temperature: PositiveFloat = 3.0
    distillation_weight: Probability | None = None

    result: Literal["last", "best"] = "best"

    def __post_init__(self):
        if isinstance(self.augmentation, str):
            object.__setattr__(self, "augmentation", Augmentation.of(self.augmentation))
        check_fields(self)
        rule = f"`warmup_epochs` must be below epochs={self.epochs}."
        check(self.warmup_epochs < self.epochs, rule, self.warmup_epochs)
        falls = self.decay == "constant" or self.final_learning_rate <= self.learning_rate
        rule = f"`final_learning_rate` must be at most learning_rate={self.learning_rate}."
        check(falls, rule, self.final_learning_rate)
        rule = f"`accumulate_steps` must divide batch_size={self.batch_size}."
        check(self.batch_size % self.accumulate_steps == 0, rule, self.accumulate_steps)
        rule = "`patience` must be None unless result='best'."
        check(self.result == "best" or self.patience is None, rule, self.patience)

    def replace(self, **changes: Any) -> "Recipe":
        """Return a copy with some settings changed.

        Changes are settings, including single ones of the augmentation or the mixing (`mixup=0.2`)
        or these as a whole (`mixing=None`). None turns a setting off where it is optional, as
        `clip_norm`, and otherwise leaves it unchanged. A setting of an augmentation or mixing that
        is off turns only that setting on. If `epochs` changes without `warmup_epochs`, the warm-up
        scales with it.

        Raises:
            ValueError: if a setting is unknown or out of range.
        """
        for name in changes:
            rule = f"Settings must be those of a recipe. {nearest(name, HINTS)}"
            check(name in HINTS, rule, name)
        changes = {n: v for n, v in changes.items() if v is not None or is_optional(HINTS[n])}
        if "epochs" in changes and "warmup_epochs" not in changes:
            check_argument("epochs", changes["epochs"], HINTS["epochs"])
            changes["warmup_epochs"] = self.warmup_epochs * changes["epochs"] / self.epochs
        for group, off in OFF.items():
            fields = {n: changes.pop(n) for n in vars(off) if n in changes}
            if fields:
                value = changes.get(group, getattr(self, group)) or off
                value = Augmentation.of(value) if isinstance(value, str) else value
                changes[group] = dataclasses.replace(value, **fields)
        return dataclasses.replace(self, **changes)

    @property
    def all_epochs(self) -> int:
        """Number of epochs, cool-down included."""
        return self.epochs + self.cooldown_epochs

    @property
    def peak(self) -> float:
        """Peak learning rate for this batch size."""
        return self.learning_rate * self.batch_size / (self.base_batch_size or self.batch_size)

    @property
    def part_of_batch(self) -> int:
        """Number of images per forward pass: `batch_size / accumulate_steps`."""
        return self.batch_size // self.accumulate_steps

    def for_images(self, images: int, fixed: Collection[str] = ()) -> "Recipe":
        """Return the recipe adapted to a number of images, for at least `min_updates` updates.

        `"batch_size"`, `"epochs"` and `"warmup_epochs"` do not change if they are in `fixed`.
        """
        if self.min_updates is None:
            return self
        batch, epochs = self.batch_size, self.epochs
        if "batch_size" not in fixed and self.accumulate_steps == 1:
            while batch >= 16 and epochs * (images // batch) < self.min_updates:
                batch //= 2
        if "epochs" not in fixed:
            epochs = max(epochs, math.ceil(self.min_updates / max(images // batch, 1)))
        if (batch, epochs) == (self.batch_size, self.epochs):
            return self
        kept = {"warmup_epochs": self.warmup_epochs} if "warmup_epochs" in fixed else {}
        return self.replace(batch_size=batch, epochs=epochs, **kept)

    def __str__(self) -> str:
        """Return a table with one row per group, in the syntax of the command line."""
        rows, settings = [f"--recipe {self.name} --result {self.result}"], self.to_dict()
        for group, names in GROUPS.items():
            given = {name: settings[name] for name in names if name in settings}
            words = starmap(_as_option, (given or {group: None}).items())
            lines = textwrap.wrap(" ".join(words), 80, break_on_hyphens=False)
            rows += starmap("  {:<14}{}".format, zip_longest([group], lines, fillvalue=""))
        return "\n".join(rows).replace("\N{NO-BREAK SPACE}", " ")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, of which `replace` makes an equal recipe."""
        settings: dict[str, Any] = {}
        for name, value in vars(self).items():
            settings |= vars(value) if name in OFF and value else {name: value}
        # Numbers of NumPy are written as Python's.
        return json.loads(json.dumps(settings, default=lambda number: number.item()))


# The values to which `replace` adds a setting if augmentation or mixing is None.
OFF: dict[str, Any] = {
    "augmentation": Augmentation(crop=None, flip=0.0),
    "mixing": Mixing(mixup=0.0, cutmix=0.0),
}
NAMES = [setting.name for setting in dataclasses.fields(Recipe)]


def _names(first: str, last: str) -> list[str]:
    return NAMES[NAMES.index(first) : NAMES.index(last) + 1]


# The groups of settings in printed recipes.
GROUPS = {
    "schedule": _names("epochs", "patience"),
    "optimizer": _names("algorithm", "accumulate_steps"),
    "network": _names("drop_path", "precision"),
    "targets": _names("label_smoothing", "distillation_weight"),
    **{name: list(vars(off)) for name, off in OFF.items()},
}

# The annotation of each setting, by name.
HINTS: dict[str, Any] = {
    name: hint
    for owner in (Recipe, Augmentation, Mixing)
    for name, hint in typing.get_type_hints(owner, include_extras=True).items()
}


def _as_option(name: str, value: Any) -> str:
    """Return a setting as the command takes it; its words stay on one line."""
    values = value if isinstance(value, list) else [value]
    words = ["none" if part is None else str(part) for part in values]
    return "\N{NO-BREAK SPACE}".join([f"--{name.replace('_', '-')}", *words])
