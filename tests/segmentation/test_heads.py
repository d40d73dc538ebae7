"""UperNet and the linear head: parameters, shapes, a public implementation, training."""

import sys

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, close, gradients, numbers, randomize
from keras import ops

import keras_vitx as kv
from keras_vitx.segmentation import LinearHead, MeanIoU, UperNet
from keras_vitx.segmentation.metrics import confusion, metrics_of

SHAPE = (32, 48, 3)
SMALL = dict(channels=8, scales=(2, 1, 1, 0.5), pool_sizes=(1, 2, 3), dropout=0.0, auxiliary=4)


def backbone(family="ViT", **changes):
    keras.utils.set_random_seed(0)
    changes = {"input_shape": SHAPE, "depth": 4, "drop_path": 0.0, **changes}
    return kv.features(FAMILIES[family](**changes), range(4))


def pyramid(widths, size=(64, 96)):
    """A backbone that returns maps of four scales without any weights."""
    images = keras.Input((*size, 3))
    maps = [
        keras.layers.AveragePooling2D(4 * 2**i)(ops.repeat(images, width // 3, axis=-1))
        for i, width in enumerate(widths)
    ]
    return keras.Model(images, maps)


def parameters(widths, channels, classes, auxiliary=0):
    """Trainable parameters of the published architecture, convolution by convolution."""
    *lateral, last = widths
    count = 4 * (last * channels + 2 * channels)  # after pooling to 1, 2, 3 and 6
    count += 9 * (last + 4 * channels) * channels + 2 * channels
    count += sum(width * channels + 2 * channels for width in lateral)
    count += len(lateral) * (9 * channels**2 + 2 * channels)
    count += 9 * len(widths) * channels**2 + 2 * channels
    count += channels * classes + classes
    if auxiliary:
        count += 9 * widths[-2] * auxiliary + 2 * auxiliary + auxiliary * classes + classes
    return count


def compile(model):
    metric = MeanIoU(5, ignore_class=255, sparse_y_pred=False, name="mean_iou")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255)
    model.compile(kv.training.AdamW(1e-3, 0.01), loss, metrics=[metric])


def trainable(model):
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


@pytest.mark.backend_free
def test_parameters_of_upernet():
    widths = (96, 192, 384, 768)
    model = UperNet(pyramid(widths), 150, scales=None)
    assert trainable(model) == parameters(widths, 512, 150, 256)
    # UperNet on Swin-T is published with 60 M: its backbone has 28.3 M, of which the
    # classifier of ImageNet's 1,000 classes is dropped and a norm per map added.
    swin = 28_288_354 - 769_000 + 2 * sum(widths[:-1])
    assert round((swin + trainable(model)) / 1e6) == 60
    # Two transposed convolutions with a norm between them, and one.
    one = 384 * 384 * 4 + 384
    model = UperNet(pyramid((384,) * 4), 150, channels=384)
    assert trainable(model) == parameters((384,) * 4, 384, 150, 256) + 3 * one + 2 * 384


@pytest.mark.skipif(BACKEND != "torch", reason="the public implementation is PyTorch's")
def test_against_a_public_implementation(monkeypatch):
    torch = pytest.importorskip("torch")
    # Not needed, and an error where it does not fit the version of PyTorch.
    monkeypatch.setitem(sys.modules, "torchvision", None)
    upernet = pytest.importorskip("transformers.models.upernet.modeling_upernet")
    from transformers import UperNetConfig

    config = UperNetConfig(hidden_size=8, num_labels=5, pool_scales=[1, 2, 3, 6])
    widths = (6, 9, 12, 15)
    theirs = upernet.UperNetHead(config, list(widths)).eval()
    names = pyramid(widths)
    model = UperNet(names, 5, channels=8, scales=None, auxiliary=None)
    randomize(model)
    ours = {v.path: array(v) for v in model.head.weights}
    modules = {
        **{f"pool_{size}": f"psp_modules.{i}.1" for i, size in enumerate((1, 2, 3, 6))},
        **{f"lateral_{i}": f"lateral_convs.{i}" for i in range(3)},
        **{f"level_{i}": f"fpn_convs.{i}" for i in range(3)},
        "pyramid": "bottleneck",
        "fusion": "fpn_bottleneck",
    }
    state = theirs.state_dict()
    norm = {"weight": "gamma", "bias": "beta"}
    norm |= {"running_mean": "moving_mean", "running_var": "moving_variance"}
    for name, module in modules.items():
        state[f"{module}.conv.weight"] = ours[f"{name}/kernel"].transpose(3, 2, 0, 1)
        for parameter, variable in norm.items():
            state[f"{module}.batch_norm.{parameter}"] = ours[f"{name}_norm/{variable}"]
    state["classifier.weight"] = ours["head/kernel"].transpose(3, 2, 0, 1)
    state["classifier.bias"] = ours["head/bias"]
    theirs.load_state_dict({k: torch.as_tensor(np.array(v)) for k, v in state.items()})
    images = numbers((2, 64, 96, 3))
    with torch.no_grad():
        maps = [one.permute(0, 3, 1, 2) for one in names(images)]
        expected = torch.nn.functional.interpolate(
            theirs(maps), size=(64, 96), mode="bilinear", align_corners=False
        )
    close(array(model(images)), expected.permute(0, 2, 3, 1).numpy())


def test_training_reaches_every_variable():
    model = UperNet(backbone(), 5, **SMALL)
    masks = np.arange(4 * 32 * 48).reshape(4, 32, 48) % 5
    masks[:, :10] = 255
    images = numbers((4, *SHAPE))
    compile(model)
    model._in_train_step = True

    def loss():
        return model.compute_loss(images, masks, model(images, training=True), training=True)

    _, found = gradients(loss, model.trainable_variables)
    model._in_train_step = False
    assert all(np.isfinite(gradient).all() for gradient in found)
    pairs = zip(model.trainable_variables, found, strict=True)
    assert not [v.path for v, gradient in pairs if not gradient.any()]

    first, last = model.fit(images, masks, epochs=2, batch_size=4, verbose=0).history["loss"]
    assert last < first


@pytest.mark.backend_free
@pytest.mark.parametrize("head", [UperNet, LinearHead])
def test_logits_before_and_after_saving(tmp_path, head):
    options = SMALL if head is UperNet else {}
    model = head(backbone("CaiT"), 5, class_names=tuple("abcde"), **options)
    assert model.output_shape == (None, *SHAPE[:2], 5)
    assert head is UperNet or trainable(model.head) == 4 * 8 * 2 + 4 * 8 * 5 + 5
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    images = numbers((2, *SHAPE))
    found = model(images)
    assert found.shape == (2, *SHAPE[:2], 5) and "float32" in str(found.dtype)
    close(array(again(images)), array(found))
    assert again.preprocessing == model.preprocessing and again.class_names == model.class_names


@pytest.mark.backend_free
def test_images_are_not_cropped():
    """Or they would not fit their masks."""
    model, image = LinearHead(backbone("ViT"), 5), np.random.randint(0, 256, SHAPE, "uint8")
    expected = (image / 255 - model.preprocessing.mean) / model.preprocessing.std
    close(kv.preprocess_input(image, model)[0], expected)


def test_ignored_pixels():
    """Neither the loss nor the metric depends on them; both equal those of NumPy."""
    model = LinearHead(backbone(), 5)
    randomize(model)
    compile(model)
    images = numbers((2, *SHAPE))
    masks = np.random.default_rng(0).integers(0, 5, (2, 32, 48))
    ignored = np.random.default_rng(1).random(masks.shape) < 0.3
    masks[ignored] = 255
    logits = array(model(images)).astype("float64")
    # 4 x 6 patches of 8 x 8 pixels: beyond the outer centers, bilinear resizing repeats.
    np.testing.assert_allclose(logits[:, :4], logits[:, 3:4].repeat(4, 1), atol=1e-6)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    right = np.take_along_axis(logs, np.where(ignored, 0, masks)[..., None], -1)[..., 0]
    loss, iou = model.evaluate(images, masks, verbose=0)
    assert abs(loss + right[~ignored].mean()) < 1e-4
    expected = metrics_of(confusion(masks, logits.argmax(-1), 5))
    assert abs(iou - expected["mean_iou"]) < 1e-6
    assert np.isfinite(model.evaluate(images, np.full_like(masks, 255), verbose=0)[0])
