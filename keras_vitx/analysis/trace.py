"""Traces of a forward pass: maps, tokens and branches, block by block.

All of `keras_vitx.analysis` that needs a forward pass uses `trace`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_vitx.backend import without_gradients
from keras_vitx.layers import Attention, ClassAttention, GatedPositionalAttention, SharingAttention
from keras_vitx.layers.recording import Tensor, recording
from keras_vitx.text import nearest


@dataclass(frozen=True, eq=False)
class BlockTrace:
    """The inputs, outputs, maps and branches of one block, as float32 arrays.

    A dimension `updated` counts the tokens that the block updates: all of them, or only the class
    tokens in a class block of CaiT.

    Attributes:
        name: Name of the block.
        index: Its index among the blocks of the model, from 0.
        block: The layer.
        grid: Rows and columns of the patches, which are the last tokens; None if unknown.
        softmax: The maps as the softmax gives them, `(batch, heads, queries, keys)`: before
            `on_weights`, and before shared maps are added. None without a softmax (shared maps,
            no attention, one of your own that does not `keras_vitx.layers.record` it).
        maps: The maps that multiplied the values, of the same form; None without attention.
        values: What the maps multiplied, `(batch, keys, heads, size)`; None if not an `Attention`.
        shared: The maps that an earlier block passed on; None if the block takes none.
        inputs: The tokens that enter the block, `(batch, tokens, dim)`.
        outputs: The tokens that leave it, of the same shape.
        attention_branch: The update of the tokens by the attention branch, `(batch, updated,
            dim)`, after LayerScale and residual scale: the output of the block's `ls1`. None if
            it does not run that.
        mlp_branch: The update by the MLP branch, the output of `ls2`, of the same shape.
    """

    name: str
    index: int
    block: keras.layers.Layer
    grid: tuple[int, int] | None
    softmax: np.ndarray | None
    maps: np.ndarray | None
    values: np.ndarray | None
    shared: np.ndarray | None
    inputs: np.ndarray
    outputs: np.ndarray
    attention_branch: np.ndarray | None
    mlp_branch: np.ndarray | None

    @property
    def before(self) -> np.ndarray | None:
        """The maps before modification: those of the softmax, or else the shared ones."""
        return self.shared if self.softmax is None else self.softmax

    @property
    def attention_input(self) -> np.ndarray | None:
        """The tokens to which the attention branch is added, `(batch, updated, dim)`."""
        if self.attention_branch is None:
            return None
        return self.inputs[:, : self.attention_branch.shape[1]]

    @property
    def mlp_input(self) -> np.ndarray | None:
        """The tokens to which the MLP branch is added, if nothing normalizes them before."""
        if self.attention_branch is None:
            return None
        return self.attention_input + self.attention_branch

    @property
    def gates(self) -> np.ndarray | None:
        r"""ConViT's gates $\sigma(\lambda_h)$, `(heads,)`; None without gates."""
        attention = self.block.attention
        has_gates = isinstance(attention, GatedPositionalAttention)
        return as_array(attention.gates()).reshape(-1) if has_gates else None

    @property
    def num_patches(self) -> int | None:
        """Number of patches, which are the last tokens; None if unknown."""
        return None if self.grid is None else self.grid[0] * self.grid[1]


def trace(
    model: keras.Model, images: ArrayLike, blocks: Sequence[str] | None = None
) -> Iterator[BlockTrace]:
    """Run a model block by block, and iterate over traces of its blocks.

    Only the arrays of one block are in memory at a time, unless the caller keeps them. Layers for
    training (dropout, stochastic depth) have no effect.

    Args:
        model: A model of this package, a `Chain`.
        images: `(batch, height, width, channels)`, preprocessed for the model
            (`keras_vitx.preprocess_input`).
        blocks: Names of the blocks to report; None reports all of them.

    Returns:
        An iterator over one `BlockTrace` per block, in order.

    Raises:
        ValueError: if `blocks` names an unknown block.
    """
    names = [block.name for block in model.blocks]
    selection = set(names if blocks is None else blocks)
    for name in selection.difference(names):
        raise ValueError(f"The model {model.name!r} has no block {name!r}. {nearest(name, names)}")
    return _walk(model, images, selection)


