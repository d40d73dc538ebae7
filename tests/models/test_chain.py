"""Training of a Chain with several heads."""

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, close, compiled, numbers, randomized, softmax

from keras_vitx.layers import ClassToken, DenseHead, DistilledHead, PatchEmbedding
from keras_vitx.losses import PerHead, SmoothedCrossentropy, SoftDistillation
from keras_vitx.models import Chain
from keras_vitx.outputs import outputs_of

DENSE = {"dense_head": True, "conv_stem": False, "layer_scale": 0.5}
HEADS = {
    "softmax": ("ViT", {}),
    "logits": ("ViT", {"classifier_activation": None}),
    "sigmoid": ("ViT", {"classifier_activation": "sigmoid"}),
    "distilled": ("ViT", {"distillation_token": True}),
    "dense": ("RefinedViT", DENSE),
}
# The softmax is of a backend, the other heads are not.
HERE = HEADS if BACKEND == "torch" else ("softmax", "sigmoid")
IMAGES = numbers((4, 16, 16, 3))
LABELS = np.array([0, 1, 2, 3])
SMOOTHING, SPARSE = 0.1, "sparse_categorical_crossentropy"


def model_of(head, **changes):
    family, arguments = HEADS[head]
    return FAMILIES[family](**{"drop_path": 0.0, **arguments, **changes})


def tiny(head, penalty=0.0):
    """The smallest network with a head of this kind: four patches, three classes."""
    keras.utils.set_random_seed(0)
    penalty = keras.regularizers.L2(penalty) if penalty else None
    layers = [
        PatchEmbedding(6, 8, name="stem"),
        ClassToken(2 if head is DistilledHead else 1, name="tokens"),
        keras.layers.Dense(6, "tanh", kernel_regularizer=penalty, name="body"),
        head(3, name="head"),
        keras.layers.Activation("softmax", name="prediction"),
    ]
    return Chain(layers, (16, 16, 3))


def values(layer):
    return [array(variable.value).copy() for variable in layer.trainable_variables]


def crossentropy(targets, probabilities):
    return -(targets * np.log(probabilities)).sum(-1)


def probabilities_of(model):
    logits = compiled(lambda: model(IMAGES, training=True, by_head=True))
    return {name: softmax(array(logits[name])) for name in model.heads}


@pytest.mark.parametrize("head", HERE)
def test_the_loss_reaches_its_floor(head):
    """With a second softmax, or a sigmoid treated as logits, the loss stays far above."""
    keras.utils.set_random_seed(1)
    model = model_of(head, classes=2, depth=2 if head.startswith("dense") else 1)
    labels = np.arange(16) % 2
    images = numbers((16, 16, 16, 3), scale=0.1) + (2 * labels - 1)[:, None, None, None]
    outputs = outputs_of(model)
    loss, targets = SmoothedCrossentropy(SMOOTHING, from_logits=outputs.from_logits), labels
    if outputs.kind == "sigmoid":
        loss = keras.losses.BinaryCrossentropy(label_smoothing=SMOOTHING)
        targets = np.eye(2)[labels]
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    before = values(model)
    often = [np.concatenate([each] * 59) for each in (images, targets)]
    model.fit(*often, 16, shuffle=False, verbose=0)
    history = model.fit(images, targets, 16, verbose=0).history
    target = np.array([1 - SMOOTHING / 2, SMOOTHING / 2])
    floor = crossentropy(target, target) * (1.5 if head.startswith("dense") else 1)
    assert floor - 1e-4 <= history["loss"][-1] <= 1.03 * floor
    assert history["accuracy"][-1] == model.evaluate(images, targets, verbose=0)[1] == 1
    assert all((new != old).any() for new, old in zip(values(model), before, strict=True))
    if BACKEND == "torch":  # Its DistributedDataParallel requires a gradient for every parameter.
        assert all(variable.value.grad is not None for variable in model.trainable_variables)
    # The prediction uses all heads, and each of them has learned.
    parts = compiled(lambda: model(images, training=True, by_head=True))
    for part in parts.values() if isinstance(parts, dict) else [parts]:
        best = array(part).argmax(-1)
        np.testing.assert_array_equal(best.T, np.broadcast_to(labels, best.T.shape))


