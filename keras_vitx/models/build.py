"""Public constructors made from lists of layers: families, sizes and their registry.

A family is a function that returns the layers of a network. `@family` turns it into a
model constructor, and `variant` makes the constructors of its sizes. Both can be used
outside of this package: see CONTRIBUTING.md.
"""

import fnmatch
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from keras_vitx import weights as checkpoints
from keras_vitx.models.chain import Chain
from keras_vitx.models.checks import resolve_shape
from keras_vitx.models.network import Layers, Network
from keras_vitx.preprocessing import IMAGENET_DEFAULT, ModelInput, Preprocessing
from keras_vitx.text import nearest
from keras_vitx.weights.load import entry_of
from keras_vitx.weights.names import Identity, Table, register

FAMILIES: dict[str, Callable[..., keras.Model]] = {}
"""The constructor of every family, by name."""

MODELS: dict[str, Callable[..., keras.Model]] = {}
"""The constructor of every size, by name."""

SHAPE = (224, 224, 3)
"""Default image shape."""

SHARED = dict(inspect.signature(Network).parameters)
"""The arguments that all families share."""

OF_SIZES = (
    *("include_top", "weights", "input_shape", "pooling", "classes"),
    *("classifier_activation", "input_tensor", "name"),
)
"""The arguments in the signature of a size: those of keras.applications, in order."""

ARGUMENTS = inspect.cleandoc(Network.__doc__).partition("Args:\n")[2]
END_OF_DOC = """

Returns:
    A `keras_vitx.models.Chain`, or, for an `input_tensor` that is not a `keras.Input`, a
    `keras.Model` that contains one.

Raises:
    ValueError: if an argument is out of range; the message names it.
"""


def family(
    preprocessing: Preprocessing = IMAGENET_DEFAULT, checkpoint: Table | None = None
) -> Callable[[Callable[..., Layers]], Callable[..., keras.Model]]:
    """Decorate a function that lists the layers of a network, making it a constructor.

    The function takes a `Network`, which holds the arguments that all families share,
    followed by its own arguments. The constructor takes those own arguments and, as
    keyword arguments, the shared ones.

    Args:
        preprocessing: The family's preprocessing of colour images.
        checkpoint: The family's rename table for PyTorch checkpoints; None if the names
            are those of a plain ViT.
    """

    def decorate(list_layers: Callable[..., Layers]) -> Callable[..., keras.Model]:
        @functools.wraps(list_layers, assigned=("__module__", "__name__", "__qualname__"))
        def constructor(*args: Any, **arguments: Any) -> keras.Model:
            return _make(constructor, _by_name(constructor, args, arguments))

        own = list(inspect.signature(list_layers).parameters.values())[1:]
        constructor.__signature__ = inspect.Signature(
            [*own, *SHARED.values()], return_annotation=keras.Model
        )
        constructor.__doc__ = f"{inspect.cleandoc(list_layers.__doc__)}\n{ARGUMENTS}{END_OF_DOC}"
        constructor.list_layers = list_layers
        constructor.preprocessing = preprocessing
        FAMILIES[constructor.__name__] = constructor
        register(constructor.__name__, checkpoint or Table())
        return constructor

    return decorate


def variant(
    name: str,
    family: Callable[..., keras.Model],
    input_shape: tuple[int, int, int] = SHAPE,
    classes: int = 1000,
    crop_ratio: float | None = None,
    **data: Any,
) -> Callable[..., keras.Model]:
    """Make and register the constructor of one size of a family.

    Args:
        name: Public name of the size.
        family: The constructor of the family.
        input_shape: Default image shape.
        classes: Default number of classes.
        crop_ratio: Crop ratio of the size; None means the family's.
        **data: The family arguments that define the size.
    """

    def constructor(*args: Any, **arguments: Any) -> keras.Model:
        given = _by_name(constructor, args, arguments)
        return _make(family, {"classes": classes, **data, **given}, constructor)

    parameters = [
        SHARED[argument].replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for argument in OF_SIZES
    ]
    parameters[OF_SIZES.index("classes")] = parameters[OF_SIZES.index("classes")].replace(
        default=classes
    )
    overrides = inspect.Parameter("overrides", inspect.Parameter.VAR_KEYWORD, annotation=Any)
    constructor.__signature__ = inspect.Signature(
        [*parameters, overrides], return_annotation=keras.Model
    )
    constructor.__name__ = constructor.__qualname__ = name
    constructor.__module__ = family.__module__
    described = ", ".join(f"{key}={value!r}" for key, value in data.items())
    constructor.__doc__ = (
        f"Return {family.__name__} with {described}.\n\n"
        f"Args:\n"
        f"    **overrides: Other arguments of `{family.__name__}`, which override the size's.\n"
        f"{ARGUMENTS}{END_OF_DOC}"
    )
    constructor.family = family.__name__
    constructor.preprocessing = family.preprocessing
    if crop_ratio is not None:
        constructor.preprocessing = family.preprocessing.but(crop_ratio=crop_ratio)
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
    """Return a model of the size `name`, made with `arguments`.

    Raises:
        ValueError: if no size has that name; the message suggests the nearest ones.
    """
    return constructor_of(name)(**arguments)


