"""Public constructors made from lists of layers: families, sizes and their registry.

A family is a function that returns the layers of a network. `@family` turns it into a
model constructor, and `variant` makes the constructors of its sizes. Both can be used
outside of this package: see CONTRIBUTING.md.
"""

import contextlib
import fnmatch
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras

from keras_vitx import weights as checkpoints
from keras_vitx.checks import check, check_counts
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.layers.recording import Tensor
from keras_vitx.models.arguments import Layers, ModelArguments, to_python
from keras_vitx.models.chain import Chain
from keras_vitx.preprocessing import IMAGENET_DEFAULT, ModelInput, Preprocessing
from keras_vitx.text import nearest
from keras_vitx.weights.catalog import BY_NAME, CONSTRUCTORS, timm_hints
from keras_vitx.weights.names import TABLES, Table

Constructor = Callable[..., keras.Model]

FAMILIES: dict[str, Constructor] = {}
"""The constructor of every family, by name."""

MODELS: dict[str, Constructor] = CONSTRUCTORS
"""The constructor of every size, by name.

Each has the attributes `family`, its name, `preprocessing`, and `data`, its arguments.
"""

SHAPE = (224, 224, 3)
"""Default image shape."""

SHARED = dict(inspect.signature(ModelArguments).parameters)
"""The arguments that all families share."""

OF_SIZES = (
    *("include_top", "weights", "input_tensor", "input_shape", "pooling", "classes"),
    *("classifier_activation", "name", "include_preprocessing"),
)
"""The arguments in the signature of a size: those of keras.applications, in order, and one more."""

END_OF_DOC = (
    inspect.cleandoc(ModelArguments.__doc__ or "").partition("Args:\n")[2]
    + """

Returns:
    A `keras_vitx.models.Chain`, or, for an `input_tensor` that is not a `keras.Input`, a
    `keras.Model` that contains one.

Raises:
    ValueError: if an argument is out of range; the message names it.
"""
)


def family(
    preprocessing: Preprocessing = IMAGENET_DEFAULT, checkpoint: Table | None = None
) -> Callable[[Callable[..., Layers]], Constructor]:
    """Decorate a function that lists the layers of a network, making it a constructor.

    The function takes a `ModelArguments`, which holds the arguments that all families share,
    followed by its own arguments. The constructor takes those own arguments and, as
    keyword arguments, the shared ones.

    Args:
        preprocessing: The family's preprocessing of color images.
        checkpoint: The family's rename table for PyTorch checkpoints; None if the names
            are those of a plain ViT.
    """

    def decorate(list_layers: Callable[..., Layers]) -> Constructor:
        @functools.wraps(list_layers, assigned=("__module__", "__name__", "__qualname__"))
        def constructor(*args: Any, **arguments: Any) -> keras.Model:
            return _model(constructor, constructor, args, arguments)

        own = list(inspect.signature(list_layers).parameters.values())[1:]
        constructor.__signature__ = inspect.Signature(
            [*own, *SHARED.values()], return_annotation=keras.Model
        )
        constructor.__doc__ = f"{inspect.cleandoc(list_layers.__doc__ or '')}\n{END_OF_DOC}"
        constructor.list_layers = list_layers
        constructor.preprocessing = preprocessing
        constructor.data = {"input_shape": SHAPE}
        FAMILIES[constructor.__name__] = constructor
        TABLES[constructor.__name__] = checkpoint or Table()
        return constructor

    return decorate


def variant(
    name: str,
    family: Constructor,
    input_shape: tuple[int, int, int] = SHAPE,
    classes: int = 1000,
    crop_ratio: float | None = None,
    preprocessing: Preprocessing | None = None,
    **data: Any,
) -> Constructor:
    """Make and register the constructor of one size of a family.

    Args:
        name: Public name of the size.
        family: The constructor of the family.
        input_shape: Default image shape.
        classes: Default number of classes.
        crop_ratio: Crop ratio of the size; None means the family's.
        preprocessing: Mean and deviation of the size, likewise.
        **data: The family arguments that define the size.
    """

    ratio = family.preprocessing.crop_ratio if crop_ratio is None else crop_ratio
    own = (preprocessing or family.preprocessing).replace(crop_ratio=ratio)
    data = {"input_shape": input_shape, "classes": classes, **data}
    MODELS[name] = constructor = _size(name, family, own, data)
    return constructor


