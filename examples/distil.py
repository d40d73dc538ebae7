"""Distil a convolutional network into small transformers, with `kv.fit` and with plain Keras.

    python examples/distil.py

The first student has a distillation token, whose head learns the teacher's most probable class
(DeiT's hard distillation). The second has none, and learns the teacher's probabilities. The
teacher sees the same augmented and mixed images, prepared as it needs them.
Takes about two minutes on two cores.
"""

import keras_vitx as kv

import keras

EPOCHS = 5
SHAPE = (28, 28, 1)

keras.utils.set_random_seed(0)


def student_of(**arguments):
    """A transformer of 0.1 M parameters, with random weights."""
    return kv.ViT(48, 4, 3, patch_size=4, input_shape=SHAPE, classes=10, **arguments)


# Any Keras classifier can teach. It needs to say how its images are prepared.
teacher = keras.Sequential(
    [
        keras.Input(SHAPE),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10, name="head"),
    ],
    name="teacher",
)
teacher.preprocessing = kv.Preprocessing(mean=(0.286,), std=(0.353,))
kv.fit(teacher, "fashion_mnist", epochs=EPOCHS, learning_rate=3e-3)

# Hard, with a distillation token.
student = student_of(distillation_token=True)
kv.fit(
    student,
    "fashion_mnist",
    teacher=teacher,
    distillation="hard",
    mixup=0.8,
    learning_rate=2e-3,
    epochs=EPOCHS,
)

# Soft, without one, in plain Keras.
plain = student_of()
batches = kv.data.pipelines("fashion_mnist", plain, batch_size=128)
distillation = kv.training.Distillation(teacher, "soft", temperature=3.0, weight=0.5)
plain.compile(
    keras.optimizers.AdamW(1e-3, weight_decay=0.05),
    distillation.loss(plain, kv.training.SmoothedCrossentropy(0.1)),
    metrics=["accuracy"],
)
plain.fit(
    distillation.batches(batches.train, plain),
    validation_data=batches.validation,
    epochs=EPOCHS,
    verbose=2,
)

for name, model in {"teacher": teacher, "hard, token": student, "soft, plain": plain}.items():
    accuracy = kv.evaluate(model, "fashion_mnist", "test")["accuracy"]
    print(f"{name}: test accuracy {accuracy:.1%}")
