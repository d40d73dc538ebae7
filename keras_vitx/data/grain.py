"""The training batches as a dataset of Grain, for pipelines and loops of your own."""

import warnings
from typing import Any

import numpy as np

from keras_vitx.data.sources.splits import Split


class Examples:
    """A split of a source as pairs (image, label), a random-access data source of Grain.

    ```python
    source = kv.data.load_dataset("pets")
    loader = grain.DataLoader(data_source=kv.data.Examples(source.train), sampler=...)
    ```

    Args:
        part: The images and their labels. Images are uint8, of their original size.
    """

    def __init__(self, part: Split):
        self.part = part

    def __len__(self) -> int:
        return self.part.size

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.part.images[index], self.part.labels[index]


def grain_batches(source: Any, model: Any, batch_size: int = 64, **arguments: Any) -> Any:
    """Return endless training batches as a `grain.IterDataset`. Deprecated: use `pipelines`.

    `pipelines(...).train` is made by Grain, too, in processes with `workers=`; its method
    `dataset` returns it as a dataset of Grain.

    Args:
        source, model, batch_size, **arguments: As in `pipelines`.
    """
    from keras_vitx.data.pipelines import pipelines

    warnings.warn(
        "`grain_batches` is deprecated: `pipelines(...).train` is made by Grain.",
        DeprecationWarning,
        stacklevel=2,
    )
    if isinstance(source, Split):
        from keras_vitx.data.sources import Dataset

        source = Dataset("part", None, source)
    train = pipelines(source, model, batch_size, **arguments).train
    train.on_device = False
    return train.dataset().map(lambda batch: tuple(batch[:2]))
