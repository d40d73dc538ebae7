"""Further targets in training: a teacher's predictions, labels of the patches, and MixToken."""

import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx.checks import PositiveFloat, PositiveInt, Probability, check_argument, check_fields
from keras_vitx.data.augmentation.mixing import Mixing
from keras_vitx.data.augmentation.windows import Window
from keras_vitx.data.images import normalize
from keras_vitx.losses import PerHead, SmoothedCrossentropy, SoftDistillation
from keras_vitx.outputs import described, outputs_of
from keras_vitx.preprocessing import ModelInput, Preprocessing
from keras_vitx.training.batches import BatchTransform

log = logging.getLogger(__name__)

# Weight of the teacher in the loss, as in DeiT.
WEIGHTS = {"hard": 0.5, "soft": 0.1}


@dataclass(frozen=True)
class Distillation:
    r"""A teacher, and how a student learns from it.

    With $w$ the `weight`, $z$ the outputs of the student, $y$ the label and $t$ the teacher's
    outputs for the same augmented and mixed image, the loss is

    $$(1 - w)\, \mathrm{CE}(z, y) + w\, \mathrm{CE}(z', \arg\max t) \quad \text{(hard)},
    \qquad (1 - w)\, \mathrm{CE}(z, y) + w\, \tau^2\, \mathrm{KL}(t_\tau \,\|\, z'_\tau)
    \quad \text{(soft)}.$$

    Label smoothing applies to the first term only. A student with a distillation token has two
    heads: $z$ is the output of the class token's, $z'$ that of the distillation token's (DeiT,
    Section 3; CaiT, Table B.1; CB, Table 6). For other students $z' = z$ (CaiT's $\Upsilon$ models;
    ConViT, Table 4).

    ```python
    distillation = Distillation(teacher)
    loss = distillation.loss(model, SmoothedCrossentropy(0.1))
    model.compile("adamw", loss, metrics=["accuracy"])
    model.fit(distillation.batches(batches.train, model), validation_data=batches.validation)
    ```

    Accuracy, and the loss in evaluation, use the labels alone.

    Args:
        teacher: A Keras classifier that returns logits or probabilities of the student's classes.
            Its attribute `preprocessing` is a `keras_vitx.Preprocessing` (as in models of this
            package), or a function of float32 images `(batch, height, width, channels)` in 0..255,
            such as `keras.applications.resnet.preprocess_input`; without, its first layers state
            what it takes, as a model of this package does. Images are resized to its input.
        kind: `"hard"`, the teacher's most probable class, or `"soft"`, its probabilities.
        temperature: $\tau$, above 0; for `"soft"` only.
        weight: $w$, in [0, 1]; None is 0.5 for `"hard"` and 0.1 for `"soft"`.

    Raises:
        ValueError: if an argument is out of range.
    """

    teacher: keras.Model
    kind: Literal["hard", "soft"] = "hard"
    temperature: PositiveFloat = 3.0
    weight: Probability | None = None

    def __post_init__(self):
        check_fields(self)
        if self.weight is None:
            object.__setattr__(self, "weight", WEIGHTS[self.kind])

    def loss(self, student: keras.Model, loss: keras.losses.Loss | None = None) -> PerHead:
        """Return the training loss of `student`.

        `loss` applies to the labels; None is the cross entropy without label smoothing.
        """
        name, from_logits = _label_name(student), outputs_of(student).from_logits
        hard = SmoothedCrossentropy(from_logits=from_logits)
        soft = SoftDistillation(self.temperature, from_logits=from_logits)
        return PerHead(
            {"head": loss or hard, name: hard if self.kind == "hard" else soft},
            {"head": 1 - self.weight, name: self.weight},
        )

    def batches(self, batches: Iterable, student: keras.Model) -> BatchTransform:
        """Return `batches` with the teacher's targets, as labels `{"head": ..., name: ...}`.

        The name is `"head_dist"` for a student with a distillation token, else `"teacher"`. The
        teacher predicts each batch on access, on the augmented and mixed images.

        Args:
            batches: Training batches `(images, labels)` or `(images, labels, weights)`,
                preprocessed for the student: a `keras.utils.PyDataset`, or an iterable that can be
                iterated repeatedly (a `tf.data.Dataset`, a PyTorch `DataLoader`).
            student: The model to train.

        Raises:
            ValueError: if student and teacher differ in their classes or in the channels or aspect
                ratio of their images, or one of them has no `preprocessing`.
        """
        classes, name = student.output_shape[-1], _label_name(student)
        prepare = _preparation(ModelInput.of(student), self.teacher)

        def predict(images):
            return np.asarray(self.teacher.predict_on_batch(prepare(images)), "float32")

        def transform(images, labels, index):
            labels, found = (
                labels if isinstance(labels, dict) else {"head": labels},
                predict(images),
            )
            if self.kind == "soft":
                found = keras.ops.convert_to_numpy(outputs.probabilities(found))
            return images, {**labels, name: found if self.kind == "soft" else found.argmax(-1)}

        shape = getattr(self.teacher, "output_shape", None)
        if shape is None:  # A subclassed model.
            shape = predict(np.zeros((1, *student.input_shape[1:]), "float32")).shape
        if not isinstance(shape, tuple) or len(shape) != 2 or shape[1] != classes:
            raise ValueError(
                f"`teacher` must have one output (batch, {classes}), for the student's {classes} "
                f"classes. Received: {shape}."
            )
        try:
            outputs = outputs_of(self.teacher) if self.kind == "soft" else None
        except ValueError as error:
            raise ValueError(f"`teacher`: {error}") from error
        if outputs and outputs.kind == "sigmoid":
            raise ValueError("`teacher` must return logits or a softmax. Received: a sigmoid.")
        return BatchTransform(batches, transform, elementwise=True)


