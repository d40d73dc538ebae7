"""The measures that the page plots by depth."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vitx.analysis.measure import MEASURES
from keras_vitx.analysis.trace import BlockTrace


@dataclass(frozen=True)
class Chart:
    """A measure by depth.

    Attributes:
        measure: Name of one of `keras_vitx.analysis.MEASURES` with one number per block, or
            one per head.
        title: Heading of the chart.
        text: What the numbers mean, in one sentence.
        beside: Name of a measure that is drawn as a dashed line, for comparison.
    """

    measure: str
    title: str
    text: str
    beside: str | None = None


CHARTS = (
    Chart(
        "entropy",
        "Entropy",
        "Of a row of the softmax, in nats: 0 if it looks at one token, the dashed line if it "
        "looks at all tokens alike.",
        beside="uniform_entropy",
    ),
    Chart("nonlocality", "Nonlocality", "How many patches away a patch looks, on average."),
    Chart("gates", "Gates", "Share of positional attention, learned for each head."),
    Chart("head_similarity", "Similarity of heads", "Mean cosine between the maps of two heads."),
    Chart(
        "map_similarity",
        "Similarity to the block before",
        "Mean cosine between the maps of a block and those of the block before it.",
    ),
    Chart(
        "feature_similarity",
        "Similarity to the last block",
        "Mean cosine between the tokens after a block and those after the last one.",
    ),
    Chart(
        "attention_branch",
        "Attention branch",
        "Norm of what attention adds, divided by the norm of the tokens it is added to.",
    ),
    Chart(
        "mlp_branch",
        "MLP branch",
        "Norm of what the MLP adds, divided by the norm of the tokens it is added to.",
    ),
)
"""The charts, in the order of the page. A chart that no block of a model has is left out."""


class Measured:
    """The measures of charts for one image, collected block by block."""

    def __init__(self, charts: tuple[Chart, ...]):
        self.names = {name for chart in charts for name in (chart.measure, chart.beside) if name}
        self.found: dict[str, dict[str, np.ndarray]] = {name: {} for name in self.names}

    def add(self, block: BlockTrace) -> None:
        """Measure a block of a walk over one image."""
        for name in self.names:
            value = MEASURES[name].of_block(block)
            if value is not None:
                self.found[name][block.name] = value

    def by_block(self, blocks: list[str]) -> dict[str, list[list[float | None] | None]]:
        """Return the numbers of each measure: per block a list, one number or one per head.

        A block without the measure has None, as has a number that is not finite.
        """
        results = {}
        for name, values in self.found.items():
            compare = MEASURES[name].compare
            if values and compare:
                values = compare(values)
            if values:
                results[name] = [_numbers(values.get(block)) for block in blocks]
        return results


def _numbers(value: Any) -> list[float | None] | None:
    """Return the values of the only image, in the digits that a chart shows."""
    if value is None:
        return None
    return [float(f"{x:.5g}") if np.isfinite(x) else None for x in np.ravel(value[0])]
