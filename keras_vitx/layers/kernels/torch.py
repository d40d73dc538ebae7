"""Kernels of PyTorch, which runs eagerly: every call of Keras around an operation counts."""

import contextlib
import functools
import itertools

import keras
import numpy as np
import torch
from torch.nn import functional

from keras_vitx.keras_internals import autocast, remat_mode, tensor_of
from keras_vitx.layers import ops

# The plain forms: `ops` replaces its functions only after this module is imported.
_plain_call, _plain_drop_path_mask = ops.call, ops.drop_path_mask
_plain_convolve_maps, _plain_rotate = ops.convolve_maps, ops.rotate
_compiled, COMPILES_BLOCKS = functools.cache(torch.compile), True

BYTES_OF_MAPS = 4_000_000  # Of the images that attention takes at a time: about a core's cache.
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
HOOKS_OF_ALL = [vars(torch.nn.modules.module)[f"_global{name}"] for name in HOOKS]


def call(layer, x, training=None, dtype=None, **arguments):
    """Call `layer.call`, or its kernel in `LAYERS`, where that equals `__call__`. All devices.

    `__call__` checks and casts again, which takes longer than a norm in a small network.
    """
    if not is_direct(layer, x, dtype):
        return _plain_call(layer, x, training, dtype, **arguments)
    if layer.compute_dtype != dtype:  # `__call__` would be a graph for each block's name.
        with autocast(layer.compute_dtype):
            return call(layer, x, training, layer.compute_dtype, **arguments)
    if "training" in layer.call_signature_parameters:
        arguments["training"] = training
    kernel = LAYERS.get(type(layer))
    return layer.call(x, **arguments) if kernel is None else kernel(layer, x, **arguments)


def without_autocast(x):
    """Turn `torch.autocast` off, which computes products of float32 in half precision."""
    device = x.device.type
    is_on = device != "meta" and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_on else contextlib.nullcontext()


def compiled_call(block, x, training, dtype):
    """Call `block` as a graph that `torch.compile` makes once for its kind. All devices."""
    is_other = keras.tree.flatten(x)[0].is_meta or block.compute_dtype != dtype
    if is_other or not is_direct(block, x, dtype):
        return call(block, x, training, dtype)
    return _compiled(type(block).call)(block, x, training=training)


def is_direct(layer, x, dtype):
    """Return whether `layer.call(x)`, inside a layer that computes in `dtype`, is `layer(x)`."""
    expected = getattr(torch, layer.input_dtype)
    inputs = x if isinstance(x, tuple) else (x,)
    return (
        layer.built
        # By module: a user's subclass may have a `__call__`, or count on what Keras's does.
        and type(layer).__module__.startswith(("keras.", "keras_vitx."))
        and layer.quantization_mode is None
        and layer.activity_regularizer is None
        and remat_mode(layer) is None
        and dtype is not None
        and not [y for y in inputs if not isinstance(y, torch.Tensor) or y.dtype is not expected]
        # Hooks, of all modules or its own, run only in `__call__`.
        and not any(HOOKS_OF_ALL)
        and not any(map(vars(layer).get, HOOKS))
    )


def dense(layer, x, training=False):
    """Add the bias in the product, where Keras makes a second pass. All devices."""
    y = functional.linear(x, _value(layer.kernel, x.dtype).T, _value(layer.bias, x.dtype))
    return y if layer.activation is None else layer.activation(y)


def layer_norm(layer, x):
    """Normalize the last axis: float32 statistics without float32 copies. All devices."""
    if layer.axis not in ([-1], [x.ndim - 1]) or layer.rms_scaling:
        return layer.call(x)
    gamma, beta = (_value(weight, x.dtype) for weight in (layer.gamma, layer.beta))
    return functional.layer_norm(x, x.shape[-1:], gamma, beta, layer.epsilon)