def _label_name(student: keras.Model) -> str:
    """Return the name of a student's targets: its distillation head, or `"teacher"`."""
    if outputs_of(student).kind == "sigmoid":
        raise ValueError("`student` must return logits or a softmax. Received: a sigmoid.")
    if not hasattr(student, "token_layout"):
        raise ValueError(
            "`student` must accept several labels per image: a `Chain`, as from "
            f"`keras_vitx.as_chain`. Received: {described(student)}."
        )
    heads = _heads_of(student)
    if "aux_head" in heads:
        raise ValueError(
            "`student` must have one classifier, or one each for the class and the "
            f"distillation token. Received: the classifiers {', '.join(heads)}."
        )
    return "head_dist" if "head_dist" in heads else "teacher"


def _heads_of(model: keras.Model) -> tuple[str, ...]:
    """Return the names of the classifiers of a last layer that has several."""
    return tuple(getattr(model.layers[-1], "names", ()))


def _preparation(inputs: ModelInput, teacher: keras.Model) -> Callable[[Any], Any]:
    """Return the function from the student's input to the teacher's."""
    preprocess = getattr(teacher, "preprocessing", None)
    shape = getattr(teacher, "input_shape", (None,) * 4)  # A subclassed model has none.
    if not isinstance(shape, tuple) or len(shape) != 4 or shape[3] not in (None, inputs.channels):
        raise ValueError(
            f"`teacher` must take images with the student's {inputs.channels} channels. Received: "
            f"a model with inputs of shape {shape}."
        )
    size = tuple(n or default for n, default in zip(shape[1:3], inputs.size, strict=True))
    if size[0] * inputs.size[1] != size[1] * inputs.size[0]:
        raise ValueError(
            "`teacher` must take images of the student's aspect ratio, (height, width) = "
            f"{inputs.size}. Received: {size}."
        )
    if preprocess is None:
        raise ValueError(
            "`teacher` must have a `preprocessing`: a `keras_vitx.Preprocessing`, or a "
            "function of images in 0..255 such as `keras.applications.resnet.preprocess_input`."
            " Received: None."
        )
    if not callable(preprocess):
        preprocessing = Preprocessing.of(preprocess).for_channels(inputs.channels)
        preprocess = functools.partial(normalize, preprocessing=preprocessing)
    if size != inputs.size:
        log.info("Images are resized from %s to %s for the teacher.", inputs.size, size)

    def prepare(images):
        if size != inputs.size:
            images = keras.ops.image.resize(
                images, size, "bicubic", antialias=True, data_format="channels_last"
            )
        images = np.asarray(keras.ops.convert_to_numpy(images), "float32")
        std, mean = np.float32(inputs.preprocessing.std), np.float32(inputs.preprocessing.mean)
        return preprocess(255 * (images * std + mean))

    return prepare


