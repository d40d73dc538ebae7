"""The augmentation and the mixing against timm's, on photographs: equal or of one distribution."""

import random
from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageOps

from keras_vitx.data import Mixing
from keras_vitx.data.augmentation import PRESETS, jitter_colors
from keras_vitx.data.augmentation.erasing import draw_erasing, erase_box
from keras_vitx.data.augmentation.rand_augment import OPERATIONS, SIGNED, RandAugment
from keras_vitx.data.augmentation.windows import random_box
from keras_vitx.data.images import normalize
from keras_vitx.preprocessing import IMAGENET_DEFAULT

pytestmark = pytest.mark.backend_free
MEAN, STD = IMAGENET_DEFAULT.mean, IMAGENET_DEFAULT.std
FILL = tuple(round(255 * level) for level in MEAN)
# timm's names of the operations whose strength increases.
TIMM = {
    **{name: name for name in OPERATIONS},
    **{
        name: f"{name}Increasing"
        for name in ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")
    },
    **{name: f"{name}Rel" for name in ("TranslateX", "TranslateY")},
}


@pytest.fixture
def zero_bits(monkeypatch):
    """Posterize to no bits, as before Pillow 13: there, timm raises at magnitude 10."""
    posterize = ImageOps.posterize

    def to_bits(picture, bits):
        return posterize(picture, bits) if bits else picture.point(lambda level: 0)

    monkeypatch.setattr(ImageOps, "posterize", to_bits)


def assert_one_distribution(theirs, ours, *of):
    """Two-sample Kolmogorov-Smirnov test of each function, at a level of one in a thousand."""
    for function in of:
        assert_one_distribution(function(theirs), function(ours))
    if of:
        return
    first, second = np.sort(theirs), np.sort(ours)
    values = np.concatenate([first, second])
    distance = np.abs(
        np.searchsorted(first, values, "right") / len(first)
        - np.searchsorted(second, values, "right") / len(second)
    ).max()
    assert distance < 1.95 * np.sqrt(1 / len(first) + 1 / len(second))


def boxes(images):
    """(top, left, height, width) of what is not 0."""
    found = [np.argwhere(image) for image in images]
    return np.array([[*box.min(axis=0), *np.ptp(box, axis=0) + 1] for box in found])


# Two photographs, and one so wide that no random box fits: the central crop.
@pytest.mark.parametrize("height, width", [(512, 512), (300, 451), (40, 400)])
def test_crops(timm, height, width):
    from timm.data.transforms import RandomResizedCropAndInterpolation

    image = Image.new("RGB", (width, height))
    scale, ratio = (0.08, 1.0), (3 / 4, 4 / 3)
    theirs = np.array(
        [RandomResizedCropAndInterpolation.get_params(image, scale, ratio) for _ in range(2000)]
    )
    generator = np.random.default_rng(0)
    ours = np.array([random_box(height, width, generator, scale, ratio) for _ in range(2000)])
    assert_one_distribution(
        theirs,
        ours,
        lambda boxes: boxes[:, 2] * boxes[:, 3],
        lambda boxes: boxes[:, 3] / boxes[:, 2],
        lambda boxes: boxes[:, 0] / np.maximum(height - boxes[:, 2], 1),
        lambda boxes: boxes[:, 1] / np.maximum(width - boxes[:, 3], 1),
    )
    central = [(boxes == boxes[-1]).all(axis=1).mean() for boxes in (theirs, ours)]
    if width == 400:
        same = Counter(map(tuple, theirs)).most_common(1)[0]
        assert same[0] == Counter(map(tuple, ours.tolist())).most_common(1)[0][0]
        assert same[1] > 100
    else:
        assert max(central) < 0.01


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_give_the_same_pixels(timm, photographs, monkeypatch, zero_bits, name):
    import timm.data.auto_augment as theirs

    signs = (1, -1) if name in SIGNED else (1,)
    pictures = [Image.open(path).convert("RGB").resize((97, 64)) for path in photographs[:2]]
    pictures.append(pictures[0].convert("L"))
    for sign in signs:
        monkeypatch.setattr(theirs, "_randomly_negate", lambda value, sign=sign: sign * value)
        for magnitude in (0, 3.3, 9, 9.7, 10):
            level = theirs.LEVEL_TO_ARG[TIMM[name]]
            arguments = level(magnitude, {}) if level else ()
            for picture in pictures:
                fill = FILL if picture.mode == "RGB" else FILL[0]
                expected = theirs.NAME_TO_OP[TIMM[name]](
                    picture, *arguments, fillcolor=fill, resample=Image.Resampling.BICUBIC
                )
                found = OPERATIONS[name](picture, sign * magnitude / 10, fill)
                np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_rand_augment_draws_the_same_operations(timm, monkeypatch):
    import timm.data.auto_augment as theirs

    drawn = []
    for name in OPERATIONS:

        def record(image, argument=None, name=name, **_):
            drawn[-1].append((name, argument))
            return image

        monkeypatch.setitem(theirs.NAME_TO_OP, TIMM[name], record)
    transform = theirs.rand_augment_transform("rand-m9-mstd0.5-inc1", {})
    assert {op.name for op in transform.ops} == set(TIMM.values()) and len(transform.ops) == 15
    for _ in range(3000):
        drawn.append([])
        transform(None)
    rand_augment, generator = RandAugment.named("m9-mstd0.5-inc1"), np.random.default_rng(0)
    ours = [rand_augment.draw(generator) for _ in range(3000)]

    index = {name: i for i, name in enumerate(OPERATIONS)}
    assert_one_distribution(
        drawn,
        ours,
        lambda all_drawn: [*map(len, all_drawn)],
        lambda all_drawn: [index[name] for operations in all_drawn for name, _ in operations],
    )
    largest = {"Rotate": 30, "ShearX": 0.3, "ShearY": 0.3, "TranslateX": 0.45, "TranslateY": 0.45}
    assert_one_distribution(
        [v / largest[name] for operations in drawn for name, v in operations if name in largest],
        [x for operations in ours for name, x in operations if name in largest],
    )


