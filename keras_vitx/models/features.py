"""Feature maps of chosen blocks: a network as the backbone of another one."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import keras

from keras_vitx.checks import are_counts
from keras_vitx.layers import ClassBlock
from keras_vitx.layers.base import register, serialize, to_python
from keras_vitx.layers.tokens import PatchMap, patch_grid
from keras_vitx.models.chain import Chain, ImageModel, grid_after
from keras_vitx.models.common import scale_factor
from keras_vitx.models.cut import as_chain
from keras_vitx.text import nearest


def features(
    model: keras.Model,
    blocks: int | str | Sequence[int | str] | None = None,
    *,
    size: tuple[int, int] | None = None,
    norm: bool = True,
    scales: Sequence[float] | None = None,
    trainable: bool = True,
    prefix_tokens: bool = False,
    name: str | None = None,
) -> "Features":
    """Return a model that gives the feature maps of chosen blocks.

    The layers up to the last chosen block are shared with `model`, unless `size` is another
    one; then they are a copy (`Chain.at_size`).

    ```python
    backbone = kv.features(kv.ViT_S(weights="imagenet"), [2, 5, 8, 11], size=(512, 384))
    images = keras.Input((512, 384, 3))
    maps = backbone(images)  # four of shape (batch, 32, 24, 384)
    ```

    Args:
        model: A model of this package, or one cut from it.
        blocks: The blocks, by index (negative ones count from the last) or by name. Class
            blocks (CaiT), which leave the patches unchanged, do not count. None is the last
            one.
        size: Height and width of the images; None is that of `model`.
        norm: Whether the last norm of the network is applied to each map.
        scales: Factor of the sides of each map, such as `(4, 2, 1, 0.5)`: from a patch of 16
            pixels, maps of 1/4, 1/8, 1/16 and 1/32 of the image. Above 1, `UpSampling2D`
            (bilinear); below, `MaxPooling2D`. None leaves the maps as they are. With one
            block, all scales are made from it.
        trainable: Whether the layers are trained. If not, they also run in inference mode,
            without dropout and stochastic depth, and those shared with `model` are frozen there.
        prefix_tokens: Whether the outputs are all tokens, `(batch, prefix tokens + patches, dim)`,
            instead of maps.
        name: Name of the model.

    Returns:
        A model from images `(batch, height, width, channels)` to a list of maps
        `(batch, rows, columns, dim)`; one map, without a list, if `blocks` is one index, one
        name or None, and there are no scales. Class and distillation tokens are left out.

    Raises:
        ValueError: if a block does not exist, a side of `size` is not a multiple of the patch
            size, the norm does not fit the width of a block (PiT), or a scale is no power of
            two.
    """
    blocks, scales, size = to_python((blocks, scales, size), max_ndim=1)
    chain = as_chain(model)
    if not isinstance(chain, Chain):
        raise ValueError(
            "`model` must be a model of keras_vitx, or a line of layers cut from one. "
            f"Received: {type(model).__name__} {model.name!r}, which branches."
        )
    if size is not None:
        if not are_counts(size, 2):
            raise ValueError(f"`size` must be (height, width) in pixels. Received: {size!r}.")
        stems = (layer for layer in chain.layers if hasattr(layer, "patch_size"))
        size, stem = tuple(size), next(stems, None)
        patch_grid(size, getattr(stem, "patch_size", 1), getattr(stem, "stride", None), "size")
        if size != chain.input_shape[1:3]:
            chain = chain.at_size(size)
    if prefix_tokens and scales is not None:
        raise ValueError(f"`scales` must be None with prefix_tokens=True. Received: {scales}.")
    is_one = blocks is None or isinstance(blocks, (str, Integral))
    names = _block_names(chain, [-1 if blocks is None else blocks] if is_one else blocks)
    if scales is not None and len(names) == 1:
        names = names * len(scales)
    order = [layer.name for layer in chain.layers]
    backbone = Features(
        chain.layers[: 1 + max(map(order.index, names))],
        names,
        chain.input_shape[1:],
        norm=_last_norm(chain, names) if norm else None,
        scales=scales,
        as_list=not is_one or scales is not None,
        prefix_tokens=prefix_tokens,
        family=chain.family,
        preprocessing=chain.preprocessing,
        scan=chain.scan,
        remat=chain.remat,
        name=name or f"{chain.name}_features",
    )
    if not trainable:
        backbone.trainable = False
    return backbone


@register
class Features(ImageModel):
    """The feature maps of chosen blocks; see `features`, which makes one from a network.

    Like a `Chain`, it is a functional model, it is serialized as its list of layers, and under
    JAX it trains as one loop over the blocks between two maps. If `trainable` is false, it
    runs in inference mode in training, too.

    Args:
        layers: The layers up to the last chosen block.
        blocks: Name of the block of each map.
        input_shape: Image shape, `(height, width, channels)`.
        norm: A norm of the tokens before they become a map, or None.
        scales: Factor of the sides of each map; None is 1.
        as_list: Whether the output is a list if there is one map.
        prefix_tokens: Whether the outputs are all tokens instead of maps.
        images: Arguments of the `keras.Input`.
        **kwargs: As in `Chain`, such as `preprocessing`, `scan`, `remat` and `name`.
    """

    def __init__(
        self,
        layers: Sequence[keras.layers.Layer],
        blocks: Sequence[str],
        input_shape: tuple[int, int, int],
        norm: keras.layers.Layer | None = None,
        scales: Sequence[float] | None = None,
        as_list: bool = True,
        prefix_tokens: bool = False,
        images: dict[str, Any] | None = None,
        **kwargs,
    ):
        scales = (1,) * len(blocks) if scales is None else tuple(scales)
        if len(scales) != len(blocks):
            raise ValueError(
                f"`scales` must have one factor per map, {len(blocks)}. Received: {scales}."
            )
        inputs = x = keras.Input(tuple(input_shape), **{"name": "images", **(images or {})})
        tokens, grids, grid = {}, {}, None
        for layer in layers:
            x = layer(x)
            grid = grid_after(layer, grid)
            tokens[layer.name], grids[layer.name] = keras.tree.flatten(x)[0], grid
        lines, maps = [], []
        for index, (block, scale) in enumerate(zip(blocks, scales, strict=True)):
            dtype = layers[-1].dtype_policy
            line = [] if prefix_tokens else _to_map(grids[block], scale, dtype, f"map_{index}")
            line = line if norm is None else [norm, *line]
            maps.append(_through(line, tokens[block]))
            lines.append(tuple(layer.name for layer in line))
        super().__init__(inputs, maps if as_list else maps[0], **kwargs)
        self.blocks, self.scales, self.as_list = tuple(blocks), scales, as_list
        self.prefix_tokens = prefix_tokens
        # By name, because the layers are those of the functional model already.
        self._names, self._lines = tuple(tokens), tuple(lines)
        self._norm = None if norm is None else norm.name

    @property
    def trunk(self) -> list[keras.layers.Layer]:
        """The layers up to the last chosen block."""
        return [self.get_layer(name) for name in self._names]

    @property
    def maps(self) -> list[keras.KerasTensor]:
        """The symbolic feature maps, also if there is one."""
        return keras.tree.flatten(self.output)

    def call(self, inputs, training=None, mask=None):
        training = bool(training) and self.trainable
        x, tokens, layers = self.as_images(inputs), {}, []
        for step in self.trunk:
            layers.append(step)
            if step.name in self.blocks:
                x, layers = self.run(layers, x, training), []
                tokens[step.name] = keras.tree.flatten(x)[0]
        maps = [
            _through(map(self.get_layer, line), tokens[block])
            for line, block in zip(self._lines, self.blocks, strict=True)
        ]
        return maps if self.as_list else maps[0]

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal model with new weights."""
        return {
            **super().get_config(),
            "layers": serialize(self.trunk),
            "blocks": list(self.blocks),
            "norm": self._norm and serialize(self.get_layer(self._norm)),
            "scales": list(self.scales),
            "as_list": self.as_list,
            "prefix_tokens": self.prefix_tokens,
        }