class TokenLabels:
    r"""Labels of the patches of each image, precomputed by another network.

    Token labeling (Jiang et al., 2021), as in Refined-ViT's advanced recipe. Each patch of a
    training image, which shows a window of the original, gets the labels at its position in a grid
    of labels: the average of bilinear samples within the patch, as in RoIAlign (He et al., 2017),
    flipped along with the image. The class head gets the labels pooled over the window, not the
    label of the image, which the released loss never reads; MixUp and CutMix mix both by $\lambda$.

    ```python
    model = kv.RefinedViT_S(dense_head=True)
    token_labels = TokenLabels(np.load("labels.npy", mmap_mode="r"), model)
    batches = kv.data.pipelines("photos", model, targets=token_labels)
    model.compile("adamw", SmoothedCrossentropy(0.1), metrics=["accuracy"])
    model.fit(MixToken(batches.train, model), validation_data=batches.validation)
    ```

    The targets take `4 * patches * classes` bytes per image of a batch.

    Args:
        labels: The grids of labels of all images: an array `(images, rows, columns, classes)`; or a
            pair `(scores, classes)` of arrays `(images, rows, columns, k)` with the k highest
            scores and their classes; indexed as the source (before its split). Or a mapping from
            the path of an image file, as a source of files has it in `ids`, to its grid or pair.
        model: The model to train: a `Chain` with a dense head.
        from_logits: Whether the scores are logits, whose softmax is taken after sampling the window
            (as released; logits beyond the k highest are 0), or probabilities (the remainder is
            divided among the other classes).
        relabel_size: Side of an intermediate grid on which the window is sampled before the grid of
            the model, 24 in the released fine-tuning at 448. None for no intermediate grid.
        relabel: Whether the class head is trained on the pooled labels, or else on the image's own.

    Raises:
        ValueError: if the model has no dense head, or the shapes of the labels don't fit.
    """

    def __init__(
        self,
        labels: np.ndarray | tuple[np.ndarray, np.ndarray] | Mapping[str, Any],
        model: keras.Model,
        from_logits: bool = False,
        relabel_size: int | None = None,
        relabel: bool = True,
    ):
        if "aux_head" not in _heads_of(model):
            raise ValueError(
                "`model` must have a dense head, a classifier of the patches (dense_head=True). "
                f"Received: {described(model)}."
            )
        self.relabel_size = check_argument("relabel_size", relabel_size, PositiveInt | None)
        self.labels, self.from_logits, self.relabel = labels, from_logits, relabel
        self.grid, self.classes = model.grid, model.output_shape[-1]
        if not isinstance(labels, Mapping):
            _check_shapes(labels, 4, self.classes)

    def __call__(self, image: Any, window: Window) -> np.ndarray:
        """Return the targets of a window of an image, by its id: float32 `(patches, classes)`."""
        return self._sample(image, window, self.grid)

    def of_image(self, image: Any, window: Window) -> np.ndarray:
        """Return the target of the class head, pooled over a window: float32 `(classes,)`."""
        return self._sample(image, window, (1, 1))[0]

    def _sample(self, image, window, size):
        grid, classes = self._grid_of(image)
        if self.relabel_size is not None and size != (1, 1):
            grid = sample(grid, window._replace(flip=False), (self.relabel_size,) * 2)
            window = Window(flip=window.flip)
        targets = sample(grid, window, size).reshape(-1, grid.shape[-1])
        counts = np.ones(grid.shape[-1], "float32")  # The number of classes per channel.
        if classes is not None:
            counts[-1] = self.classes - len(classes)
        if self.from_logits:
            targets = np.exp(targets - targets.max(-1, keepdims=True))
            targets /= (targets @ counts)[:, None]
        if classes is None:
            return targets
        expanded = np.repeat(targets[:, -1:], self.classes, -1)
        expanded[:, classes] = targets[:, :-1]
        return expanded

    def check(self, images: Iterable[Any]) -> None:
        """Raise a ValueError if one of the images, by their ids, has no labels."""
        for image in images:
            self._key_of(image)

    def _key_of(self, image):
        """Return the key of an image in the mapping, or its index in the arrays."""
        if isinstance(self.labels, Mapping):
            key = image if image in self.labels else str(image)
            if key not in self.labels:
                raise ValueError(
                    f"`labels` must have labels of every image. Received: none for {image}."
                )
            return key
        count = len(self.labels[0] if isinstance(self.labels, tuple) else self.labels)
        if not isinstance(image, (int, np.integer)) or image >= count:
            raise ValueError(
                "`labels` must have labels of every image; for files, a mapping from their paths. "
                f"Received: {count} grids, and none for the image {image}."
            )
        return image

    def _grid_of(self, image) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the labels of an image, float32 `(rows, columns, channels)`, and their classes.

        Without classes (None), each channel is a class. Otherwise, the last channel is the score of
        each class that is nowhere in the image among the k highest.
        """
        key = self._key_of(image)
        if isinstance(self.labels, tuple):
            labels = tuple(array[key] for array in self.labels)
        else:
            labels = self.labels[key]
        if isinstance(self.labels, Mapping):
            _check_shapes(labels, 3, self.classes)
        if not isinstance(labels, tuple):
            return np.asarray(labels, "float32"), None
        scores, top_k = np.asarray(labels[0], "float32"), np.asarray(labels[1], "int64")
        rest = np.zeros(scores.shape[:2], "float32")
        if not self.from_logits and self.classes > scores.shape[-1]:
            rest = (1 - scores.sum(-1)) / (self.classes - scores.shape[-1])
        classes, channels = np.unique(top_k, return_inverse=True)
        grid = np.repeat(rest[..., None], len(classes) + 1, -1)
        np.put_along_axis(grid, channels.reshape(top_k.shape), scores, -1)
        return grid, classes


class MixToken(BatchTransform):
    r"""Batches with a box in which the network exchanges patches with other images.

    MixToken (Jiang et al., 2021, Section 3.2) is CutMix on tokens, and takes its place. After the
    patch embedding, the patches in a box are exchanged with those of the batch in reverse order.
    The class label is mixed by the fraction of the area. Each patch keeps the label of its own
    image (`TokenLabels`, or that of the image): the outputs of a dense head are exchanged back
    before the loss. Nothing is exchanged in evaluation.

    The box has the grid's proportions and the area $1 - \lambda$ with $\lambda \sim
    \mathrm{Beta}(\alpha, \alpha)$, around a uniform center and clipped at the border, as in
    `keras_vitx.data.Mixing`. It depends on the seed, the epoch and the index of the batch, and is
    part of the labels of `model.fit(MixToken(batches.train, model))`.

    In training, accuracy refers to the label of the larger area. On several devices of
    PyTorch or TensorFlow, images are exchanged among those of one device.

    Args:
        batches: Batches `(images, labels)` or `(images, labels, weights)`, prepared for the model.
            The loss must be linear in the label, as a cross entropy is.
        model: The model to train: a `Chain` with a patch embedding.
        alpha: $\alpha$, above 0.
        seed: Seed of the boxes.

    Raises:
        ValueError: if the model has no patch embedding, or `alpha` is out of range.
    """

    elementwise = keeps_images = True

    def __init__(
        self,
        batches: Iterable,
        model: keras.Model,
        alpha: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(batches)
        # The first grid is that of the patch embedding.
        self.grid = next((x.new_grid for x in model.layers if hasattr(x, "new_grid")), None)
        if self.grid is None:
            raise ValueError(
                "`model` must be a `Chain`: MixToken exchanges patches after the patch embedding. "
                f"Received: {described(model)}."
            )
        self.alpha, self.seed = check_argument("alpha", alpha, PositiveFloat), seed

    def transform(self, images, labels, index):
        # The 1 makes the boxes independent of the augmentation of the same batch.
        random = np.random.default_rng((self.seed, self.epoch, index, 1))
        box = np.zeros(self.grid, bool)
        box[Mixing(mixup=0.0, cutmix=self.alpha).draw(self.grid, random)[1]] = True
        labels = labels if isinstance(labels, dict) else {"head": labels}
        return images, {**labels, "mix_token": np.tile(box.reshape(-1), (len(labels["head"]), 1))}


def sample(grid: np.ndarray, window: Window, size: tuple[int, int]) -> np.ndarray:
    """Sample a window of a grid as RoIAlign, flipped if the window is: float32 `(*size, channels)`.

    Each cell is the mean of equidistant bilinear samples, at most one cell of `grid` apart. Beyond
    its outermost centers, the grid is constant.
    """
    rows = _weights(window.top, window.height, len(grid), size[0])
    columns = _weights(window.left, window.width, grid.shape[1], size[1])
    result = np.einsum("ai,ijk,bj->abk", rows, grid, columns, optimize=True)
    return result[:, ::-1] if window.flip else result


def _weights(start: float, length: float, cells: int, size: int) -> np.ndarray:
    """Return the weight of each cell of an axis in each output cell, `(size, cells)`."""
    samples = max(math.ceil(length * cells / size), 1)
    positions = start + (np.arange(size * samples) + 0.5) * (length / (size * samples))
    # The center of cell i is at (i + 1/2) / cells.
    positions = np.clip(positions * cells - 0.5, 0, cells - 1)
    weights = np.maximum(1 - np.abs(positions[:, None] - np.arange(cells)), 0)
    return weights.reshape(size, samples, cells).mean(1).astype("float32")


def _check_shapes(labels: Any, axes: int, classes: int) -> None:
    """Check an array or a pair of arrays: of all images (4 axes) or of one (3)."""
    is_pair = isinstance(labels, tuple) and len(labels) == 2
    shapes = [np.shape(array) for array in (labels if is_pair else (labels,))]
    valid = len(set(shapes)) == 1 and len(shapes[0]) == axes and 0 not in shapes[0]
    if not valid or not (shapes[0][-1] <= classes if is_pair else shapes[0][-1] == classes):
        raise ValueError(
            f"`labels` must be {'(images, ' if axes == 4 else '('}rows, columns, {classes}), or a "
            f"pair with at most {classes} scores and classes. Received: "
            f"{' and '.join(map(str, shapes))}."
        )
