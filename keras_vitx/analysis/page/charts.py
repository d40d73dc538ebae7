"""The measures that the page plots by depth."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chart:
    """A measure by depth, with one number per block or per head; `beside` names a dashed line."""

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