def _to_map(grid, scale, dtype, name):
    """Return Keras's layers from tokens to a map whose sides are multiplied by a power of two."""
    factor = scale_factor(scale, grid)
    line = [PatchMap(grid, dtype=dtype, name=name)]
    arguments = {"data_format": "channels_last", "dtype": dtype}
    if scale < 1:
        line.append(keras.layers.MaxPooling2D(factor, name=f"{name}_down", **arguments))
    elif scale > 1:
        arguments |= {"interpolation": "bilinear", "name": f"{name}_up"}
        line.append(keras.layers.UpSampling2D(factor, **arguments))
    return line


def _through(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def _block_names(chain, blocks):
    """Return the names of blocks that are given by index or name."""
    known = [block.name for block in chain.blocks if not isinstance(block, ClassBlock)]
    if not known:
        raise ValueError(f"The model {chain.name!r} has no blocks (keras_vitx.layers.Block).")
    if not isinstance(blocks, (list, tuple, range)) or not len(blocks):
        raise ValueError(
            f"`blocks` must be indices or names of blocks, at least one. Received: {blocks!r}."
        )
    for block in blocks:
        if block not in (*known, *range(-len(known), len(known))):
            hint = nearest(block, known) if isinstance(block, str) else f"It has {len(known)}."
            raise ValueError(
                f"`blocks`: the model {chain.name!r} has no block {block!r} of patches. {hint}"
            )
    return [block if isinstance(block, str) else known[int(block)] for block in blocks]


def _last_norm(chain, names):
    """Return the last norm of a network, if it fits the width of each of the blocks."""
    norms = [step for step in chain.layers if isinstance(step, keras.layers.LayerNormalization)]
    if not norms:
        raise ValueError(f"The model {chain.name!r} has no last norm: give `norm=False`.")
    width = norms[-1].input.shape[-1]
    for name in names:
        block_width = keras.tree.flatten(chain.get_layer(name).output)[0].shape[-1]
        if block_width != width:
            raise ValueError(
                f"The last norm has the width {width}, the block {name!r} has {block_width}: give "
                "`norm=False`."
            )
    return norms[-1]
