"""DeepViT's regularizer, of a model that is built already."""

import keras

from keras_vitx.training.network.blocks import is_block, layers_of


def set_similarity(model: keras.Model, weight: float, depth: int) -> None:
    """Set the weight of the similarity between the maps of blocks in the loss, in place.

    Each of `depth` pairs of blocks, from the first one on, has the weight `weight / depth`
    (DeepViT, Appendix A, Equation 6, whose B is `depth`). The axis of the cosine stays as it
    was built. Compile the model afterwards.

    Args:
        model: A model whose blocks carry maps to the next: a Refined-ViT, or a DeepViT that
            was built with `similarity`.
        weight: The weight, at least 0; 0 turns the loss off.
        depth: The number of pairs.

    Raises:
        ValueError: if the model has fewer blocks, or its blocks carry no maps.
    """
    blocks = [layer for layer in layers_of(model) if is_block(layer)]
    if not 1 <= depth < len(blocks):
        raise ValueError(
            "`similarity_depth` must be at least 1 and below the number of blocks, "
            f"{len(blocks)}. Received: {depth}."
        )
    missing = [b.name for b in blocks[1 : depth + 1] if not getattr(b, "takes_maps", False)]
    if weight and missing:
        raise ValueError(
            f"`similarity`: {missing[0]!r} of the model {model.name!r} has no maps of the block "
            "before it. Build the model with the arguments "
            f"similarity={weight}, similarity_depth={depth}; or give similarity=None."
        )
    for index, block in enumerate(blocks):
        if hasattr(block, "similarity"):
            block.similarity = weight / depth if 1 <= index <= depth else 0.0
