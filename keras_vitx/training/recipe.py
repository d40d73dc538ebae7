"""The settings of a training run, as data."""

import dataclasses
import functools
import json
import math
import os
import textwrap
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.mixing import Mixing
from keras_vitx.text import nearest

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")

# The numbers that each setting may be. What else it may be is in its annotation.
INTERVALS = {
    "epochs": "[1, inf)",
    "batch_size": "[1, inf)",
    "learning_rate": "(0, inf)",
    "base_batch_size": "[1, inf)",
    "warmup_epochs": "[0, inf)",
    "warmup_learning_rate": "[0, inf)",
    "final_learning_rate": "[0, inf)",
    "cooldown_epochs": "[0, inf)",
    "steps_per_epoch": "[1, inf)",
    "min_updates": "[1, inf)",
    "freeze_epochs": "[0, inf)",
    "patience": "[1, inf)",
    "weight_decay": "[0, inf)",
    "beta_1": "[0, 1)",
    "beta_2": "[0, 1)",
    "epsilon": "(0, inf)",
    "clip_norm": "(0, inf)",
    "layer_decay": "(0, 1]",
    "ema": "(0, 1)",
    "accumulate_steps": "[1, inf)",
    "drop_path": "[0, 1)",
    "similarity": "[0, inf)",
    "similarity_depth": "[1, inf)",
    "crop_ratio": "(0, inf)",
    "label_smoothing": "[0, 1)",
    "temperature": "(0, inf)",
    "distillation_weight": "[0, 1]",
}


class _Checked:
    """Settings that are checked by their annotations and `INTERVALS`."""

    def __post_init__(self):
        for name in _fields_of(type(self)):
            _check(type(self), name, getattr(self, name))


def _check(group: type, name: str, value: Any) -> None:
    hint = typing.get_type_hints(group)[name]
    optional = _is_optional(group, name)
    kind = typing.get_args(hint)[0] if optional else hint
    if value is None and optional:
        return
    if kind is bool or typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind) or (True, False)
        allowed = value in choices
        words = "one of " + ", ".join(map(repr, choices))
    else:
        interval = INTERVALS[name]
        number = isinstance(value, int if kind is int else Real) and not isinstance(value, bool)
        allowed = number and _within(value, interval)
        words = f"{'an integer' if kind is int else 'a number'} in {interval}"
    if not allowed:
        none = ", or None" if optional else ""
        raise ValueError(f"`{name}` must be {words}{none}. Received: {value!r}.")


