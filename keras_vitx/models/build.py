"""From a list of layers to public constructors: families, sizes, the registry."""

import fnmatch
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_vitx import weights as checkpoints
from keras_vitx.models.chain import Chain
from keras_vitx.models.checks import check_top, resolve_shape
from keras_vitx.models.parts import Factory, Stack, Top
from keras_vitx.preprocessing import Preprocessing
from keras_vitx.text import nearest
from keras_vitx.weights.identity import Identity

MODELS: dict[str, Callable[..., keras.Model]] = {}
"""The constructor of every size, by name."""

PUBLIC_ARGUMENTS = """\
    drop_path: Rate of stochastic depth in the last block, rising from 0 in the
        first (in CaiT, that of every block); or one rate a block.
    dropout: Rate of dropout in the MLPs.
    attention: A function that takes the index of a block and returns its
        attention, a new layer each time, in place of the family's.
    mlp: A function that returns the block's MLP, likewise.
    include_top: Whether the classifier is there. Without it the model gives
        all tokens, `(batch, tokens, dim)`, or with `pooling` one vector an
        image, `(batch, dim)`.
    weights: None for random ones; `"imagenet"`; the name of a catalogue
        entry; `"hf://owner/repo"`; or the path of a `.safetensors`, `.pth`,
        `.weights.h5` or `.keras` file.
    input_shape: `(height, width, channels)`, both sides multiples of the
        patch size. None takes the checkpoint's, else the size's.
    pooling: `"token"` (the class token), `"avg"` or `"max"` (over the
        patches). None is `"token"` under a classifier, and `"avg"` where there
        is no class token.
    classes: Number of classes. Where it is not the checkpoint's, everything
        but the classifier is loaded.
    classifier_activation: Activation of the classifier; None gives logits.
    input_tensor: A Keras tensor to take the images from.
    name: Name of the model.
    remat: Whether training keeps only the input of each layer and computes the
        rest again in the backward pass: less memory, one more forward pass.

Returns:
    A `keras_vitx.models.Chain`; with an `input_tensor` that is no
    `keras.Input`, a `keras.Model` around it.

Raises:
    ValueError: for an argument out of its range, named in the message.
"""


def family(
    preprocessing: Preprocessing,
) -> Callable[[Callable[..., list]], Callable[..., keras.Model]]:
    """Make a public family function of one that lists a network's layers.

    The decorated function takes `image_shape` `(height, width, channels)`, `top`,
    which makes what follows the last norm, and `stack`, which makes blocks, then
    its own arguments. What all families share is added here.

    Args:
        preprocessing: How the family's colour images are prepared.
    """

    def decorate(list_layers: Callable[..., list]) -> Callable[..., keras.Model]:
        @functools.wraps(list_layers, assigned=("__module__", "__name__", "__qualname__"))
        def constructor(
            *args: Any,
            drop_path: float | Sequence[float] = 0.0,
            dropout: float = 0.0,
            attention: Factory | None = None,
            mlp: Factory | None = None,
            include_top: bool = True,
            weights: str | None = None,
            input_shape: tuple[int, int, int] | None = None,
            pooling: str | None = None,
            classes: int = 1000,
            classifier_activation: str | Callable | None = "softmax",
            input_tensor: Any = None,
            name: str | None = None,
            remat: bool = False,
            _size: str | None = None,
            _default_shape: tuple[int, int, int] = (224, 224, 3),
            **arguments: Any,
        ) -> keras.Model:
            check_top(pooling, classes, classifier_activation)
            top = Top(include_top, pooling, classes, classifier_activation)
            stack = Stack(drop_path, dropout, attention, mlp)
            given = resolve_shape(input_shape, input_tensor)
            if weights is not None:
                # A wrong argument shall not cost a download: list the layers once for the checks.
                list_layers(given or _default_shape, top, stack, *args, **arguments)
            checkpoint = checkpoints.resolve(
                weights,
                constructor=_size,
                image_size=given and given[:2],
                distillation_token=bool(arguments.get("distillation_token")),
            )
            image_shape = given or _default_shape
            if given is None and checkpoint is not None and checkpoint.image_size is not None:
                image_shape = (checkpoint.image_size, checkpoint.image_size, image_shape[-1])
            layers = list_layers(image_shape, top, stack, *args, **arguments)
            images = _input_of(input_tensor)
            model = Chain(
                layers,
                image_shape,
                family=list_layers.__name__,
                preprocessing=preprocessing.for_channels(image_shape[-1]),
                remat=remat,
                input_tensor=images,
                name=name or _size or list_layers.__name__,
            )
            if checkpoint is not None:
                checkpoints.load(model, checkpoint, _identities())
            if input_tensor is None or images is not None:
                return model
            return keras.Model(
                keras.utils.get_source_inputs(input_tensor), model(input_tensor), name=model.name
            )

        constructor.__doc__ = f"{inspect.cleandoc(list_layers.__doc__)}\n{PUBLIC_ARGUMENTS}"
        constructor.__signature__ = _public_signature(list_layers, constructor)
        constructor.preprocessing = preprocessing
        return constructor

    return decorate


