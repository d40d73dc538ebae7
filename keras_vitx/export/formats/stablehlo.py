"""StableHLO, by jax.export."""

from pathlib import Path

import keras

from keras_vitx.export.graph import Format, Graph, half_arrays

PLATFORMS = ("cpu", "cuda", "tpu")
"""The devices on which a file runs."""


def write(graph: Graph, path: Path) -> None:
    """Write a `.stablehlo` file, a serialized `jax.export.Exported` with the weights inside."""
    import jax
    import jax.numpy as jnp

    model = graph.model
    names = ("batch", "height", "width", "channels")
    sides = zip(names, model.inputs[0].shape, strict=True)
    shape = jax.export.symbolic_shape(", ".join(str(side or name) for name, side in sides))
    spec = jax.ShapeDtypeStruct(shape, keras.backend.standardize_dtype(model.inputs[0].dtype))
    half = half_arrays(model, graph.precision)

    def run(images):
        weights = []
        for variable in model.variables:
            value = jnp.asarray(half.get(id(variable), variable.value))
            weights.append((variable, value.astype(variable.dtype)))
        with keras.StatelessScope(weights):
            return graph.name_outputs(model(images, training=False))

    exported = jax.export.export(jax.jit(run), platforms=PLATFORMS)(spec)
    path.write_bytes(exported.serialize())


def matches(path: Path) -> bool:
    """Return whether a file names StableHLO: its flatbuffer has no identifier."""
    content = path.read_bytes() if path.is_file() else b""
    return b"StableHLO_v" in content or b"stablehlo" in content


FORMAT = Format(
    name="stablehlo",
    title="StableHLO data",
    suffix=".stablehlo",
    backend="jax",
    needs=("jax",),
    extra="jax",
    write=write,
    matches=matches,
    risk="it may call any function that is registered with XLA, with any arguments",
)
