"""Three steps of every recipe beside the released trainers: timm's mixed labels, loss and groups of
weight decay, and PyTorch's AdamW, on the same weights, images and rates, in float64.

    KERAS_BACKEND=torch python -m pytest -q -s tests/training/test_fidelity.py
"""

import keras
import numpy as np
import pytest
from harness import BACKEND

import keras_vitx as kv
from keras_vitx.training import Distillation, SmoothedCrossentropy, recipes
from keras_vitx.training.optimizer import make_optimizer

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(BACKEND != "torch", reason="the peers are in PyTorch")

CLASSES, BATCH, LAMBDA = 5, 4, 0.7
COMMON = {
    "patch_size": 8, "input_shape": (32, 32, 3), "classes": CLASSES, "classifier_activation": None,
    "dtype": "float64",
}  # fmt: skip
SIZE = {"dim": 24, "depth": 4, "num_heads": 4, **COMMON}
SIMILAR = {"similarity": 0.1, "similarity_depth": 3}
# Recipes without a released trainer: finetune, small_images.
MODELS = {
    "deit": lambda: kv.ViT(**SIZE),
    "deit, distilled": lambda: kv.ViT(**SIZE, distillation_token=True),
    "convit_plus": lambda: kv.ConViT(**SIZE, local_depth=2),
    "cait": lambda: kv.CaiT(**SIZE, layer_scale=1e-6),
    "transfer": lambda: kv.CaiT(**SIZE, layer_scale=1e-6),
    "higher_resolution": lambda: kv.CaiT(**SIZE, layer_scale=0.1),  # As if it were trained.
    "deepvit": lambda: kv.DeepViT(**SIZE, **SIMILAR),
    "refiner": lambda: kv.RefinedViT(**SIZE, **SIMILAR),
    "refiner, token labels": lambda: kv.RefinedViT(**SIZE, **SIMILAR, dense_head=True),
}
# A softmax or a normalization follows, so that their gradients are rounding errors.
SHIFTS = ("pos_proj/bias", "proj_l/bias", "/k/bias", "reatten_matrix/bias", "bn3/beta")
IMAGES = np.random.default_rng(0).normal(size=(BATCH, 32, 32, 3))
OWN, TEACHER = np.array([0, 1, 2, 3]), np.array([4, 1, 0, 2])
MAPS = np.random.default_rng(1).normal(size=(BATCH, 4, 4, CLASSES)).astype("float32")


def labels_of(name, model):
    """Labels as our batches have them, and a function of outputs by head: the released loss."""
    from timm.data.mixup import mixup_target
    from timm.loss import SoftTargetCrossEntropy

    soft, smoothing = SoftTargetCrossEntropy(), 0.1
    target = mixup_target(torch.tensor(OWN), CLASSES, LAMBDA, smoothing)
    eye = np.eye(CLASSES)
    mixed = LAMBDA * eye[OWN] + (1 - LAMBDA) * eye[OWN[::-1]]
    if name == "deit, distilled":

        def distilled(outputs):
            hard = torch.nn.functional.cross_entropy(outputs["head_dist"], torch.tensor(TEACHER))
            return 0.5 * soft(outputs["head"], target) + 0.5 * hard

        return {"head": mixed, "head_dist": TEACHER}, distilled
    if name == "refiner, token labels":
        maps = torch.tensor(MAPS).flatten(1, 2)
        dense, pooled = (
            x.softmax(-1) * (1 - smoothing) + smoothing / CLASSES for x in (maps, maps.mean(1))
        )
        given = {"head": maps.mean(1).softmax(-1).numpy(), "aux_head": maps.softmax(-1).numpy()}
        return (
            given,
            lambda outputs: soft(outputs["head"], pooled) + 0.5 * soft(outputs["aux_head"], dense),
        )
    return mixed, lambda outputs: soft(outputs["head"], target)


def released_updates(model, recipe, loss_of, rates):
    """The changes of all variables by PyTorch's AdamW, decaying as timm's groups do."""
    variables = model.trainable_variables
    kept = [len(v.shape) < 2 or v.name in ("embeddings", "token") for v in variables]
    groups = [
        {
            "params": [v.value for v, out in zip(variables, kept, strict=True) if out == no_decay],
            "weight_decay": 0.0 if no_decay else recipe.weight_decay,
        }
        for no_decay in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.999), eps=1e-8)
    before = [v.value.detach().clone() for v in variables]
    for rate in rates:
        for group in optimizer.param_groups:
            group["lr"] = rate
        outputs = model(IMAGES, training=True, by_head=True)
        outputs = outputs if isinstance(outputs, dict) else {"head": outputs}
        optimizer.zero_grad()
        (loss_of(outputs) + sum(model.losses)).backward()
        optimizer.step()
    return [(v.value - old).detach() for v, old in zip(variables, before, strict=True)]


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_that_of_the_released_trainer(name, timm):
    recipe = recipes.get(name.partition(",")[0]).replace(drop_path=None, warmup_epochs=0)
    keras.utils.set_random_seed(0)
    ours, theirs = MODELS[name](), MODELS[name]()
    theirs.set_weights(ours.get_weights())
    labels, loss_of = labels_of(name, ours)
    loss = SmoothedCrossentropy(recipe.label_smoothing, from_logits=True)
    if name == "deit, distilled":
        loss = Distillation(MODELS["deit"]()).loss(ours, loss)
    ours.compile(make_optimizer(ours, recipe, 1000), loss)
    before = [v.value.detach().clone() for v in ours.trainable_variables]
    rates = []
    for _ in range(3):
        rates.append(float(ours.optimizer.learning_rate))
        ours.train_on_batch(IMAGES, labels)
    assert rates == pytest.approx([recipe.peak] * 3, rel=1e-3)
    worst, where = 0.0, ""
    expected = released_updates(theirs, recipe, loss_of, rates)
    for variable, start, update in zip(ours.trainable_variables, before, expected, strict=True):
        if not variable.path.endswith(SHIFTS):
            off = float((variable.value - start - update).norm() / update.norm())
            worst, where = max((worst, where), (off, variable.path))
    print(f"\n{name}: updates differ by up to {worst:.2g} ({where})")
    assert worst < 0.02, where
