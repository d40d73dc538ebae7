"""The model of the golden case of CaiT."""

from harness import GOLDEN_CASES, array

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_tiny(**changes):
    """Make the model of the golden case, with changed arguments."""
    return GOLDEN_CASES["cait"](**{"weights": None, **changes})


def positions_of(model):
    return array(model.get_layer("pos_embed").embeddings.value)