def variant(
    name: str,
    family: Callable[..., keras.Model],
    input_shape: tuple[int, int, int] = (224, 224, 3),
    classes: int = 1000,
    **data: Any,
) -> Callable[..., keras.Model]:
    """Make and register the constructor of one size of a family.

    Args:
        name: Public name of the size.
        family: The family function.
        input_shape: Default shape of an image.
        classes: Default number of classes.
        **data: The family's arguments that make the size.
    """

    def constructor(
        include_top: bool = True,
        weights: str | None = None,
        input_shape: tuple[int, int, int] | None = None,
        pooling: str | None = None,
        classes: int = classes,
        classifier_activation: str | Callable | None = "softmax",
        input_tensor: Any = None,
        name: str | None = None,
        **overrides: Any,
    ) -> keras.Model:
        return family(
            include_top=include_top,
            weights=weights,
            input_shape=input_shape,
            pooling=pooling,
            classes=classes,
            classifier_activation=classifier_activation,
            input_tensor=input_tensor,
            name=name,
            _size=size,
            _default_shape=shape,
            **{**data, **overrides},
        )

    size, shape = name, input_shape
    described = ", ".join(f"{key}={value!r}" for key, value in data.items())
    constructor.__name__ = constructor.__qualname__ = name
    constructor.__module__ = family.__module__
    constructor.__doc__ = (
        f"Return {family.__name__} with {described}.\n\n"
        f"Args:\n"
        f"    **overrides: Other arguments of `{family.__name__}`, instead of the size's.\n"
        f"{PUBLIC_ARGUMENTS}"
    )
    constructor.family = family.__name__
    constructor.preprocessing = family.preprocessing
    constructor.data = {"input_shape": input_shape, "classes": classes, **data}
    MODELS[name] = constructor
    return constructor


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the sizes that match `pattern`, in order of registration.

    Args:
        pattern: Shell pattern, e.g. `"CaiT_S*"`; case does not matter.
    """
    return [name for name in MODELS if fnmatch.fnmatch(name.lower(), pattern.lower())]


def create_model(name: str, **arguments: Any) -> keras.Model:
    """Return the size `name`, made with `arguments`.

    Raises:
        ValueError: when no size has that name; the message has the nearest ones.
    """
    return constructor_of(name)(**arguments)


def constructor_of(name: str) -> Callable[..., keras.Model]:
    """Return the constructor of the size `name`.

    Raises:
        ValueError: when no size has that name; the message has the nearest ones.
    """
    if name not in MODELS:
        raise ValueError(f"No model is named {name!r}. {nearest(name, MODELS)}")
    return MODELS[name]


def _identities() -> dict[str, Identity]:
    """Return what the files of each size look like."""
    sizes = {name: (size.family, size.data) for name, size in MODELS.items()}
    return {
        name: Identity(family, sum(data["depths"]), data["dims"][-1])
        if "depths" in data
        else Identity(family, data["depth"], data["dim"])
        for name, (family, data) in sizes.items()
    }


def _input_of(tensor):
    """Return `tensor` when it is a `keras.Input`, else None."""
    if tensor is None:
        return None
    sources = keras.utils.get_source_inputs(tensor)
    return tensor if len(sources) == 1 and sources[0] is tensor else None


def _public_signature(list_layers, constructor):
    own = list(inspect.signature(list_layers).parameters.values())[3:]
    added = [
        parameter
        for name, parameter in inspect.signature(
            constructor, follow_wrapped=False
        ).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and not name.startswith("_")
    ]
    return inspect.Signature([*own, *added], return_annotation=keras.Model)
