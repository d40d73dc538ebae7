"""Sources and training batches for Grain, which needs no TensorFlow.

Grain also makes batches in several processes, past Python's global interpreter lock:
`grain_batches(...).mp_prefetch(grain.MultiprocessingOptions(num_workers=8))`. Each process then
has every eighth image of the order, so that batches depend on the number of processes.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vitx.data.augmentation import Augmentation, augmented
from keras_vitx.data.augmentation.mixing import Mixing, check_mixable, soft_labels
from keras_vitx.data.preprocessing import fit_to_model, with_channels
from keras_vitx.data.sources import open_source
from keras_vitx.data.sources.parts import Part, Source
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import needs_extra


class Examples:
    """A part of a source as pairs (image, label), a random-access data source of Grain.

    ```python
    source = kv.data.open_source("pets")
    loader = grain.DataLoader(data_source=kv.data.Examples(source.train), sampler=...)
    ```

    Args:
        part: The images and their labels. Images are uint8, of their original size.
    """

    def __init__(self, part: Part):
        self.part = part

    def __len__(self) -> int:
        return self.part.size

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.part.images[index], self.part.labels[index]


def grain_batches(
    source: Any,
    model: Any,
    batch_size: int = 64,
    *,
    augmentation: str | Augmentation | Mapping[str, Any] | None = "crop_flip",
    mixing: Mixing | Mapping[str, Any] | None = None,
    seed: int = 0,
    **arguments: Any,
) -> Any:
    """Return endless training batches as a `grain.IterDataset`.

    Each epoch is a new permutation, and each image is augmented anew; batches run across the
    end of an epoch. The same seed gives the same batches, but not those of `pipelines`. In
    `fit`, give `steps_per_epoch`.

    Args:
        source: Training images: a `Part`, or anything that `open_source` takes or returns.
        model: A model of keras_vitx, of which the `input_shape`, the `preprocessing` and the
            number of outputs are used.
        batch_size: Number of images per batch.
        augmentation: As in `pipelines`; without `repeats`, and not by keras-cv.
        mixing: As in `pipelines`.
        seed: Seed of the order, the augmentation, the mixing and the split.
        **arguments: Further arguments of `open_source`.

    Returns:
        Batches of float32 images (batch, height, width, channels), and labels as `pipelines`
        makes them.

    Raises:
        ValueError: if an argument is out of range, or the source is invalid.
        ImportError: if Grain is not installed.
    """
    try:
        import grain
    except ImportError as error:
        raise ImportError(needs_extra("grain_batches needs Grain", "grain")) from error
    augmentation, mixing = Augmentation.of(augmentation), Mixing.of(mixing)
    facts, classes = ModelInput.of(model), model.output_shape[-1]
    if augmentation is not None:
        augmentation.check_channels(facts.channels)
        if augmentation.repeats > 1 or augmentation.by != "pillow":
            raise ValueError(
                'augmentation: Grain\'s batches take repeats=1 and by="pillow", got '
                f"{augmentation.repeats} and {augmentation.by!r}."
            )
    if not isinstance(source, Part):
        if not isinstance(source, Source):
            source = open_source(source, seed=seed, **arguments)
        source = source.train
    if mixing is not None:
        check_mixable(source.labels, classes)
    examples = (
        grain.MapDataset.source(Examples(source))
        .seed(seed)
        .shuffle()
        .repeat()
        .random_map(Augmented(augmentation, facts))
    )
    # Grain's own default is to read 500 elements ahead.
    reading = grain.ReadOptions(os.cpu_count(), prefetch_buffer_size=2 * batch_size)
    batches = examples.to_iter_dataset(reading).batch(batch_size)
    return batches if mixing is None else batches.random_map(Mixed(mixing, classes))


@dataclass(frozen=True)
class Augmented:
    """The augmentation of an example, as a random map of Grain."""

    augmentation: Augmentation | None
    facts: ModelInput

    def __call__(self, example: tuple, random: np.random.Generator) -> tuple:
        image, label = example
        crop = self.augmentation and self.augmentation.crop
        if crop == "random_resized":
            image = with_channels(image, self.facts.channels)
        else:
            crop_ratio = 1.0 if crop == "shift" else self.facts.preprocessing.crop_ratio
            image = fit_to_model(image, self.facts, crop_ratio)
        return augmented(image, self.augmentation, self.facts, random)[0], label


@dataclass(frozen=True)
class Mixed:
    """MixUp and CutMix of a batch, as a random map of Grain."""

    mixing: Mixing
    classes: int

    def __call__(self, batch: tuple, random: np.random.Generator) -> tuple:
        images, labels = batch
        return self.mixing(images, soft_labels(labels, self.classes), random)
