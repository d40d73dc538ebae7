"""Find a learning rate: raise it at every step until the loss does (Smith, 2017, Section 3.3).

    KERAS_BACKEND=torch python examples/find_learning_rate.py

Plots the loss by learning rate, and trains at the rate at which the loss falls fastest.
Takes about two minutes on two cores. Needs the extra "plots".
"""

import keras_vitx as kv

import keras
import numpy as np
from matplotlib.figure import Figure


def compiled(model, learning_rate):
    """Compile a model in place, and return it."""
    optimizer = kv.training.AdamW(learning_rate, weight_decay=0.05, global_clipnorm=1.0)
    model.compile(optimizer, kv.training.SmoothedCrossentropy(0.1))
    return model


def losses_by_rate(model, batches, rates, momentum=0.9):
    """Return the moving average of the loss at each rate, until it is four times its minimum.

    A compiled model is trained for one step per rate; then its weights are restored.
    """
    weights, average, losses = model.get_weights(), 0.0, []
    for step, rate in enumerate(rates):
        model.optimizer.learning_rate = rate
        model.reset_metrics()  # Else Keras returns the mean over the steps.
        loss = model.train_on_batch(*batches[step % len(batches)])
        average = momentum * average + (1 - momentum) * float(loss)
        unbiased = average / (1 - momentum ** (step + 1))
        if not unbiased < 4 * min(losses, default=np.inf):  # Also if it is not a number.
            break
        losses.append(unbiased)
    model.set_weights(weights)
    return np.array(losses)


keras.utils.set_random_seed(0)
backbone = kv.CaiT_Mini(weights="cifar10", include_top=False, pooling="token")
outputs = keras.layers.Dense(10, activation="softmax", name="head")(backbone.output)
model = keras.Model(backbone.input, outputs)
model.preprocessing = backbone.preprocessing
batches = kv.data.pipelines("fashion_mnist", model, batch_size=64)

rates = np.geomspace(1e-6, 1.0, 60)
losses = losses_by_rate(compiled(model, rates[0]), batches.train, rates)
rates = rates[: len(losses)]
# The first averages are of few losses, so that a fall among them is noise.
best = float(rates[5:][np.gradient(losses, np.log(rates))[5:].argmin()])

figure = Figure((5, 3), layout="constrained")
axes = figure.subplots()
axes.semilogx(rates, losses)
axes.axvline(best, linestyle="--", label=f"{best:.1g}")
axes.set(xlabel="learning rate", ylabel="loss")
axes.legend()
figure.savefig("rates.png")
print(f"The loss falls fastest at {best:.1g}; see rates.png.")

compiled(model, best).fit(batches.train, verbose=2)
accuracy = kv.evaluate(model, batches.test)["accuracy"]
print(f"test accuracy after one epoch {accuracy:.1%}")