def test_jitter(timm, photographs):
    from torchvision.transforms import ColorJitter

    picture = Image.open(photographs[1]).convert("RGB").resize((48, 32))
    transform, generator = ColorJitter(0.4, 0.4, 0.4), np.random.default_rng(0)
    theirs = [np.asarray(transform(picture)) for _ in range(400)]
    ours = [jitter_colors(np.asarray(picture), 0.4, generator) for _ in range(400)]
    for of in (np.mean, np.std, lambda image: np.ptp(image, axis=-1).mean()):
        assert_one_distribution([*map(of, theirs)], [*map(of, ours)])


def test_erasing(timm):
    import torch
    from timm.data.random_erasing import RandomErasing

    torch.manual_seed(0)
    transform = RandomErasing(0.25, mode="pixel", device="cpu")
    generator = np.random.default_rng(0)
    theirs, ours = [], []
    for _ in range(3000):
        theirs.append(transform(torch.zeros(3, 48, 64)).numpy().transpose(1, 2, 0))
        image = np.zeros((48, 64, 3), "float32")
        erase_box(image, draw_erasing(48, 64, 0.25, generator))
        ours.append(image)

    erased = [boxes([image[..., 0] for image in of if image.any()]) for of in (theirs, ours)]
    assert abs(len(erased[0]) - len(erased[1])) < 100
    assert_one_distribution(
        *erased,
        lambda found: found[:, 2] * found[:, 3],
        lambda found: found[:, 2] / found[:, 3],
        lambda found: found[:, 0],
        lambda found: found[:, 1],
    )
    noise = [np.concatenate([image[image != 0] for image in of])[::101] for of in (theirs, ours)]
    assert_one_distribution(*noise)


@pytest.mark.parametrize("alphas", [(0.8, 1.0), (0.1, 0.0), (0.0, 1.0)])
def test_mixing(timm, alphas):
    import torch
    from timm.data.mixup import Mixup

    theirs = Mixup(*alphas, label_smoothing=0.0, num_classes=2)
    ours, generator = Mixing(*alphas), np.random.default_rng(0)
    found = {"theirs": [], "ours": []}
    for _ in range(1500):
        images = np.zeros((2, 24, 32, 1), "float32")
        images[1] = 1
        mixed = theirs(torch.tensor(images.transpose(0, 3, 1, 2)), torch.tensor([0, 1]))
        found["theirs"].append((mixed[0][0, 0].numpy(), mixed[1][0, 0].item()))
        mixed = ours(images, np.eye(2, dtype="float32"), generator)
        found["ours"].append((mixed[0][0, :, :, 0], mixed[1][0, 0]))

    assert_one_distribution(*found.values(), lambda pairs: [share for _, share in pairs])
    cut = [
        boxes([image for image, _ in pairs if set(np.unique(image)) == {0, 1}])
        for pairs in found.values()
    ]
    assert abs(len(cut[0]) - len(cut[1])) < 120
    if alphas[1]:
        for axis in range(4):
            assert_one_distribution(cut[0][:, axis], cut[1][:, axis])


def test_whole_images(timm, photographs, zero_bits):
    transform = timm.data.create_transform(
        (3, 48, 48),
        is_training=True,
        auto_augment="rand-m9-mstd0.5-inc1",
        color_jitter=0.4,  # off, as in every recipe: RandAugment is on
        interpolation="bicubic",
        re_prob=0.25,
        re_mode="pixel",
        mean=MEAN,
        std=STD,
    )
    transform.transforms[-1].device = "cpu"
    augmentation, generator = PRESETS["rand_augment"], np.random.default_rng(1)
    random.seed(1)
    for path in photographs[:2]:
        picture = Image.open(path).convert("RGB").resize((160, 120))
        theirs = np.stack([transform(picture).numpy().transpose(1, 2, 0) for _ in range(600)])
        ours = []
        for _ in range(600):
            image = augmentation.pixels(np.asarray(picture), (48, 48), generator, MEAN)
            ours.append(normalize(image, IMAGENET_DEFAULT))
            erase_box(ours[-1], draw_erasing(48, 48, augmentation.erasing, generator))
        assert_one_distribution(
            theirs,
            np.stack(ours),
            lambda images: images.mean(axis=(1, 2, 3)),
            lambda images: images.std(axis=(1, 2, 3)),
            lambda images: np.abs(np.diff(images, axis=2)).mean(axis=(1, 2, 3)),
            lambda images: images[:, :24, :24, 0].mean(axis=(1, 2)),
            lambda images: images.reshape(-1)[:: 48 * 48 * 3 // 7],
        )
