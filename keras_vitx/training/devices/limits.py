"""What a device lacks for a model: its precision, or memory for its weights."""

import math
from typing import Any

import keras

# A trainable weight, its gradient, and the two moments of AdamW.
COPIES = 4


def check_limits(model: keras.Model, shares: int = 1) -> None:
    """Check that the device can train a model, as far as that is known before the first step.

    Args:
        model: A built model.
        shares: Number of devices between which each weight is split.

    Raises:
        ValueError: if the device has no arithmetic for the precision of the model, or less
            memory than its weights, gradients and optimizer states take.
    """
    name, memory, lacking = device_of(keras.backend.backend())
    precision = model.compute_dtype
    if precision in lacking:
        fit = [one for one in ("mixed_bfloat16", "mixed_float16") if one[6:] not in lacking]
        raise ValueError(
            f"`precision` must be one of {', '.join(map(repr, [*fit, 'float32']))} on {name}, "
            f"which has no {precision}. Received: a model of precision {precision!r}."
        )
    needed = COPIES * bytes_of(model.trainable_variables) + bytes_of(model.non_trainable_variables)
    if memory is not None and needed / shares > memory:
        raise ValueError(
            f"`model` must fit in the {memory / 1e9:.1f} GB of {name}. Received: weights, "
            f"gradients and optimizer states of {needed / shares / 1e9:.1f} GB per device. Under "
            "JAX, `keras_vitx.training.use_devices(..., shard_weights=True)` splits them."
        )


def bytes_of(variables: list[keras.Variable]) -> int:
    """Return the number of bytes of variables."""
    width = keras.backend.standardize_dtype
    sizes = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2}
    return sum(math.prod(v.shape) * sizes.get(width(v.dtype), 4) for v in variables)


def device_of(backend: str) -> tuple[str, int | None, tuple[str, ...]]:
    """Return the name of the device, its bytes of memory (None: unknown), and lacking dtypes."""
    if backend == "torch":
        import torch

        if not torch.cuda.is_available():
            return "the CPU", None, ()
        lacks = () if torch.cuda.is_bf16_supported(including_emulation=False) else ("bfloat16",)
        return torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1], lacks
    if backend == "jax":
        import jax

        device = jax.local_devices()[0]
        limits: dict[str, Any] = device.memory_stats() or {}
        lacks = ("float16",) if device.platform == "tpu" else ()
        return device.device_kind, limits.get("bytes_limit"), lacks
    return "the device", None, ()
