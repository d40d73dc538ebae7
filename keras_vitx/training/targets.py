"""Labels that `fit` adds to the training batches: a teacher's, of patches, and of MixToken."""

from collections.abc import Iterable

import keras
import numpy as np

from keras_vitx.data.augmentation.mixing import Mixing
from keras_vitx.training.batches import BatchTransform


class MixToken(BatchTransform):
    r"""Batches with a box in which the network exchanges patches with other images.

    MixToken (Jiang et al., 2021, Section 3.2) is CutMix on tokens, and takes its place. After the
    patch embedding, the patches in a box are exchanged with those of the batch in reverse order.
    The class label is mixed by the fraction of the area. Each patch keeps the label of its own
    image (`TokenLabels`, or that of the image): the outputs of a dense head are exchanged back
    before the loss. Nothing is exchanged in evaluation.

    The box has the grid's proportions and the area $1 - \lambda$ with $\lambda \sim
    \mathrm{Beta}(\alpha, \alpha)$, around a uniform center and clipped at the border, as in
    `keras_vitx.data.Mixing`. It depends on the seed, the epoch and the index of the batch, and is
    part of the labels:

    ```python
    model.compile("adamw", SmoothedCrossentropy(0.1), metrics=["accuracy"])
    model.fit(MixToken(batches.train, model), validation_data=batches.validation)
    ```

    In training, accuracy refers to the label of the larger area. On several devices of
    PyTorch or TensorFlow, images are exchanged among those of one device.

    Args:
        batches: Batches `(images, labels)` or `(images, labels, weights)`, prepared for the model.
            The loss must be linear in the label, as a cross entropy is.
        model: The model to train: a `Chain` with a patch embedding.
        alpha: $\alpha$, above 0.
        seed: Seed of the boxes.

    Raises:
        ValueError: if the model has no patch embedding, or `alpha` is out of range.
    """

    elementwise = True

    def __init__(self, batches: Iterable, model: keras.Model, alpha: float = 1.0, seed: int = 0):
        super().__init__(batches)
        grids = [
            step.new_grid for step in getattr(model, "layers", ()) if hasattr(step, "new_grid")
        ]
        if not grids:
            raise ValueError(
                "`model` must be a `Chain`: MixToken exchanges patches after the patch embedding. "
                f"Received: {type(model).__name__} {model.name!r}."
            )
        if not alpha > 0:
            raise ValueError(f"`alpha` must be above 0. Received: {alpha!r}.")
        self.grid, self.alpha, self.seed = tuple(grids[0]), alpha, seed

    def transform(self, images, labels, index):
        # The 1 makes the boxes independent of the augmentation of the same batch.
        random = np.random.default_rng((self.seed, self.epoch, index, 1))
        box = np.zeros(self.grid, bool)
        box[Mixing(mixup=0.0, cutmix=self.alpha).draw(self.grid, random)[1]] = True
        labels = labels if isinstance(labels, dict) else {"head": labels}
        return images, {**labels, "mix_token": np.tile(box.reshape(-1), (len(images), 1))}