def _size(
    name: str, family: Constructor, preprocessing: Preprocessing, data: dict[str, Any]
) -> Constructor:
    """Return a constructor named `name` of a family with the arguments `data`."""

    def constructor(*args: Any, **arguments: Any) -> keras.Model:
        return _model(family, constructor, args, arguments)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = {argument: SHARED[argument].replace(kind=kind) for argument in OF_SIZES}
    parameters["classes"] = parameters["classes"].replace(default=data["classes"])
    overrides = inspect.Parameter("overrides", inspect.Parameter.VAR_KEYWORD, annotation=Any)
    constructor.__signature__ = inspect.Signature(
        [*parameters.values(), overrides], return_annotation=keras.Model
    )
    constructor.__name__ = constructor.__qualname__ = name
    constructor.__module__ = family.__module__
    listed = ", ".join(f"{key}={value!r}" for key, value in [*data.items()][2:])
    constructor.__doc__ = (
        f"Return {family.__name__} with {listed}.\n\n"
        f"Args:\n"
        f"    **overrides: Other arguments of `{family.__name__}`, which override the size's.\n"
        f"{END_OF_DOC}"
    )
    constructor.family = family.__name__
    constructor.preprocessing = preprocessing
    constructor.data = data
    return constructor


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the sizes that match a shell pattern, e.g. `"CaiT_S*"`, in any case."""
    return [name for name in MODELS if fnmatch.fnmatch(name.lower(), pattern.lower())]


def create_model(name: str, **arguments: Any) -> keras.Model:
    """Return a model of a size, or of timm's name, such as "vit_base_patch16_clip_224.openai".

    A network of timm's has its output, image size, classes and preprocessing: without a classifier
    the pooled vector; `classes` adds one. `weights="timm"` are the name's, or its first checkpoint's.
    """
    if name in MODELS:
        return MODELS[name](**arguments)
    if (known := BY_NAME.get(name)) is None:
        raise ValueError(f"No model is named {name!r}. {nearest(name, [*MODELS, *BY_NAME])}")
    if arguments.get("weights") == "timm":
        arguments["weights"] = known.name
    base = {**FAMILIES, **MODELS}[known.constructor]
    family = FAMILIES[getattr(base, "family", known.constructor)]
    data = {**base.data, **known.data("classes" in arguments)}
    return _size(known.fits[0], family, known.preprocessing, data)(**arguments)


def model_input(model: object) -> Any:
    """Return the image size and the preprocessing of a size or checkpoint, without building it.

    Anything but a name is returned unchanged. A ValueError suggests the nearest to an unknown name.
    """
    if not isinstance(model, str):
        return model
    if model in MODELS:
        size = MODELS[model]
        return ModelInput((None, *size.data["input_shape"]), size.preprocessing)
    if (known := BY_NAME.get(model)) is None:
        raise ValueError(f"No model is named {model!r}. {nearest(model, [*MODELS, *BY_NAME])}")
    return ModelInput((None, *(known.image_size,) * 2, 3), known.preprocessing)


def _model(
    family: Constructor, named: Constructor, args: tuple, arguments: dict[str, Any]
) -> keras.Model:
    """Return a model of a family, as `named`, it or one of its sizes, is called."""
    caller = named
    try:
        passed = inspect.signature(named).bind(*args, **arguments).arguments
        overrides = passed.pop("overrides", {})
        caller = family
        inspect.signature(family).bind(**{**named.data, **passed, **overrides})
    except TypeError as error:
        hints = timm_hints(arguments)
        if named is family and not (args or arguments):
            hints = [f"Use a size, such as {n}." for n in MODELS if n.startswith(named.__name__)]
        raise TypeError(" ".join([f"{caller.__name__}(): {error}.", *hints[:1]])) from None
    arguments = to_python({**named.data, "input_shape": None, **passed, **overrides}, max_ndim=1)
    tensor, weights = arguments.get("input_tensor"), arguments.get("weights")
    shape = _image_shape(arguments["input_shape"], tensor)
    request = {
        "constructor": None if named is family else named.__name__,
        "image_size": shape and shape[:2],
        "distillation_token": bool(arguments.get("distillation_token")),
    }
    source = checkpoints.find_source(weights, **request)
    if shape is None:
        shape = named.data["input_shape"]
        if source is not None and source.checkpoint is not None:
            side = source.checkpoint.image_size
            shape = (side, side, shape[-1])
    arguments["input_shape"] = shape
    network = ModelArguments(
        **{name: arguments.pop(name) for name in SHARED.keys() & arguments.keys()}
    )

    def list_layers(network: ModelArguments) -> Layers:
        with _dtype_policy(network.dtype):
            return family.list_layers(network, **arguments)

    # Listing the layers checks the arguments, before anything is downloaded.
    layers = list_layers(network)
    sources = [] if tensor is None else keras.utils.get_source_inputs(tensor)
    is_input = len(sources) == 1 and sources[0] is tensor
    is_float = not is_input or network.include_preprocessing or "float" in str(tensor.dtype)
    rule = "`input_tensor` must have a floating dtype, or the model include_preprocessing=True."
    check(is_float, rule, is_input and tensor.dtype)

    # Without `classes`, the file determines them.
    is_open = "classes" not in passed and "classes" not in overrides
    preprocessing = named.preprocessing.for_channels(shape[-1])
    with checkpoints.open_source(source) as file:
        if not is_open and file is not None and file.classes is None:
            file = file._replace(headless=True)  # The classifier of these classes starts anew.
        if file is not None:
            classes = file.classes if is_open else None
            reads_both = network.include_top and network.pooling is None and file.pooling
            own = {"classes": classes or network.classes, "pooling": reads_both or network.pooling}
            if (changed := replace(network, **own)) != network:
                network, layers = changed, list_layers(changed)
        if network.include_preprocessing:
            statistics = preprocessing.mean, preprocessing.std
            layers = [ImagePreprocessing(shape[:2], *statistics, name="preprocessing"), *layers]
        model = Chain(
            layers,
            shape,
            family=family.__name__,
            preprocessing=preprocessing,
            remat=network.remat,
            size=named.__name__,
            arguments=_as_json({**passed, **overrides, "classes": network.classes}),
            dtype=network.dtype,
            input_tensor=tensor if is_input else None,
            name=network.name or named.__name__,
        )
        if file is not None:
            checkpoints.load(model, file, source.weights, network.strict)
    if tensor is None or is_input:
        return model
    inputs = sources[0] if len(sources) == 1 else sources
    return keras.Model(inputs, model(tensor), name=model.name)


def _as_json(arguments: dict[str, Any]) -> str:
    """Return the arguments of a constructor that describe the network; of objects, the types."""
    left_out = {"weights", "strict", "input_shape", "input_tensor", "name"}
    values = {name: value for name, value in arguments.items() if name not in left_out}
    return json.dumps(to_python(values, max_ndim=1), default=lambda value: type(value).__name__)


@contextlib.contextmanager
def _dtype_policy(dtype: str | keras.DTypePolicy | None) -> Iterator[None]:
    """Set the global dtype policy, which is that of new layers of this thread; None leaves it."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(keras.dtype_policies.get(dtype))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _image_shape(
    input_shape: Sequence[int] | None, input_tensor: Tensor | None
) -> tuple[int, int, int] | None:
    """Return the image shape given by either argument, or None."""
    if input_tensor is not None:
        fits = input_shape is None or tuple(input_shape) == tuple(input_tensor.shape[1:])
        rule = f"`input_shape` must be that of `input_tensor`, {input_tensor.shape}."
        check(fits, rule, input_shape)
        input_shape = input_tensor.shape[1:]
    if input_shape is None:
        return None
    height, width, channels = input_shape
    check_counts(height=height, width=width, channels=channels)
    return tuple(map(int, input_shape))