def batch_norm(layer, x, training=False):
    """Make one pass, where Keras makes four; statistics in float32 or float64. All devices.

    But not of float32 on a GPU in training: cuDNN's passes took 89 of a DeepViT_S's 241 ms (H200).
    """
    learns = training and layer.trainable
    # Keras has `renorm` from 3.14 on.
    special = getattr(layer, "renorm", False) or layer.synchronized
    is_slow = learns and x.dtype is torch.float32 and x.device.type != "cpu"
    if special or is_slow or (is_traced(x) and not learns):
        return layer.call(x, training=training)
    x = x.movedim(layer.axis, 1)
    dtype = torch.promote_types(x.dtype, torch.float32)
    gamma, beta, mean, variance = (
        _value(each, dtype)
        for each in (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance)
    )
    if learns:
        mean, variance = x.new_zeros(2, x.shape[1], dtype=dtype)
    # PyTorch's momentum is the weight of the new value: with 1, `mean` and `variance` become the
    # statistics of this batch.
    y = functional.batch_norm(x, mean, variance, gamma, beta, learns, 1.0, layer.epsilon)
    if learns:
        # PyTorch keeps the unbiased variance, Keras the biased one.
        count = x.numel() / x.shape[1]
        variance = variance * ((count - 1) / count)
        for moving, new in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
            # The product of a Keras variable and a number would copy the number to the device.
            moving.assign(torch.lerp(new.to(moving.value.dtype), moving.value, layer.momentum))
    return y.movedim(1, layer.axis)


def convolution(layer, x):
    """Convolve images as they are; Keras copies them to channels first and back. All devices."""
    # PyTorch pads for "same" only without strides.
    has_padding = layer.padding == "valid" or set(layer.strides) == {1}
    if not has_padding or layer.data_format != "channels_last" or is_traced(x):
        return layer.call(x)
    kernel = _value(layer.kernel, x.dtype).permute(3, 2, 0, 1)
    kernel = kernel.contiguous(memory_format=torch.channels_last)
    form = layer.strides, layer.padding, layer.dilation_rate, layer.groups
    y = functional.conv2d(x.permute(0, 3, 1, 2), kernel, _value(layer.bias, x.dtype), *form)
    y = y.permute(0, 2, 3, 1)
    return y if layer.activation is None else layer.activation(y)


LAYERS = {
    keras.layers.Dense: dense,
    keras.layers.LayerNormalization: layer_norm,
    keras.layers.BatchNormalization: batch_norm,
    keras.layers.Conv2D: convolution,
}


def shape(x):
    """Ask the tensor; `keras.ops` first looks for symbolic ones, which is slow. All devices."""
    return tuple(x.shape)


def reshape(x, newshape):
    """As `shape`."""
    return _value(x).reshape(newshape)


def transpose(x, axes):
    """As `shape`."""
    return _value(x).permute(axes)


def split(x, sections, axis=0):
    """As `shape`."""
    return x.chunk(sections, axis)


def matmul(x1, x2):
    """As `shape`."""
    return torch.matmul(x1, x2) if x1.dtype is x2.dtype else keras.ops.matmul(x1, x2)


def cast(x, dtype):
    """As `shape`."""
    return _value(x).to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)


def logits(query, key):
    """Copy the keys by rows; PyTorch would copy their transpose by columns. All devices."""
    query = (query * query.shape[-1] ** -0.5).transpose(1, 2)
    return torch.matmul(query, key.transpose(1, 2).contiguous().mT)


def softmax(logits, dtype=None):
    """Compute in float32 inside the operation, without float32 copies. All devices."""
    return torch.softmax(logits, dim=-1, dtype=dtype and getattr(torch, dtype))


def fused_attention(query, key, value, mask=None, training=False):
    """Run PyTorch's kernel without the copies that `keras.ops` makes. All devices.

    It has no second derivative: `keras.config.disable_flash_attention()` turns it off.
    """
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    is_slow = query.device.type == "cpu" and query.dtype is torch.bfloat16  # 2 to 7 times.
    if is_slow or keras.config.is_flash_attention_enabled() is False:
        scores = torch.matmul(query * query.shape[-1] ** -0.5, key.mT)
        return torch.matmul(softmax(ops.mask_logits(scores, mask)), value).transpose(1, 2)
    y = functional.scaled_dot_product_attention(query, key, value, mask)
    return y.transpose(1, 2)