def constructor_of(name: str) -> Callable[..., keras.Model]:
    """Return the constructor of the size `name`.

    Raises:
        ValueError: if no size has that name; the message suggests the nearest ones.
    """
    if name not in MODELS:
        raise ValueError(f"No model is named {name!r}. {nearest(name, MODELS)}")
    return MODELS[name]


def model_input(model: Any) -> Any:
    """Return the image size and the preprocessing of `model`, without building it.

    Args:
        model: Name of a size or of a checkpoint; anything else is returned unchanged.

    Raises:
        ValueError: if the name is unknown; the message suggests the nearest ones.
    """
    if not isinstance(model, str):
        return model
    if model in MODELS:
        size = MODELS[model]
        return ModelInput((None, *size.data["input_shape"]), size.preprocessing)
    known = {checkpoint.name: checkpoint for checkpoint in checkpoints.checkpoints_of(None)}
    if model not in known:
        hint = nearest(model, [*MODELS, *known])
        raise ValueError(f"No model or checkpoint is named {model!r}. {hint}")
    side = known[model].image_size
    return ModelInput((None, side, side, 3), known[model].preprocessing)


def _make(
    family: Callable[..., keras.Model],
    arguments: Mapping[str, Any],
    size: Callable[..., keras.Model] | None = None,
) -> keras.Model:
    """Return a model of a family, or of one of its sizes, with the requested weights."""
    shared, own = _split(arguments)
    weights, tensor = shared.get("weights"), shared.get("input_tensor")
    shape = resolve_shape(shared.get("input_shape"), tensor)
    wanted = {
        "constructor": size and size.__name__,
        "image_size": shape and shape[:2],
        "distillation_token": bool(own.get("distillation_token")),
    }
    entry = entry_of(weights, **wanted)
    if shape is None:
        shape = size.data["input_shape"] if size else SHAPE
        if entry is not None:
            shape = (entry.image_size, entry.image_size, shape[-1])
    net = Network(**{**shared, "input_shape": shape})
    # Listing the layers checks the arguments, before anything is downloaded.
    layers = family.list_layers(net, **own)
    checkpoint = checkpoints.resolve(weights, **wanted)
    named = size or family
    images = _input_of(tensor)
    model = Chain(
        layers,
        shape,
        family=family.__name__,
        preprocessing=named.preprocessing.for_channels(shape[-1]),
        remat=net.remat,
        input_tensor=images,
        name=net.name or named.__name__,
    )
    checkpoints.load(model, checkpoint, identities)
    if tensor is None or images is not None:
        return model
    return keras.Model(keras.utils.get_source_inputs(tensor), model(tensor), name=model.name)


def _by_name(
    constructor: Callable[..., keras.Model], args: tuple, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name, with `**overrides` merged in."""
    try:
        given = inspect.signature(constructor).bind(*args, **arguments).arguments
    except TypeError as error:
        raise TypeError(f"{constructor.__name__}(): {error}") from None
    overrides = given.pop("overrides", {})
    return {**given, **overrides}


def _split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split arguments into the shared ones and the family's own."""
    shared = {name: value for name, value in arguments.items() if name in SHARED}
    return shared, {name: value for name, value in arguments.items() if name not in SHARED}


@dataclass(frozen=True, kw_only=True)
class _Outline(Network):
    """A network whose blocks are only counted, not made, which is fast."""

    def blocks(self, attention: Any, mlp: Any, depth: int, **arguments: Any) -> Layers:
        return [keras.layers.Identity(name="block")] * depth


def identities(family: str) -> dict[str, Identity]:
    """Return the identity of each size of a family, by name."""
    found = {}
    for name, size in MODELS.items():
        if size.family == family:
            shared, own = _split(size.data)
            layers = FAMILIES[family].list_layers(_Outline(**shared), **own)
            depth = sum(layer.name == "block" for layer in layers)
            widths = [layer.dim for layer in layers if hasattr(layer, "dim")]
            found[name] = Identity(family, depth, widths[-1] if widths else 0)
    return found


def _input_of(tensor: Any) -> Any:
    """Return `tensor` if it is a `keras.Input`, otherwise None."""
    if tensor is None:
        return None
    sources = keras.utils.get_source_inputs(tensor)
    return tensor if len(sources) == 1 and sources[0] is tensor else None
