"""Fine-tune a checkpoint with plain `model.compile` and `model.fit`, on any backend.

    KERAS_BACKEND=jax python examples/finetune_keras.py

Takes about one minute per epoch on two cores.
"""

import keras_vitx as kv

import keras

EPOCHS = 3

keras.utils.set_random_seed(0)
backbone = kv.CaiT_Mini(weights="cifar10", include_top=False, pooling="token")
features = keras.layers.Dropout(0.1)(backbone.output)
outputs = keras.layers.Dense(10, activation="softmax", dtype="float32", name="head")(features)
# The same layers, trained as one loop over depth, which is faster under JAX.
model = kv.as_chain(keras.Model(backbone.input, outputs))
model.preprocessing = backbone.preprocessing

batches = kv.data.pipelines("fashion_mnist", model, batch_size=64, augmentation="crop_flip")
schedule = keras.optimizers.schedules.CosineDecay(1e-3, EPOCHS * len(batches.train))
model.compile(
    keras.optimizers.AdamW(schedule, weight_decay=0.05, global_clipnorm=1.0),
    keras.losses.SparseCategoricalCrossentropy(),
    metrics=["accuracy"],
)
model.fit(
    batches.train.stream(),  # prefetched; `batches.train` alone is read in one thread
    steps_per_epoch=len(batches.train),
    validation_data=batches.validation,
    epochs=EPOCHS,
    callbacks=[keras.callbacks.EarlyStopping("val_accuracy", restore_best_weights=True)],
    verbose=2,
)
loss, accuracy = model.evaluate(batches.test, verbose=0)
print(f"test accuracy {accuracy:.1%} on {keras.backend.backend()}")
model.save("fashion.keras")
