"""The settings of a training run, as data."""

import dataclasses
import json
import math
import os
import textwrap
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal

from keras_vitx.data.augmentation import Augmentation, from_fields
from keras_vitx.data.augmentation.mixing import Mixing
from keras_vitx.text import nearest

# Numbers and the interval in which they must be.
PositiveInt = Annotated[int, "[1, inf)"]
NonNegativeInt = Annotated[int, "[0, inf)"]
PositiveFloat = Annotated[float, "(0, inf)"]
NonNegativeFloat = Annotated[float, "[0, inf)"]
Fraction = Annotated[float, "[0, 1)"]
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run.

    ```python
    recipe = kv.training.recipes.get("deit").but(epochs=100, mixup=0.2)
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
        min_updates: Fewest updates of a run, None for any number: for few images, the batch is
            halved as needed, down to 8 images, and then the epochs are raised.
        freeze_epochs: Epochs before all others in which only the head learns.
        patience: Epochs without a better one after which training ends, with `result="best"`; None
            for no early end.
        algorithm: `"adamw"`, or `"muon"` for the matrices of the blocks and AdamW for the rest
            (`keras_vitx.training.Muon`).
        weight_decay: Decoupled weight decay. It does not apply to biases, norms, LayerScale, tokens
            and position embeddings.
        beta_1: AdamW's decay of the mean of the gradients.
        beta_2: Decay of the mean of their squares.
        epsilon: Added to the root of that mean.
        clip_norm: Maximum global norm of the gradient; None for no clipping.
        layer_decay: Factor of the learning rate from one block to the block before it; None gives
            all layers the same rate.
        ema: Momentum of the moving average of the weights, which is validated and is the result;
            None keeps no average.
        accumulate_steps: Number of parts of a batch that are computed one after the other, to save
            memory. It divides `batch_size`.
        augmentation: Augmentation of the training images, or a name of one (see
            `keras_vitx.data.pipelines`); None trains on the images of evaluation.
        mixing: MixUp and CutMix; None for neither.
        drop_path: Rate of stochastic depth. For this and the settings up to `precision`, None
            leaves the network as it was built.
        drop_path_rises: Whether the rate rises linearly over the blocks, from 0 to `drop_path`. If
            not, all blocks have the same rate.
        similarity: Weight of the similarity between maps in the loss (DeepViT, Appendix A).
        similarity_depth: Number of pairs of blocks whose maps are compared.
        remat: Whether training keeps only the input of each layer and recomputes the rest.
        crop_ratio: Crop ratio of the images in evaluation.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.
        label_smoothing: Label smoothing, in training only.
        mix_token: Whether MixToken mixes the patches (`keras_vitx.training.MixToken`).
        distillation: `"hard"` or `"soft"`, how the teacher given to `fit` is imitated
            (`keras_vitx.training.Distillation`). None is `"hard"` with a teacher, and needs none.
        temperature: Temperature of soft distillation.
        distillation_weight: Weight of the teacher's part in the loss; None is 0.5 for `"hard"` and
            0.1 for `"soft"`.
        result: Epoch whose weights are the result: the `"last"`, or the `"best"` by the validation
            images.

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
    freeze_epochs: NonNegativeInt = 0
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
    drop_path_rises: bool = True
    similarity: NonNegativeFloat | None = None
    similarity_depth: PositiveInt | None = None
    remat: bool | None = None
    crop_ratio: PositiveFloat | None = None
    precision: Precision | None = None

    label_smoothing: Fraction = 0.1
    mix_token: bool = False
    distillation: Literal["hard", "soft"] | None = None
    temperature: PositiveFloat = 3.0
    distillation_weight: Annotated[float, "[0, 1]"] | None = None

    result: Literal["last", "best"] = "best"

    def __post_init__(self):
        if isinstance(self.augmentation, str):
            object.__setattr__(self, "augmentation", Augmentation.of(self.augmentation))
        for name, value in vars(self).items():
            _check(name, value)
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"`warmup_epochs` must be below epochs={self.epochs}. "
                f"Received: {self.warmup_epochs}."
            )
        if self.decay == "cosine" and self.final_learning_rate > self.learning_rate:
            raise ValueError(
                f"`final_learning_rate` must be at most learning_rate={self.learning_rate}. "
                f"Received: {self.final_learning_rate}."
            )
        if self.similarity and self.similarity_depth is None:
            raise ValueError(
                "`similarity_depth` must be given with `similarity`. "
                f"Received: similarity={self.similarity}, similarity_depth=None."
            )
        if self.result == "last" and self.patience is not None:
            raise ValueError(
                f"`patience` must be None with result='last'. Received: {self.patience}. "
                "Give result='best'."
            )

    def but(self, **changes: Any) -> "Recipe":
        """Return a copy with some settings changed.

        A change is any setting, also one of the augmentation or the mixing (`mixup=0.2`), or the
        whole of these (`mixing=None`). None turns off what can be off, such as `clip_norm`, and
        leaves any other setting as it is. A setting of an augmentation or a mixing that is off
        turns it on, with nothing else in it. If `epochs` changes without `warmup_epochs`, the
        warm-up scales with it.

        Raises:
            ValueError: if a setting is unknown or out of range.
        """
        _check_known(changes, HINTS)
        changes = {n: v for n, v in changes.items() if v is not None or _is_optional(n)}
        if "epochs" in changes and "warmup_epochs" not in changes:
            _check("epochs", changes["epochs"])
            changes["warmup_epochs"] = self.warmup_epochs * changes["epochs"] / self.epochs
        for part, off in OFF.items():
            inner = {n: changes.pop(n) for n in vars(off) if n in changes}
            if inner:
                whole = changes.get(part, getattr(self, part)) or off
                whole = Augmentation.of(whole) if isinstance(whole, str) else whole
                changes[part] = dataclasses.replace(whole, **inner)
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
        """Number of images that are computed at a time.

        Raises:
            ValueError: if `accumulate_steps` does not divide the batch.
        """
        if self.batch_size % self.accumulate_steps:
            raise ValueError(
                f"`accumulate_steps` must divide batch_size={self.batch_size}, the images per "
                f"update. Received: {self.accumulate_steps}."
            )
        return self.batch_size // self.accumulate_steps

    def for_images(self, images: int, fixed: Collection[str] = ()) -> "Recipe":
        """Return the recipe with at least `min_updates` updates for a number of training images.

        `fixed` names those of `"batch_size"` and `"epochs"` that stay as they are.
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
        return self.but(batch_size=batch, epochs=epochs)

    def smoke(self) -> "Recipe":
        """Return the recipe with two short epochs and tiny batches, to try all its parts."""
        return dataclasses.replace(
            self,
            epochs=2,
            warmup_epochs=min(self.warmup_epochs, 0.5),
            cooldown_epochs=min(self.cooldown_epochs, 1),
            freeze_epochs=min(self.freeze_epochs, 1),
            min_updates=None,
            # Enough for mixing and repeated images, and a multiple of the parts.
            batch_size=math.lcm(8, self.accumulate_steps),
        )

    def settings(self) -> dict[str, Any]:
        """Return all settings by name; `augmentation` or `mixing` is among them if it is None."""
        found = {"result": self.result}
        for name, group in self._groups().items():
            found |= {name: None} if group is None else group
        return found

    def differences(self, other: "Recipe") -> dict[str, tuple[Any, Any]]:
        """Return the settings that differ, by name: those of this recipe and of `other`.

        Settings of an augmentation or a mixing that is off are None.
        """
        mine, theirs = self.settings(), other.settings()
        names = [name for name in {**mine, **theirs} if name not in OFF]
        pairs = {name: (mine.get(name), theirs.get(name)) for name in names}
        return {name: (one, two) for name, (one, two) in pairs.items() if one != two}

    def __str__(self) -> str:
        """Return a table: one row per group, in the form that the command line reads."""
        rows = [f"{self.name} (result={self.result})"]
        for name, group in self._groups().items():
            words = ["off"] if group is None else map(_as_word, group, group.values())
            lines = textwrap.wrap(" ".join(words), 80, break_on_hyphens=False)
            rows += [
                f"  {first:<14}{line}" for first, line in zip_longest([name], lines, fillvalue="")
            ]
        return "\n".join(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as data for JSON, from which `from_dict` makes an equal recipe."""
        settings = {"name": self.name, "result": self.result, **self._groups()}
        return json.loads(json.dumps(settings))

    def _groups(self) -> dict[str, dict[str, Any] | None]:
        groups = {group: {n: getattr(self, n) for n in names} for group, names in GROUPS.items()}
        for part in OFF:
            value = getattr(self, part)
            groups[part] = None if value is None else dict(vars(value))
        return groups

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Recipe":
        """Make a recipe from the data that `to_dict` returned. What is missing has its default.

        Raises:
            ValueError: if a setting is unknown or out of range.
        """
        _check_known(settings, [*NAMES, *GROUPS])
        values = dict(settings)
        for group, names in GROUPS.items():
            part = values.pop(group, {})
            if not isinstance(part, Mapping):
                raise ValueError(f"`{group}` must be a dictionary. Received: {part!r}.")
            _check_known(part, names)
            values |= part
        for part, off in OFF.items():
            if isinstance(values.get(part), Mapping):
                values[part] = from_fields(type(off), values[part])
        return cls(**values)

    @classmethod
    def read(cls, run: str | os.PathLike) -> "Recipe":
        """Read the recipe of a training run from its folder, or from its `run.json`.

        Raises:
            OSError: if there is no such file.
            ValueError: if it holds no recipe.
        """
        path = Path(run).expanduser()
        path = path / "run.json" if path.is_dir() else path
        try:
            return cls.from_dict(json.loads(path.read_text())["recipe"])
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            why = f"{type(error).__name__}: {error!s:.300}"
            raise ValueError(f"{path} holds no recipe of a training run ({why}).") from error


NAMES = [setting.name for setting in dataclasses.fields(Recipe)]


def _from(first: str, last: str) -> list[str]:
    return NAMES[NAMES.index(first) : NAMES.index(last) + 1]


# The groups of a file and of a printed recipe. Augmentation and mixing are two more.
GROUPS = {
    "schedule": _from("epochs", "patience"),
    "optimizer": _from("algorithm", "accumulate_steps"),
    "network": _from("drop_path", "precision"),
    "targets": _from("label_smoothing", "distillation_weight"),
}

# What `but` adds a setting to where augmentation or mixing is None.
OFF: dict[str, Any] = {
    "augmentation": Augmentation(crop=None, flip=0.0),
    "mixing": Mixing(mixup=0.0, cutmix=0.0),
}

# The annotation of each setting, by name.
HINTS: dict[str, Any] = {
    name: hint
    for owner in (Recipe, Augmentation, Mixing)
    for name, hint in typing.get_type_hints(owner, include_extras=True).items()
}


def _check(name: str, value: Any) -> None:
    """Raise a ValueError if a setting is not what its annotation says."""
    hint, optional = HINTS[name], _is_optional(name)
    if value is None and optional:
        return
    kind = typing.get_args(hint)[0] if optional else hint
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is Annotated:
        number, interval = arguments
        words = f"{'an integer' if number is int else 'a number'} in {interval}"
        number = int if number is int else Real
        right = isinstance(value, number) and not isinstance(value, bool)
        right = right and _is_within(value, interval)
    elif arguments or kind is bool:
        choices = arguments or (True, False)
        words, right = f"one of {', '.join(map(repr, choices))}", value in choices
    else:
        words, right = f"of type `{kind.__name__}`", isinstance(value, kind)
    if not right:
        none = ", or None" if optional else ""
        raise ValueError(f"`{name}` must be {words}{none}. Received: {value!r}.")


def _is_optional(name: str) -> bool:
    return type(None) in typing.get_args(HINTS[name])


def _is_within(value: Real, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    above = low <= value if interval[0] == "[" else low < value
    return above and (value <= high if interval[-1] == "]" else value < high)


def _check_known(names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"No setting of a recipe is named {name!r}. {nearest(name, known)}")


def _as_word(name: str, value: Any) -> str:
    value = ",".join(f"{v:.6g}" for v in value) if isinstance(value, tuple) else value
    return f"{name}={value}"
