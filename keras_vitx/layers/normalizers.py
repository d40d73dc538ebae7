"""What other papers put in place of the softmax: from logits `(..., keys)` in float32 to maps.

Logits are very negative where a key is masked; such keys count in the number of keys $n$.
"""

import math

from keras_vitx.layers import ops


def off_by_one(logits):
    r"""Return $e^{l_j} / (1 + \sum_k e^{l_k})$: a head can attend nothing (Miller, 2023)."""
    largest = ops.stop_gradient(ops.relu(ops.max(logits, axis=-1, keepdims=True)))
    powers = ops.exp(logits - largest)
    return powers / (ops.exp(-largest) + ops.sum(powers, axis=-1, keepdims=True))


def sigmoid(logits):
    r"""Return $\sigma(l_j - \log n)$, $n$ keys (Ramapuram et al., 2024, arXiv 2409.04431)."""
    return ops.sigmoid(logits - math.log(logits.shape[-1]))


def relu(logits):
    r"""Return $\max(0, l_j) / n$, $n$ keys (Wortsman et al., 2023, arXiv 2309.08586)."""
    return ops.relu(logits) / logits.shape[-1]


def softpick(logits):
    r"""Return $\max(0, e^{l_j} - 1) / (10^{-8} + \sum_k |e^{l_k} - 1|)$ (2504.20966)."""
    # A masked key, below any other's logit, counts nothing, as 0 does.
    logits = ops.where(logits < -1e4, ops.zeros_like(logits), logits)
    largest = ops.stop_gradient(ops.relu(ops.max(logits, axis=-1, keepdims=True)))
    powers = ops.exp(logits - largest) - ops.exp(-largest)
    return ops.relu(powers) / (1e-8 + ops.sum(ops.absolute(powers), axis=-1, keepdims=True))


def sparsemax(logits):
    r"""Return $\max(0, l_j - \tau)$ with a sum of 1 (Martins and Astudillo, 2016)."""
    return _entmax(logits, 1)


def entmax15(logits):
    r"""Return $\max(0, l_j / 2 - \tau)^2$ with a sum of 1 (Peters et al., 2019, 1905.05702)."""
    return _entmax(logits, 2)


def _entmax(logits, power):
    r"""Return $\max(0, l_j / p - \tau)^p$ with a sum of 1, $\tau$ exact by sorting."""
    scaled = (logits - ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))) / power
    scaled = ops.relu(scaled + 2) - 2  # Lower ones are 0 as well, and their squares finite.
    ordered = -ops.sort(-scaled, axis=-1)
    count = ops.cast(ops.arange(1, ordered.shape[-1] + 1), ordered.dtype)
    thresholds = _threshold(count, ops.cumsum(ordered, -1), ops.cumsum(ordered**2, -1), power)
    size = ops.sum(ops.cast(thresholds < ordered, count.dtype), axis=-1, keepdims=True)
    largest = ops.where(count <= size, ordered, ops.zeros_like(ordered))
    sums = (ops.sum(values, axis=-1, keepdims=True) for values in (largest, largest**2))
    return ops.relu(scaled - _threshold(size, *sums, power)) ** power


def _threshold(count, total, squares, power):
    r"""Return $\tau$ of the `count` largest, from their sum and that of their squares."""
    mean = total / count
    if power == 1:
        return mean - 1 / count
    return mean - ops.sqrt(ops.relu((1 - squares) / count + mean**2))


NORMALIZERS = {f.__name__: f for f in (off_by_one, sigmoid, relu, softpick, sparsemax, entmax15)}
