"""The evaluation transform, in NumPy and as a layer, against timm's on photographs."""

import keras
import numpy as np
import pytest
from harness import BACKEND, picture, precision, stand_in
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

import keras_vitx as kv
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.preprocessing import scaled_size

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB"))


def levels(images):
    """Undo the normalization."""
    return np.rint((images * np.float32(STD) + np.float32(MEAN)) * 255).astype(int)


def run(layer, image):
    return keras.ops.convert_to_numpy(layer(image[None]))[0]


# The layer is that of the backend; the next test compares it with `preprocess_input` there, too.
ONCE = [
    ((224, 320), 0.9, "bicubic"),
    ((224, 224), 0.9, "bilinear"),
    *(((224, 224), crop_ratio, "bicubic") for crop_ratio in (0.875, 0.9, 1.0, 1.13)),
    *(((384, 384), 1.0, "bicubic"), ((320, 192), 1.0, "bicubic"), ((24, 40), 0.9, "bilinear")),
]


@pytest.mark.parametrize(
    "size, crop_ratio, interpolation",
    [
        ((24, 40), 1.15, "bilinear"),
        *(pytest.param(*each, marks=pytest.mark.backend_free) for each in ONCE),
    ],
)
def test_both_equal_timm(timm, photographs, size, crop_ratio, interpolation):
    options = {"interpolation": interpolation, "mean": MEAN, "std": STD}
    model = stand_in(size, crop_ratio=crop_ratio, **options)
    transform = timm.data.create_transform(
        (3, *size), is_training=False, crop_pct=crop_ratio, **options
    )
    layer = ImagePreprocessing.of(model)
    for path in photographs:
        wanted = transform(Image.open(path).convert("RGB")).numpy().transpose(1, 2, 0)
        for found in (kv.preprocess_input(path, model)[0], run(layer, pixels(path))):
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, wanted, atol=1e-5)
        # Equal, not only to within one level.
        np.testing.assert_array_equal(levels(found), levels(wanted), err_msg=path.name)


# Pillow 13 resizes images more than twice as high as wide along another axis first.
SIDES = st.tuples(st.integers(1, 90), st.integers(1, 90)).filter(
    lambda sides: sides[1] / 6 <= sides[0] <= 2 * sides[1]
)
SIZES = st.tuples(st.integers(2, 48), st.integers(2, 48))


@settings(max_examples=25 if BACKEND == "torch" else 3)  # Others compile for each size.
@given(SIDES, SIZES, st.floats(0.3, 2), st.sampled_from(["bicubic", "bilinear"]))
@example((3, 300), (24, 40), 0.875, "bicubic")
def test_the_layer_equals_preprocess_input(sides, size, crop_ratio, interpolation):
    options = {"crop_ratio": crop_ratio, "interpolation": interpolation}
    model = stand_in(size, mean=MEAN, std=STD, **options)
    image = picture(*sides)
    found = run(ImagePreprocessing.of(model), image)
    np.testing.assert_array_equal(levels(found), levels(kv.preprocess_input(image, model)[0]))


@pytest.mark.skipif(BACKEND == "jax", reason="has no float64")
@pytest.mark.parametrize(("size", "pixels"), [((16, 24), (24, 32)), ((24, 24), (35, 29))])
def test_sides_of_a_graph_are_resized_as_numbers(size, pixels):
    """Halves are rounded in float64: in ONNX files, a crop was one pixel off."""
    tensors = [keras.ops.convert_to_tensor(side, "float64") for side in pixels]
    found = [float(side) for side in scaled_size(keras.ops, tensors, size, 0.9)]
    assert found == list(scaled_size(np, np.float64(pixels), size, 0.9))


@pytest.mark.backend_free
def test_few_pixels_of_a_tall_image_differ(photographs):
    # Pillow resizes them along the height first, other images along the width.
    model = stand_in((96, 96), mean=MEAN, std=STD, crop_ratio=0.9)
    layer = ImagePreprocessing.of(model)
    for image in map(pixels, photographs):
        image = image[:, : len(image) // 3]
        found, wanted = run(layer, image), kv.preprocess_input(image, model)[0]
        assert (np.abs(levels(found) - levels(wanted)) > 1).mean() < 0.005


def test_in_front_of_a_model_images_may_have_any_size(photographs):
    options = {"patch_size": 8, "input_shape": (32, 24, 3), "classes": 3, "name": "vit"}
    model = kv.ViT(dim=8, depth=1, num_heads=2, **options)
    layer = ImagePreprocessing((32, 24), MEAN, STD, 0.9)
    inputs = keras.Input((None, None, 3), dtype="uint8")
    whole = keras.Model(inputs, model(layer(inputs)))
    assert whole.output_shape == (None, 3)
    for image in map(pixels, photographs[:2]):
        wanted = model.predict(run(layer, image)[None], verbose=0)
        np.testing.assert_allclose(whole.predict(image[None], verbose=0), wanted, atol=1e-5)


def test_it_stays_exact_in_a_model_of_half_precision(photographs):
    image = pixels(photographs[1])
    layer = ImagePreprocessing((32, 24), MEAN, STD)
    with precision("mixed_bfloat16"):
        inputs = keras.Input((*image.shape[:2], 3))
        model = keras.Model(inputs, ImagePreprocessing((32, 24), MEAN, STD)(inputs))
    found = keras.ops.convert_to_numpy(model(image[None].astype("float32")))[0]
    np.testing.assert_array_equal(found, run(layer, image))
