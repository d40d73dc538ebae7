"""Where an exported graph and its model part."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np

from keras_vitx.export.comparison.verify import compare
from keras_vitx.export.formats.base import Format
from keras_vitx.export.options.prepare import Prepared, output_names


def where_they_part(
    parts: Prepared,
    written: Prepared,
    write: Callable[[keras.Model, tuple[str, ...], Path], None],
    format: Format,
    batches: Sequence[np.ndarray],
    tolerance: float,
) -> str:
    """Return a sentence that names the first block after which the outputs differ.

    The network is cut after each block, and the cuts are exported by the same route; a
    search by halves takes about log2(blocks) exports.

    Args:
        parts: The model as it should be.
        written: The parts that were written, such as the fused ones.
        write: A function of a model, the names of its outputs and a path.
        format: The format.
        batches: Images for the comparison.
        tolerance: Largest difference allowed.
    """
    right, wrong = _cuts(parts.network), _cuts(written.network)
    names = [name for name in right if name in wrong]

    def differs(index):
        expected = parts.joined(right[names[index]]())
        cut = written.joined(wrong[names[index]]())
        outputs = output_names(expected)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"cut{format.suffix}")
            write(cut, outputs, path)
            found = compare(path, format, expected, batches, outputs)
        return not found.difference <= tolerance

    low, high = 0, len(names) - 1
    try:
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if differs(middle) else (middle + 1, high)
    except (ValueError, OSError) as error:
        return f" The first block that differs was not found: {error}"
    return f" The first block that differs is {names[low]!r}, number {low + 1} of {len(names)}."


def _cuts(model: keras.Model) -> dict[str, Callable[[], keras.Model]]:
    """Return a function per layer, by name, that returns the model up to it."""

    def cut(layer):
        return lambda: keras.Model(model.inputs, layer.output, name="cut")

    return {
        layer.name: cut(layer)
        for layer in model.layers
        if not isinstance(layer, keras.layers.InputLayer)
    }