CLASS, OTHER, EYE = np.array([0, 1, 2, 0]), np.array([1, 1, 0, 2]), np.eye(3, dtype="float32")
# Labels of 4 patches in 3 classes: integers and distributions.
INTEGERS = np.random.default_rng(0).integers(0, 3, (4, 4))
SOFT = np.random.default_rng(1).dirichlet(np.ones(3), (4, 4)).astype("float32")
# The labels given, and the resulting targets of the class head and of the other part.
LABELED = {
    "one": (DistilledHead, CLASS, EYE[CLASS], EYE[CLASS]),
    "columns": (DenseHead, CLASS[:, None], EYE[CLASS], EYE[CLASS][:, None]),
    "one-hot": (DenseHead, EYE[CLASS], EYE[CLASS], EYE[CLASS][:, None]),
    "class alone": (DenseHead, {"head": CLASS}, EYE[CLASS], EYE[CLASS][:, None]),
    "teacher": (DistilledHead, {"head": CLASS, "head_dist": OTHER}, EYE[CLASS], EYE[OTHER]),
    "patches": (DenseHead, {"head": CLASS, "aux_head": INTEGERS}, EYE[CLASS], EYE[INTEGERS]),
    "soft patches": (DenseHead, {"head": CLASS, "aux_head": SOFT}, EYE[CLASS], SOFT),
}
WEIGHTS = {DistilledHead: (0.5, 0.5), DenseHead: (1.0, 0.5)}


@pytest.mark.parametrize(
    "labeled", LABELED if BACKEND == "torch" else ("one", "teacher", "soft patches")
)
def test_loss_of_the_parts(labeled):
    head, labels, target, other_target = LABELED[labeled]
    weighted = labeled not in ("one", "class alone")
    model = tiny(head, penalty=0.1)
    sample_weight = np.array([1.0, 0.5, 2.0, 0.0], "float32") if weighted else np.ones(4)
    penalty = 0.1 * (array(model.get_layer("body").kernel.value) ** 2).sum()
    one, other = probabilities_of(model).values()
    loss = crossentropy(target, one)
    other_loss = crossentropy(other_target, other).reshape(4, -1).mean(1)
    first, second = WEIGHTS[head]
    expected = ((first * loss + second * other_loss) * sample_weight).mean() + penalty
    prediction = array(compiled(lambda: model(IMAGES, training=False)))

    # A loss by name is the mean over the patches, too.
    is_integer = labeled in ("one", "columns", "class alone", "teacher", "patches")
    given = SPARSE if is_integer and not weighted else SmoothedCrossentropy()
    model.compile(keras.optimizers.SGD(0.0), given, metrics=["accuracy"])
    arguments = {"sample_weight": sample_weight} if weighted else {}
    logs = model.train_on_batch(IMAGES, labels, return_dict=True, **arguments)
    assert set(logs) == {"accuracy", "loss"}
    close(logs["loss"], expected)
    assert logs["accuracy"] == pytest.approx((one.argmax(-1) == CLASS).mean())
    # In evaluation there is one prediction.
    logs = model.evaluate(IMAGES, labels, verbose=0, return_dict=True, **arguments)
    close(logs["loss"], (crossentropy(target, prediction) * sample_weight).mean() + penalty)
    assert logs["accuracy"] == pytest.approx((prediction.argmax(-1) == CLASS).mean())


@pytest.mark.backend_free
@pytest.mark.parametrize("head", ("distilled", "dense"))
def test_inside_another_model(head):
    """It returns its prediction, because the enclosing model's loss does not know the heads."""
    chain = model_of(head)
    model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Rescaling(2.0), chain])
    assert tuple(model(IMAGES, training=True).shape) == (4, 5)
    before = values(chain.get_layer("head"))
    model.compile(keras.optimizers.SGD(1.0), SPARSE, metrics=["accuracy"])
    model.fit(IMAGES, LABELS, verbose=0)
    after = values(chain.get_layer("head"))
    assert all((a != b).any() for a, b in zip(after, before, strict=True))


BY_HEAD = {"head": SPARSE, "head_dist": SoftDistillation(1.0)}


@pytest.mark.parametrize("weights", (None, {"head_dist": 0.1}))
def test_a_dictionary_of_losses(weights, tmp_path):
    """`compile` means what it says: a loss and a weight per head, also after loading."""
    model = tiny(DistilledHead)
    one, other = probabilities_of(model).values()
    model.compile(keras.optimizers.SGD(0.0), BY_HEAD, weights, ["accuracy"])
    model.save(tmp_path / "m.keras")
    first = crossentropy(EYE[CLASS], one).mean()
    second = (SOFT[:, 0] * np.log(SOFT[:, 0] / other)).sum(-1).mean()
    labels = {"head": CLASS, "head_dist": SOFT[:, 0]}
    for each in (model, keras.saving.load_model(tmp_path / "m.keras")):
        loss, accuracy = each.train_on_batch(IMAGES, labels)
        close(loss, 0.5 * first + (weights or {}).get("head_dist", 0.5) * second)
        assert accuracy == pytest.approx((one.argmax(-1) == CLASS).mean())
        assert each.loss.weights == (weights or {})