def by_images(function, value, *inputs):
    """Keep the maps of a few images in the cache, and their memory mapped. CPU, inference."""
    if is_traced(value) or value.device.type != "cpu" or torch.is_grad_enabled():
        return function(value, *inputs)
    batch, keys, heads, _ = value.shape
    count = max(1, BYTES_OF_MAPS // (heads * keys**2 * value.element_size()))
    if batch <= count:
        return function(value, *inputs)
    inputs = [
        x.split(count) if x is not None and len(x) == batch else itertools.repeat(x) for x in inputs
    ]
    return torch.cat([function(*some) for some in zip(value.split(count), *inputs, strict=False)])


def mix_heads(kernel, maps, bias=None):
    """Multiply and add the bias in one operation. All devices.

    On a CPU, expanded maps keep the heads last in memory, as the convolution after them needs them.
    """
    batch, heads, queries, keys = maps.shape
    columns, kernel = maps.reshape(batch, heads, queries * keys), _value(kernel, maps.dtype)
    expands = maps.device.type == "cpu" and len(kernel) > heads
    heads_last = expands or columns.stride(1) == 1
    kernel = kernel.expand(batch, -1, -1)
    pair = (columns.mT, kernel.mT) if heads_last else (kernel, columns)
    if bias is None:
        mixed = torch.bmm(*pair)
    else:
        bias = _value(bias, maps.dtype)
        mixed = torch.baddbmm(bias if heads_last else bias[:, None], *pair)
    mixed = mixed.mT if heads_last else mixed
    mixed = mixed if expands else mixed.contiguous()
    return mixed.reshape(batch, kernel.shape[1], queries, keys)


def convolve_maps(maps, kernel):
    """Add shifted maps: the gradient of a kernel has a block of threads per entry. Accelerators.

    Each of these 324 blocks (36 maps, 3 x 3) would read all maps of a batch, 9.9 million entries.
    """
    form = _plain_convolve_maps if maps.device.type == "cpu" else ops.add_shifted_maps
    return form(maps, kernel)


def pad(x, widths):
    """Pad without Keras's new name for each call, which would be another graph. All devices."""
    return functional.pad(x, [width for pair in reversed(widths) for width in pair])


def gelu(x):
    """PyTorch has it as one operation. All devices."""
    return functional.gelu(x)


def rotate(x, cos, sin, halves):
    """Multiply neighbors as complex numbers, in half the time. All devices."""
    if halves or is_traced(x):
        return _plain_rotate(x, cos, sin, halves)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.complex(cos, sin)
    return torch.view_as_real(pairs).mT.flatten(-2)


def drop_path_mask(x, keep, generator, seed):
    """Draw from PyTorch's generator unless there is a seed: Keras's waits for an accelerator."""
    if seed is not None:
        return _plain_drop_path_mask(x, keep, generator, seed)
    shape = (x.shape[0], *[1] * (x.ndim - 1))
    return x.new_empty(shape).bernoulli_(keep).div_(keep)


def scalars_on_device():
    """Make tensors of numbers on the accelerator: Keras's copies from the host wait for it."""
    return contextlib.nullcontext() if torch.compiler.is_compiling() else _ScalarsOnDevice()


def without_modes():
    """Turn it off in the forward pass, which has no such numbers. All devices."""
    return torch._C.DisableTorchFunction()


class _ScalarsOnDevice(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        host = (np.ndarray, float, int, tuple, list)
        copies = function is torch.as_tensor and isinstance(args[0], host) and "dtype" in kwargs
        if copies and np.size(args[0]) == 1:
            return torch.full(np.shape(args[0]), np.asarray(args[0]).item(), **kwargs)
        return function(*args, **kwargs)


def is_traced(x):
    """Return whether `x` is computed in code that PyTorch traces, compiles or exports."""
    # Symbolic tensors have other types.
    symbolic = type(x) not in (torch.Tensor, torch.nn.Parameter)
    return symbolic or torch.compiler.is_compiling() or torch.jit.is_tracing()


def _value(weight, dtype=None):
    """Return the tensor of a variable, in `dtype`: a GPU casts nothing, Keras no meta tensors."""
    if isinstance(weight, keras.Variable):
        weight = weight.value if dtype is None else tensor_of(weight)
    is_cast = dtype is None or weight is None or weight.dtype is dtype
    return weight if is_cast else weight.to(dtype)