def _within(value: Real, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    return (low <= value if interval[0] == "[" else low < value) and (
        value <= high if interval[-1] == "]" else value < high
    )


@dataclass(frozen=True)
class Schedule(_Checked):
    """How long to train, and the learning rate over time.

    Attributes:
        epochs: Passes over the training images, warm-up included and cool-down excluded.
        batch_size: Images per update of the weights, over all devices.
        learning_rate: Peak learning rate; for `base_batch_size` images per update, if that
            is set.
        base_batch_size: If set, the learning rate is proportional to the batch size:
            `learning_rate * batch_size / base_batch_size`.
        warmup_epochs: Epochs of linear warm-up; may be fractional.
        warmup_learning_rate: Learning rate at the start of the warm-up.
        decay: `"cosine"` falls to `final_learning_rate`, `"constant"` stays at the peak.
        final_learning_rate: Learning rate at the end of the cosine decay.
        cooldown_epochs: Further epochs at the last learning rate.
        steps_per_epoch: Batches per epoch; None for all. Needed for endless batches.
        min_updates: Fewest updates of a run: for few images, the batch is halved as often as it
            needs, down to 8 images, and then the epochs are raised; None for any number.
        freeze_epochs: Epochs before all others in which only the head learns.
        patience: Epochs without a better one after which training ends, with
            `result="best"`; None for no early end.

    Raises:
        ValueError: if a value is out of range.
    """

    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 5e-4
    base_batch_size: int | None = None
    warmup_epochs: float = 1.0
    warmup_learning_rate: float = 0.0
    decay: Literal["cosine", "constant"] = "cosine"
    final_learning_rate: float = 1e-6
    cooldown_epochs: int = 0
    steps_per_epoch: int | None = None
    min_updates: int | None = None
    freeze_epochs: int = 0
    patience: int | None = None

    def __post_init__(self):
        super().__post_init__()
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

    @property
    def all_epochs(self) -> int:
        """Number of epochs, cool-down included."""
        return self.epochs + self.cooldown_epochs

    @property
    def peak(self) -> float:
        """Peak learning rate for this batch size."""
        return self.learning_rate * self.batch_size / (self.base_batch_size or self.batch_size)


@dataclass(frozen=True)
class Optimizer(_Checked):
    """Settings of AdamW or Muon, and what is done around an update.

    Attributes:
        algorithm: `"adamw"`, or `"muon"` (`keras_vitx.training.Muon`): Muon for the
            matrices of the blocks, AdamW for the rest.
        weight_decay: Decoupled weight decay. It does not apply to biases, norms,
            LayerScale, tokens and position embeddings.
        beta_1: AdamW's decay of the mean of the gradients.
        beta_2: Decay of the mean of their squares.
        epsilon: Added to the root of that mean.
        clip_norm: Maximum global norm of the gradient; None for no clipping.
        layer_decay: Factor of the learning rate from one block to the block before it;
            None gives all layers the same rate.
        ema: Momentum of the moving average of the weights. If set, the average is
            validated, and its weights are the result; None keeps no average.
        accumulate_steps: Number of parts of a batch that are computed one after the other,
            to save memory. It divides `batch_size`.

    Raises:
        ValueError: if a value is out of range.
    """

    algorithm: Literal["adamw", "muon"] = "adamw"
    weight_decay: float = 0.05
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float | None = None
    layer_decay: float | None = None
    ema: float | None = None
    accumulate_steps: int = 1


@dataclass(frozen=True)
class Network(_Checked):
    """Changes to the network that belong to its training. None leaves it as it was built.

    Attributes:
        drop_path: Rate of stochastic depth.
        drop_path_rises: Whether the rate rises linearly over the blocks, from 0 to
            `drop_path`. If not, all blocks have the same rate.
        similarity: Weight of the similarity between maps in the loss (DeepViT, Appendix A).
        similarity_depth: Number of pairs of blocks whose maps are compared.
        remat: Whether training keeps only the input of each layer and recomputes the rest.
        crop_ratio: Crop ratio of the images in evaluation.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.

    Raises:
        ValueError: if a value is out of range.
    """

    drop_path: float | None = None
    drop_path_rises: bool = True
    similarity: float | None = None
    similarity_depth: int | None = None
    remat: bool | None = None
    crop_ratio: float | None = None
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.similarity and self.similarity_depth is None:
            raise ValueError(
                "`similarity_depth` must be given with `similarity`. "
                f"Received: similarity={self.similarity}, similarity_depth=None."
            )


@dataclass(frozen=True)
class Targets(_Checked):
    """What the network is trained to predict.

    Attributes:
        label_smoothing: Label smoothing, in training only.
        mix_token: Whether MixToken mixes the patches (`keras_vitx.training.MixToken`).
        distillation: `"hard"` or `"soft"`, how the teacher that `fit` is given is imitated
            (`keras_vitx.training.Distillation`). None is `"hard"` with a teacher, and needs
            none.
        temperature: Temperature of soft distillation.
        distillation_weight: Weight of the teacher's part in the loss; None is 0.5 for
            `"hard"` and 0.1 for `"soft"`.

    Raises:
        ValueError: if a value is out of range.
    """

    label_smoothing: float = 0.1
    mix_token: bool = False
    distillation: Literal["hard", "soft"] | None = None
    temperature: float = 3.0
    distillation_weight: float | None = None


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run, in groups.

    The names of all settings differ, so that `but` finds the group of each:

    ```python
    recipe = kv.training.recipes.get("deit").but(epochs=100, mixup=0.2)
    print(recipe)
    ```

    Attributes:
        name: Name of the recipe.
        schedule: How long to train, and the learning rate over time.
        optimizer: Settings of AdamW or Muon, and what is done around an update.
        augmentation: Augmentation of the training images, or a name of one (see
            `keras_vitx.data.pipelines`); None trains on the images of evaluation.
        mixing: MixUp and CutMix; None for neither.
        network: Changes to the network.
        targets: What the network is trained to predict.
        result: Epoch whose weights are the result: the `"last"`, or the `"best"` by the
            validation images.

    Raises:
        ValueError: if a value is out of range.
    """

    name: str
    schedule: Schedule = field(default_factory=Schedule)
    optimizer: Optimizer = field(default_factory=Optimizer)
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    mixing: Mixing | None = None
    network: Network = field(default_factory=Network)
    targets: Targets = field(default_factory=Targets)
    result: Literal["last", "best"] = "best"

    def __post_init__(self):
        if isinstance(self.augmentation, str):
            object.__setattr__(self, "augmentation", Augmentation.of(self.augmentation))
        for name, group in GROUPS.items():
            value = getattr(self, name)
            if not isinstance(value, group) and not (value is None and name in OFF):
                raise ValueError(f"`{name}` must be a `{group.__name__}`. Received: {value!r}.")
        _check(Recipe, "result", self.result)
        if self.result == "last" and self.schedule.patience is not None:
            raise ValueError(
                "`patience` must be None with result='last'. "
                f"Received: {self.schedule.patience}. Give result='best'."
            )

    def but(self, **changes: Any) -> "Recipe":
        """Return a copy with some settings changed.

        A change is a setting of any group (`epochs=3`, `mixup=0.2`) or a whole group
        (`mixing=None`). None turns off what can be off, such as `clip_norm`, and leaves
        any other setting as it is. A setting of a group that is off turns the group on,
        with nothing else in it. If `epochs` changes without `warmup_epochs`, the warm-up
        scales with it.

        Raises:
            ValueError: if a setting is unknown or out of range.
        """
        epochs = changes.get("epochs")
        if epochs is not None and "warmup_epochs" not in changes:
            _check(Schedule, "epochs", epochs)
            stretched = self.schedule.warmup_epochs * epochs / self.schedule.epochs
            changes["warmup_epochs"] = stretched
        whole: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            _check_known(name, [*_fields_of(Recipe), *OWNERS])
            owner = OWNERS.get(name)
            if value is None and not _is_optional(GROUPS.get(owner, Recipe), name):
                continue
            if owner is None:
                whole[name] = value
            else:
                parts.setdefault(owner, {})[name] = value
        if isinstance(whole.get("augmentation"), str):
            whole["augmentation"] = Augmentation.of(whole["augmentation"])
        for owner, part in parts.items():
            group = whole.get(owner, getattr(self, owner))
            if group is None:
                group = GROUPS[owner](**OFF[owner])
            whole[owner] = dataclasses.replace(group, **part)
        return dataclasses.replace(self, **whole)

    @property
    def part_of_batch(self) -> int:
        """Number of images that are computed at a time.

        Raises:
            ValueError: if `accumulate_steps` does not divide the batch.
        """
        batch, parts = self.schedule.batch_size, self.optimizer.accumulate_steps
        if batch % parts:
            raise ValueError(
                f"`accumulate_steps` must divide batch_size={batch}, the images per update. "
                f"Received: {parts}."
            )
        return batch // parts

    def for_images(self, images: int, fixed: Collection[str] = ()) -> "Recipe":
        """Return the recipe with at least `min_updates` updates for a number of images.

        Args:
            images: Number of training images.
            fixed: Of `"batch_size"` and `"epochs"`, those that stay as they are.
        """
        least, batch = self.schedule.min_updates, self.schedule.batch_size
        epochs = self.schedule.epochs
        if least is None:
            return self
        if "batch_size" not in fixed and self.optimizer.accumulate_steps == 1:
            while batch >= 16 and epochs * (images // batch) < least:
                batch //= 2
        if "epochs" not in fixed:
            epochs = max(epochs, math.ceil(least / max(images // batch, 1)))
        changes = {"batch_size": batch, "epochs": epochs}
        current = {"batch_size": self.schedule.batch_size, "epochs": self.schedule.epochs}
        return self if changes == current else self.but(**changes)

    def smoke(self) -> "Recipe":
        """Return the same recipe with two short epochs and tiny batches, to try all its parts."""
        schedule = self.schedule
        return self.but(
            epochs=2,
            warmup_epochs=min(schedule.warmup_epochs, 0.5),
            cooldown_epochs=min(schedule.cooldown_epochs, 1),
            freeze_epochs=min(schedule.freeze_epochs, 1),
            min_updates=None,
            # Enough for mixing and repeated images, and a multiple of the parts.
            batch_size=math.lcm(8, self.optimizer.accumulate_steps),
        )

    def settings(self) -> dict[str, Any]:
        """Return all settings by name, without groups. A group that is off is None by its name."""
        found = {"result": self.result}
        for name in GROUPS:
            group = getattr(self, name)
            found.update({name: None} if group is None else _fields(group))
        return found

    def differences(self, other: "Recipe") -> dict[str, tuple[Any, Any]]:
        """Return the settings that differ, by name: those of this recipe and of `other`.

        Where a group is off in one of them, its settings are None there.
        """
        mine, theirs = self.settings(), other.settings()
        names = [name for name in {**mine, **theirs} if name not in GROUPS]
        return {
            name: (mine.get(name), theirs.get(name))
            for name in names
            if mine.get(name) != theirs.get(name)
        }

    def __str__(self) -> str:
        """Return a table: one row per group, in the form that the command line reads."""
        rows = [f"{self.name} (result={self.result})"]
        for name in GROUPS:
            group = getattr(self, name)
            words = "off"
            if group is not None:
                words = " ".join(f"{key}={_as_word(v)}" for key, v in _fields(group).items())
            rows.append(
                textwrap.fill(
                    words,
                    96,
                    initial_indent=f"  {name:<14}",
                    subsequent_indent=" " * 16,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
        return "\n".join(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as data for JSON, from which `from_dict` makes an equal recipe."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Recipe":
        """Make a recipe from the data that `to_dict` returned. What is missing has its default.

        Raises:
            ValueError: if a setting is unknown or out of range.
        """
        values = dict(settings)
        for name, group in GROUPS.items():
            if isinstance(values.get(name), Mapping):
                for key in values[name]:
                    _check_known(key, _fields_of(group))
                # JSON has lists for tuples.
                part = {k: tuple(v) if isinstance(v, list) else v for k, v in values[name].items()}
                values[name] = group(**part)
        for key in values:
            _check_known(key, _fields_of(cls))
        return cls(**values)

    @classmethod
    def read(cls, run: str | os.PathLike) -> "Recipe":
        """Read the recipe of a training run.

        Args:
            run: The folder that `fit` wrote, or its `run.json`.

        Raises:
            OSError: if there is no such file.
            ValueError: if it holds no recipe.
        """
        path = Path(run).expanduser()
        path = path / "run.json" if path.is_dir() else path
        try:
            return cls.from_dict(json.loads(path.read_text())["recipe"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            why = f"{type(error).__name__}: {error!s:.300}"
            raise ValueError(f"{path} holds no recipe of a training run ({why}).") from error


GROUPS: dict[str, type] = {
    "schedule": Schedule,
    "optimizer": Optimizer,
    "augmentation": Augmentation,
    "mixing": Mixing,
    "network": Network,
    "targets": Targets,
}
OFF: dict[str, dict[str, Any]] = {
    "augmentation": {"crop": None, "flip": 0.0},
    "mixing": {"mixup": 0.0, "cutmix": 0.0},
}
"""The groups that may be None, and their settings that do nothing, for `but`."""

OWNERS = {f.name: owner for owner, group in GROUPS.items() for f in dataclasses.fields(group)}


def _check_known(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ValueError(f"No setting of a recipe is named {name!r}. {nearest(name, known)}")


def _fields_of(group: type) -> list[str]:
    return [field.name for field in dataclasses.fields(group)]


def _fields(group: Any) -> dict[str, Any]:
    return {name: getattr(group, name) for name in _fields_of(type(group))}


@functools.cache
def _is_optional(group: type, name: str) -> bool:
    """Return whether a setting may be None, by its annotation."""
    return type(None) in typing.get_args(typing.get_type_hints(group)[name])


def _as_word(value: Any) -> str:
    return ",".join(f"{v:.6g}" for v in value) if isinstance(value, tuple) else str(value)
