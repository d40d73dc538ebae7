"""The rest of the batches of an epoch, for a training that continues in its middle."""

import itertools
import logging
from typing import Any

import keras

log = logging.getLogger(__name__)


class Window(keras.utils.PyDataset):
    """A range of the batches of a `PyDataset`, which begins again after its last batch.

    All other attributes are those of the batches inside.

    Args:
        batches: The batches. Batch i must not depend on the batches before it.
        start: Index of the first batch.
        count: Number of batches; None for as many as `batches` has.
    """

    def __init__(self, batches: keras.utils.PyDataset, start: int = 0, count: int | None = None):
        super().__init__(batches.workers, batches.use_multiprocessing, batches.max_queue_size)
        self.batches, self.start = batches, start
        self.count = batches.num_batches if count is None else count

    @property
    def num_batches(self) -> int | None:
        """Number of batches in the window."""
        return self.count

    def __getitem__(self, index: int) -> Any:
        index += self.start
        length = self.batches.num_batches
        return self.batches[index if length is None else index % length]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "batches":
            raise AttributeError(name)
        return getattr(self.batches, name)

    def on_epoch_begin(self) -> None:
        """Pass on the beginning of an epoch."""
        self.batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Pass on the end of an epoch."""
        self.batches.on_epoch_end()


def from_place(batches: Any, place: int, steps: int, steps_per_epoch: int | None) -> dict[str, Any]:
    """Return the arguments of `fit` for epochs of `steps` batches that begin at a place.

    Args:
        batches: The batches of a whole epoch.
        place: Number of batches to skip: of the epoch; or, with `steps_per_epoch`, of all
            epochs, because iterations then continue from one epoch to the next.
        steps: Number of batches to train on before the epoch ends.
        steps_per_epoch: That of the whole training.

    Returns:
        `x` and `steps_per_epoch` of `fit`.
    """
    if not place:
        return {"x": batches, "steps_per_epoch": steps_per_epoch}
    if _by_index(batches):
        if steps_per_epoch is None:
            return {"x": Window(batches, place, steps), "steps_per_epoch": None}
        return {"x": Window(batches, place), "steps_per_epoch": steps}
    log.warning(
        "The first %d batches of the %s are skipped. The training continues bit for bit only if "
        "they come in the same order as before.",
        place,
        type(batches).__name__,
    )
    if hasattr(batches, "skip") and not isinstance(batches, keras.utils.PyDataset):  # `tf.data`
        return {"x": batches.skip(place), "steps_per_epoch": steps}
    return {"x": _after(batches, place), "steps_per_epoch": steps}


def _by_index(batches):
    """Return whether batch i can be had without those before it; not if wrapped iterables."""
    inside = getattr(batches, "batches", None)
    return isinstance(batches, keras.utils.PyDataset) and (inside is None or _by_index(inside))


def _after(batches, place):
    """Generate the batches after a place, then all of them again and again."""
    if hasattr(batches, "__len__"):
        place %= len(batches)
    # A generator, because Keras accepts no other iterator.
    for batch in itertools.chain(itertools.islice(batches, place, None), _endless(batches)):
        yield tuple(batch) if isinstance(batch, list) else batch


def _endless(batches):
    while True:
        yield from batches