def test_weights_of_one_loss():
    model = tiny(DenseHead)
    one, other = probabilities_of(model).values()
    expected = 0.3 * crossentropy(EYE[CLASS], one).mean()
    expected += 2 * crossentropy(EYE[CLASS][:, None], other).mean()
    loss, weights = SmoothedCrossentropy(), {"head": 0.3, "aux_head": 2.0}
    for arguments in ((loss, weights), (PerHead({"head": loss}, weights),)):
        model.compile(keras.optimizers.SGD(0.0), *arguments)
        close(model.train_on_batch(IMAGES, CLASS), expected)


def test_methods_of_a_subclass_get_the_prediction():
    shapes = []

    def method(name):
        def run(self, *args, **kwargs):
            found = getattr(super(Own, self), name)(*args, **kwargs)
            given = {**dict(zip(("x", "y", "y_pred"), args, strict=False)), **kwargs}
            shapes.append((name, *(found if name == "call" else given["y_pred"]).shape[1:]))
            return found

        return run

    names = ("call", "compute_loss", "compute_metrics")
    Own = type("Own", (Chain,), {name: method(name) for name in names})
    model = Own.from_config(model_of("distilled").get_config())
    model.compile(keras.optimizers.SGD(0.1), SPARSE, metrics=["accuracy"])
    history = model.fit(IMAGES, LABELS, verbose=0).history
    assert set(shapes) == {(name, 5) for name in names} and np.isfinite(history["loss"]).all()


TWO, ONE_HOT = IMAGES[:2], np.eye(5, dtype="float32")[[0, 3]]


@pytest.mark.parametrize("two", (True, False) if BACKEND == "torch" else (True,))
def test_a_loss_may_call_the_model_again(two):
    model = FAMILIES["ViT"](drop_path=0.0, distillation_token=two)
    expected = array(model(TWO, training=True))

    def loss(labels, predictions):
        again = model(keras.ops.convert_to_tensor(TWO), training=True)
        return keras.ops.sum(keras.ops.abs(again - keras.ops.convert_to_tensor(expected)), -1)

    model.compile(keras.optimizers.SGD(0.1), loss)
    assert float(np.ravel(model.train_on_batch(TWO, ONE_HOT))[0]) < 1e-5


@pytest.mark.backend_free
@pytest.mark.parametrize("argument", ["loss", "loss_weights", "metrics"])
def test_unknown_names_in_compile_raise(argument):
    model = FAMILIES["ViT"](distillation_token=True)
    given = {"loss": {"head": "mse"}, "loss_weights": {"head": 1.0}, "metrics": {"head": ["mse"]}}
    model.compile("sgd", **given)
    model.train_on_batch(TWO, ONE_HOT)
    with pytest.raises(ValueError, match="dist"):
        model.compile(
            "sgd", **{**given, argument: {**given[argument], "dist": given[argument]["head"]}}
        )
        model.train_on_batch(TWO, ONE_HOT)


@pytest.mark.backend_free
@pytest.mark.parametrize("activation", ["softmax", None])
def test_a_weight_of_one_loss_is_kerass(activation):
    losses = []
    for weights in (None, [2.0]):
        keras.utils.set_random_seed(0)
        model = randomized("ViT", classifier_activation=activation)
        loss = keras.losses.CategoricalCrossentropy(from_logits=activation is None)
        model.compile(keras.optimizers.SGD(0.0), loss, weights)
        losses += [model.train_on_batch(TWO, ONE_HOT), model.test_on_batch(TWO, ONE_HOT)]
    close(losses[2:], 2 * np.array(losses[:2]))


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "binary_crossentropy"])
def test_losses_of_keras_get_logits_in_a_step(loss):
    """Of a probability of 1e-44, which Keras clips at 1e-7, they have a gradient."""
    model = FAMILIES["ViT"](classifier_activation="softmax" if "sparse" in loss else "sigmoid")
    head = model.get_layer("head")
    head.kernel.assign(np.zeros(head.kernel.shape))
    head.bias.assign([-101.0, 0, 0, 0, 0])
    model.compile(keras.optimizers.SGD(1.0), loss)
    model.train_on_batch(TWO, np.zeros(2) if "sparse" in loss else np.eye(5)[[0, 0]])
    assert array(head.bias)[0] > -101