def _walk(model, images, selection):
    grids = {tokens.name: tokens.grid for tokens in model.token_layout}
    indices = {block.name: index for index, block in enumerate(model.blocks)}
    x = ops.convert_to_tensor(images, dtype="float32")
    for step in model.layers:
        if not selection:
            return
        if step.name not in selection:
            with without_gradients():
                x = step(x)
            continue
        selection.remove(step.name)
        block, x = _run(step, x, indices[step.name], grids.get(step.name))
        yield block
        del block  # Free its arrays before the next block runs.


def _run(block, x, index, grid):
    """Run a block, and return its trace and its output."""
    with without_gradients(), recording() as found:
        y = block(x, training=False)
    tokens, shared = x if isinstance(x, (tuple, list)) else (x, None)
    tensors = {name: found.get(name) for name in ("softmax", "maps", "values")}
    tensors |= {"attention_branch": found.get("ls1"), "mlp_branch": found.get("ls2")}
    tensors |= {"shared": shared, "inputs": tokens, "outputs": keras.tree.flatten(y)[0]}
    # Each tensor once, so that `softmax` and `maps` are one array if nothing modifies them.
    arrays = {id(tensor): as_array(tensor) for tensor in tensors.values() if tensor is not None}
    fields = {name: arrays.get(id(tensor)) for name, tensor in tensors.items()}
    return BlockTrace(block.name, index, block, grid, **fields), y


def embedding_maps(model: keras.Model, images: ArrayLike) -> Iterator[tuple[str, np.ndarray]]:
    """Iterate over the maps that each block computes from the patch embeddings.

    They replace the input of every attention, without positions, class token and norm. The
    released code of ConViT measures nonlocality on these maps, which depend only on queries, keys
    and positional weights of a block.

    Args:
        model: A model of this package, a `Chain`, whose tokens have one width.
        images: `(batch, height, width, channels)`, preprocessed for the model.

    Returns:
        An iterator over pairs of the block name and its maps, float32
        `(batch, heads, patches, patches)`. Class blocks, blocks that reuse or add shared maps,
        and those without attention are left out.
    """
    with without_gradients():
        patches = model.layers[0](ops.convert_to_tensor(images, dtype="float32"))
    others = (SharingAttention, ClassAttention)
    for block in model.blocks:
        attention = block.attention
        if isinstance(attention, Attention) and not isinstance(attention, others):
            with without_gradients():
                _, maps = attention(patches, training=False, return_attention_scores=True)
            yield block.name, as_array(maps)


def class_attention(model: keras.Model, images: ArrayLike) -> dict[str, np.ndarray]:
    """Return the attention of the class token to each patch, arranged on the grid.

    CaiT, Section 5.1 and Figure 6. The class token is the first query. The grid shrinks between
    stages if patches are pooled (PiT).

    Args:
        model: A model with a class token, a `Chain`.
        images: `(batch, height, width, channels)`, preprocessed for the model.

    Returns:
        Maps `(batch, heads, rows, columns)` of each block that contains the class token, by
        block name.

    Raises:
        ValueError: if the model has no attention or no class token.
    """
    maps = {}
    for block in trace(model, images):
        patches = block.num_patches
        if block.maps is not None and patches and block.maps.shape[2:] != (patches, patches):
            row = block.maps[:, :, 0, -patches:]
            maps[block.name] = row.reshape(*row.shape[:2], *block.grid).copy()
        del block
    if not maps:
        raise ValueError(f"The model {model.name!r} has no class token.")
    return maps


def as_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor or a variable as float32."""
    return ops.convert_to_numpy(ops.cast(ops.stop_gradient(tensor), "float32"))
