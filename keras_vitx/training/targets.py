"""A teacher's predictions as further targets in training."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx.checks import PositiveFloat, Probability, check, check_fields
from keras_vitx.data.images import normalize
from keras_vitx.losses import PerHead, SmoothedCrossentropy, SoftDistillation
from keras_vitx.outputs import Outputs, describe, is_chain, outputs_of
from keras_vitx.pixels import unpack_images
from keras_vitx.preprocessing import ModelInput, Preprocessing
from keras_vitx.training.batches import Batches, as_batches


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

    Accuracy, and the loss in evaluation, use the labels alone. `docs/targets.md` has the lines of
    plain `model.fit`.

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
            object.__setattr__(self, "weight", 0.5 if self.kind == "hard" else 0.1)  # As in DeiT.

    def loss(self, student: keras.Model, loss: keras.losses.Loss | None = None) -> PerHead:
        """Return the training loss of `student`.

        `loss` applies to the labels; None is the cross entropy without label smoothing.
        """
        outputs = outputs_of(student)
        name, from_logits = _label_name(student, outputs), outputs.from_logits
        hard = SmoothedCrossentropy(from_logits=from_logits)
        soft = SoftDistillation(self.temperature, from_logits=from_logits)
        return PerHead(
            {"head": loss or hard, name: hard if self.kind == "hard" else soft},
            {"head": 1 - self.weight, name: self.weight},
        )

    def batches(self, batches: Iterable, student: keras.Model) -> Batches:
        """Return `batches` with the teacher's targets, as labels `{"head": ..., name: ...}`.

        The name is `"head_dist"` for a student with a distillation token, else `"teacher"`. The
        teacher predicts each batch on access, on the augmented and mixed images.

        Args:
            batches: Training batches `(images, labels)` or `(images, labels, weights)`,
                preprocessed for the student: a `keras.utils.PyDataset`, or an iterable that can be
                iterated repeatedly (a `tf.data.Dataset`, a PyTorch `DataLoader`).
            student: The model to train.

        Raises:
            ValueError: if one of them has no `preprocessing`, or they differ in the aspect ratio of
                their images or, in the first batch, in their classes.
        """
        name, classes = _label_name(student, outputs_of(student)), student.output_shape[-1]
        prepare, soft = _preparation(ModelInput.of(student), self.teacher), self.kind == "soft"
        if soft:
            outputs = outputs_of(self.teacher)
            rule = "`teacher` must return logits or a softmax."
            check(outputs.kind != "sigmoid", rule, outputs.kind)
        rule = f"`teacher` must have one output (batch, {classes}), for the student's classes."

        def teach(index, batch):
            images, labels, *weights = batch
            labels = labels if isinstance(labels, dict) else {"head": labels}
            answers = self.teacher.predict_on_batch(prepare(unpack_images(images)))
            answers = np.asarray(answers, "float32")
            check(answers.ndim == 2 and answers.shape[1] == classes, rule, answers.shape)
            answers = outputs.probabilities(answers) if soft else answers.argmax(-1)
            return images, {**labels, name: keras.ops.convert_to_numpy(answers)}, *weights

        return as_batches(batches).map(teach)


def _label_name(student: keras.Model, outputs: Outputs) -> str:
    """Return the name of a student's targets: its distillation head, or `"teacher"`."""
    check(outputs.kind != "sigmoid", "`student` must return logits or a softmax.", outputs.kind)
    rule = "`student` must be a `Chain` (`as_chain`) of one classifier or a `DistilledHead`."
    check(is_chain(student) and "aux_head" not in student.heads, rule, describe(student))
    return "head_dist" if "head_dist" in student.heads else "teacher"


def _preparation(inputs: ModelInput, teacher: keras.Model) -> Callable[[Any], Any]:
    """Return the function from the student's input to the teacher's."""
    preprocess = getattr(teacher, "preprocessing", None)
    shape = getattr(teacher, "input_shape", (None,) * 4)  # A subclassed model has none.
    size = tuple(n or default for n, default in zip(shape[1:3], inputs.size, strict=True))
    rule = f"`teacher` must take images of the student's aspect ratio, as of {inputs.size}."
    check(size[0] * inputs.size[1] == size[1] * inputs.size[0], rule, size)
    rule = "`teacher.preprocessing` must be a `Preprocessing`, or a function of images in 0..255."
    check(preprocess is not None, rule, preprocess)
    if not callable(preprocess):
        preprocessing = Preprocessing.of(preprocess).for_channels(inputs.channels)
        preprocess = functools.partial(normalize, preprocessing=preprocessing)

    def prepare(images):
        if size != inputs.size:
            images = keras.ops.image.resize(
                images, size, "bicubic", antialias=True, data_format="channels_last"
            )
        images = np.asarray(keras.ops.convert_to_numpy(images), "float32")
        std, mean = np.float32(inputs.preprocessing.std), np.float32(inputs.preprocessing.mean)
        return preprocess(255 * (images * std + mean))

    return prepare
