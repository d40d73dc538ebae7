"""BEiT's bias of relative positions."""

from keras_vitx.layers import ops
from keras_vitx.layers.base import register
from keras_vitx.layers.maps import MapLayer


@register
class RelativePositionBias(MapLayer):
    r"""A learned bias per head and offset, for `on_logits` (BEiT, arXiv 2106.08254, Section 2.2).

    $$L'_{hqk} = L_{hqk} + T_{r(q, k), h}$$
    where $r$ numbers the $(2R - 1)(2C - 1)$ offsets from a key to a query in a grid of $R$ rows and
    $C$ columns. The last rows of $T$ are of tokens before the patches: as queries, keys, and both.

    Input and output: `(batch, heads, queries, keys)`, as many queries as keys.

    Args:
        grid, num_prefix_tokens: As in `PositionEmbedding`.
    """

    def __init__(self, grid: tuple[int, int], num_prefix_tokens: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.grid, self.num_prefix_tokens = tuple(grid), num_prefix_tokens

    def build(self, input_shape):
        rows, columns = self.grid
        shape = ((2 * rows - 1) * (2 * columns - 1) + 3, input_shape[1])
        self.table = self.add_weight(shape, "zeros", name="table")

    def call(self, maps):
        return maps + ops.transpose(ops.take(self.table, self.places(), axis=0), (2, 0, 1))

    def places(self):
        """Return $r$, `(queries, keys)`; of tensors of the device, to which NumPy's were copied."""
        (rows, columns), prefix = self.grid, self.num_prefix_tokens
        place = ops.arange(rows * columns)
        place = place // columns * (2 * columns - 1) + place % columns
        offsets = place[:, None] - place + (rows - 1) * (2 * columns - 1) + columns - 1
        is_prefix = ops.cast(ops.arange(prefix + rows * columns) < prefix, offsets.dtype)
        query, key = is_prefix[:, None], is_prefix[None]
        of_prefix = self.table.shape[0] - 3 + key * (1 + query)
        return ops.where(query + key > 0, of_prefix, ops.pad(offsets, ((prefix, 0), (prefix, 0))))
