"""Train on several devices of one machine, or as many processes as `torchrun` starts.

    KERAS_BACKEND=jax python examples/several_devices.py
    KERAS_BACKEND=tensorflow python examples/several_devices.py
    KERAS_BACKEND=torch torchrun --nproc-per-node 2 examples/several_devices.py

Without GPUs, JAX and TensorFlow divide the CPU into two devices. `batch_size` is that of all
devices together, so the result is that of one device.
"""

import keras_vitx as kv

import keras

if keras.backend.backend() == "jax":
    import jax

    if jax.config.jax_num_cpu_devices < 1:
        jax.config.update("jax_num_cpu_devices", 2)
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        (cpu,) = tf.config.list_physical_devices("CPU")
        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, halves)

# Before the model is made, because the devices hold its variables.
keras.utils.set_random_seed(0)
devices = kv.training.use_devices("all")
if devices.process == 0:
    print(f"{devices.count} devices on {keras.backend.backend()}")

model = kv.CaiT_Mini(weights="cifar10")
history = kv.fit(model, "fashion_mnist", "finetune", epochs=1, batch_size=64)
if kv.training.is_chief():  # Of several processes, one writes.
    print(f"test accuracy {history.test['accuracy']:.1%}")
    model.save("fashion.keras")
