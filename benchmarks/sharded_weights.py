"""Memory of a training step with sharded weights, by the buffers of the step as XLA compiles it.

    KERAS_BACKEND=jax XLA_FLAGS=--xla_force_host_platform_device_count=8 \
        python benchmarks/sharded_weights.py CaiT_M48 --batch 8

Nothing is computed. On a CPU, XLA widens bfloat16 to float32, so that its temporary buffers are
larger than those of a GPU or TPU.
"""

import argparse
import json
import time

import jax
import keras
import numpy as np

import keras_vitx as kv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="CaiT_M48")
    parser.add_argument("--batch", type=int, default=8, help="images of all devices")
    parser.add_argument("--copies", action="store_true", help="whole weights on every device")
    parser.add_argument("--no-remat", dest="remat", action="store_false")
    parser.add_argument("--arguments", type=json.loads, default={}, help="of the model, as JSON")
    options = parser.parse_args()
    devices = kv.training.use_devices("all", shard_weights=not options.copies)
    jax.default_backend = lambda: "tpu"  # The layers' paths of accelerators.
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = kv.create_model(options.model, remat=options.remat, **options.arguments)
    optimizer = kv.training.AdamW(1e-3, weight_decay=0.05, global_clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    start = time.perf_counter()
    memory = compiled_step(model, options.batch).memory_analysis()
    sizes = {
        "state_and_batch": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        # The new state takes the place of the old one.
        "total": memory.argument_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes,
    }
    result = {name: round(size / 1e9, 2) for name, size in sizes.items()}
    print(
        json.dumps(
            {
                "model": options.model,
                **options.arguments,
                "image": list(model.input_shape[1:3]),
                "devices": devices.count,
                "batch": options.batch,
                "remat": options.remat,
                "sharded": not options.copies,
                "parameters": model.count_params(),
                "GB_per_device": result,
                "compiled_in_s": round(time.perf_counter() - start),
            }
        )
    )


def compiled_step(model: keras.Model, batch: int):
    """Return the training step of Keras's trainer, compiled for the devices in use."""
    data = np.zeros((batch, *model.input_shape[1:]), "float32"), np.zeros(batch, "int32")
    model._symbolic_build(data_batch=data)
    state = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([variable.value for variable in group] for group in state)
    layout = keras.distribution.distribution().get_data_layout
    data = tuple(keras.distribution.distribute_tensor(x, layout(x.shape)) for x in data)
    shardings = jax.tree.map(lambda value: value.sharding, state)
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, shardings))
    return step.lower(state, data).compile()


if __name__ == "__main__":
    main()
