"""Tokens padded to a multiple of 8 around the blocks: nearly equal numbers, fewer bytes.

    python benchmarks/padded_tokens.py DeepViT_Mini                     # equality, on a CPU
    python benchmarks/padded_tokens.py CaiT_S24 --cell h100/step/mixed_bfloat16/256

Padded keys are masked in the logits alone, and the values of padded tokens are 0, so that what
follows makes nothing of their maps. Statistics of maps leave them out. Compiled ahead, a step of
CaiT_S24 moves 257 instead of 275 GB; gradients differ by 9e-9 (CaiT_Mini), 1e-5 (DeepViT_Mini).
"""

import argparse
import os

os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0 " + os.environ.get("XLA_FLAGS", "")

import compile_ahead
import jax
import keras
import numpy as np
from jax.flatten_util import ravel_pytree
from keras import ops

import keras_vitx as kv
from keras_vitx.layers import Attention, Block, ReAttention
from keras_vitx.models import depth

TOKENS = []  # Their number before they were padded, while padded blocks run.


def is_real(x, axis):
    """Return 1 for the tokens of `axis` that were there before, else 0."""
    shape = [-1 if each == axis else 1 for each in range(len(x.shape))]
    return ops.reshape(ops.arange(x.shape[axis]) < TOKENS[0], shape)


def pad_blocks():
    """Pad the tokens of each model's blocks from now on."""
    run, projections, fused = depth.run, Attention.projections, Attention.fused
    softmax_of, call = Attention.softmax_of, ReAttention.call

    def padded_run(layers, x, *about):
        blocks = [index for index, layer in enumerate(layers) if type(layer) is Block]
        if not blocks:
            return run(layers, x, *about)
        first, last = blocks[0], blocks[-1] + 1
        x, _ = run(layers[:first], x, *about)
        TOKENS.append(x.shape[1])
        x = ops.pad(x, ((0, 0), (0, -TOKENS[0] % 8), (0, 0)))
        x, _ = run(layers[first:last], x, *about)
        return run(layers[last:], x[:, : TOKENS.pop()], *about)

    def padded_projections(self, x, training=False):
        query, key, value = projections(self, x, training)
        return query, key, value * ops.cast(is_real(value, 1), value.dtype) if TOKENS else value

    def padded_softmax(self, logits, dtype):
        logits = ops.where(is_real(logits, 3), logits, -1e30) if TOKENS else logits
        return softmax_of(self, logits, dtype)

    def padded_fused(self, query, key, value, training=False, mask=None):
        if not TOKENS:
            return fused(self, query, key, value, training, mask)
        if jax.default_backend() != "gpu":
            return self.aggregate(self.maps_of(query, key, training), value, training)
        lengths = jax.numpy.full((query.shape[0],), TOKENS[0], "int32")
        lengths = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
        return jax.nn.dot_product_attention(query, key, value, implementation="cudnn", **lengths)

    def padded_re_attention(self, maps, training=False):
        if not (TOKENS and training):
            return call(self, maps, training)
        maps, norm = self.reatten_matrix(maps), self.var_norm
        weight = ops.cast(ops.logical_and(is_real(maps, 2), is_real(maps, 3)), maps.dtype)
        count, axes = maps.shape[0] * TOKENS[0] ** 2, (0, 2, 3)
        mean = ops.sum(maps * weight, axes, keepdims=True) / count
        variance = ops.sum((maps - mean) ** 2 * weight, axes, keepdims=True) / count
        for moving, new in ((norm.moving_mean, mean), (norm.moving_variance, variance)):
            moving.assign(norm.momentum * moving + (1 - norm.momentum) * ops.ravel(new))
        scale, shift = (ops.reshape(one, (-1, 1, 1)) for one in (norm.gamma, norm.beta))
        maps = (maps - mean) * ops.rsqrt(variance + norm.epsilon)
        return self.map_scale * (maps * scale + shift)

    depth.run, Attention.projections, Attention.fused = padded_run, padded_projections, padded_fused
    Attention.softmax_of, ReAttention.call = padded_softmax, padded_re_attention


def results(name):
    """Return the prediction of two images in training, the new statistics, and the gradients."""
    keras.utils.set_random_seed(0)
    model = kv.create_model(name, input_shape=(36, 28, 3), drop_path=0.0)
    model.scan, random = False, np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable + random.normal(0, 0.1, variable.shape))
    images = random.standard_normal((2, *model.input_shape[1:]))

    def loss(trained, others):
        found = model.stateless_call(trained, others, images, training=True)
        return -ops.sum(ops.log(found[0][:, 0])), found

    groups = model.trainable_variables, model.non_trainable_variables
    state = ([variable.value for variable in group] for group in groups)
    (_, found), gradients = jax.value_and_grad(loss, has_aux=True)(*state)
    return [ravel_pytree(part)[0] for part in (*found, gradients)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--cell", type=compile_ahead.a_cell)
    options = parser.parse_args()
    if options.cell:
        pad_blocks()
        print(compile_ahead.measure(options.model, options.cell, None))
        return
    jax.config.update("jax_enable_x64", True)
    keras.config.set_dtype_policy("float64")
    wanted = results(options.model)
    pad_blocks()
    names = "outputs", "states", "gradients"
    for part, a, b in zip(names, results(options.model), wanted, strict=True):
        if b.size:
            print(f"{part} differ by {np.linalg.norm(a - b) / np.linalg.norm(b):.1e}")


if __name__ == "__main__":
    main()
