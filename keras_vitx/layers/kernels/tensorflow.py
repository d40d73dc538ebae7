"""Kernels of TensorFlow, which JAX shares."""

from keras import ops


def mix_heads(kernel, maps, bias=None):
    """Multiply columns of queries x keys: an einsum transposes every map. All devices."""
    batch, heads, queries, keys = ops.shape(maps)
    columns = ops.reshape(maps, (batch, heads, queries * keys))
    kernel = ops.broadcast_to(kernel, (batch, *kernel.shape))
    mixed = ops.matmul(kernel, columns)
    mixed = mixed if bias is None else mixed + ops.expand_dims(bias, -1)
    return ops.reshape(mixed, (batch, kernel.shape[1], queries, keys))
