"""A StableHLO file in JAX."""

PACKAGES = ("jax",)


def load(path):
    """Return a function from images to float32 outputs by name."""
    import pathlib

    import jax
    import numpy as np

    call = jax.jit(jax.export.deserialize(bytearray(pathlib.Path(path).read_bytes())).call)

    def run(images):
        return {name: np.asarray(each, "float32") for name, each in call(images).items()}

    return run
