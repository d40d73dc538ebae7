"""Feature maps of chosen blocks: a network as the backbone of another one."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import keras

from keras_vitx.layers import ClassBlock
from keras_vitx.layers.base import Layer, register, serialize
from keras_vitx.layers.block import NORMS
from keras_vitx.models.chain import ImageModel, grid_after
from keras_vitx.models.cut import as_chain


def features(
    model: keras.Model,
    blocks: int | str | Sequence[int | str] = -1,
    *,
    size: tuple[int, int] | None = None,
    norm: bool = True,
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
        model: A model of this package, or a line of layers cut from it.
        blocks: The blocks, by index (negative ones count from the last) or by name. Class
            blocks (CaiT), which leave the patches unchanged, do not count.
        size: Height and width of the images; None is that of `model`.
        norm: Whether the norm after the last block is applied to each map, if the network has one
            (EVA-02 and others normalize the mean of the patches instead). Blocks of another
            width (PiT) need `norm=False`.
        trainable: Whether the layers are trained. If not, they also run in inference mode,
            without dropout and stochastic depth, and those shared with `model` are frozen there.
        prefix_tokens: Whether the outputs are all tokens, `(batch, prefix tokens + patches, dim)`,
            instead of maps.
        name: Name of the model.

    Returns:
        A model from images `(batch, height, width, channels)` to a list of maps
        `(batch, rows, columns, dim)`; one map, without a list, if `blocks` is one index or name.
        Class and distillation tokens are left out.
    """
    chain = as_chain(model)
    if size is not None and tuple(size) != chain.input_shape[1:3]:
        chain = chain.at_size(size)
    known = [block.name for block in chain.blocks if not isinstance(block, ClassBlock)]
    is_one = isinstance(blocks, (str, Integral))
    given = [blocks] if is_one else blocks
    names = [block if isinstance(block, str) else known[block] for block in given]
    last = max(chain.layers.index(chain.get_layer(name)) for name in names)
    after = chain.layers[chain.layers.index(chain.blocks[-1]) + 1 :]
    norms = [layer for layer in after[:1] if isinstance(layer, tuple(NORMS.values()))]
    backbone = Features(
        chain.layers[: last + 1],
        names[0] if is_one else names,
        chain.input_shape[1:],
        norm=norms[0] if norm and norms else None,
        prefix_tokens=prefix_tokens,
        family=chain.family,
        preprocessing=chain.preprocessing,
        remat=chain.remat,
        name=name or f"{chain.name}_features",
    )
    if not trainable:
        backbone.trainable = False
    return backbone


@register
class PatchMap(Layer):
    """The patches as a map, without the tokens before them.

    Input: `(batch, prefix tokens + rows * columns, dim)`. Output: `(batch, rows, columns, dim)`.

    Args:
        grid: Rows and columns of patches.
    """

    def __init__(self, grid: tuple[int, int], **kwargs):
        super().__init__(**kwargs)
        self.grid = tuple(grid)

    def call(self, x):
        rows, columns = self.grid
        return keras.ops.reshape(x[:, -rows * columns :], (-1, rows, columns, x.shape[-1]))


@register
class Features(ImageModel):
    """The feature maps of chosen blocks; see `features`, which makes one from a network.

    Like a `Chain`, it is a functional model, and is serialized as its list of layers. If
    `trainable` is false, it runs in inference mode in training, too.

    Args:
        layers: The layers up to the last chosen block.
        blocks: Name of the block of each map, or of that of the only one.
        input_shape: Image shape, `(height, width, channels)`.
        norm: A norm of the tokens before they become a map, or None.
        prefix_tokens: Whether the outputs are all tokens instead of maps.
        images: Arguments of the `keras.Input`.
        **kwargs: As in `Chain`, such as `preprocessing`, `remat` and `name`.
    """

    def __init__(
        self,
        layers: Sequence[keras.layers.Layer],
        blocks: str | Sequence[str],
        input_shape: tuple[int, int, int],
        norm: keras.layers.Layer | None = None,
        prefix_tokens: bool = False,
        images: dict[str, Any] | None = None,
        **kwargs,
    ):
        chosen = [blocks] if isinstance(blocks, str) else blocks
        inputs = x = keras.Input(tuple(input_shape), **{"name": "images", **(images or {})})
        ends, maps, grid = {}, {}, None
        for layer in layers:
            x = layer(x)
            grid = grid_after(layer, grid)
            if layer.name in chosen:
                to_map = PatchMap(grid, dtype=layer.dtype_policy, name=f"map_{len(ends)}")
                ends[layer.name] = [norm] * (norm is not None) + [to_map] * (not prefix_tokens)
                maps[layer.name] = _through(ends[layer.name], keras.tree.flatten(x)[0])
        super().__init__(inputs, _of_blocks(maps, blocks), **kwargs)
        self.blocks = blocks if isinstance(blocks, str) else tuple(blocks)
        self.prefix_tokens = prefix_tokens
        # By name, because the layers are those of the functional model already.
        self._trunk = tuple(layer.name for layer in layers)
        self._ends = {name: tuple(layer.name for layer in line) for name, line in ends.items()}
        self._norm = None if norm is None else norm.name

    def call(self, inputs, training=None, mask=None):
        training = bool(training) and self.trainable
        x, maps, layers = self.as_images(inputs), {}, []
        for layer in map(self.get_layer, self._trunk):
            layers.append(layer)
            if layer.name in self._ends:
                x = self.run(layers, x, training)
                layers = []
                ends = map(self.get_layer, self._ends[layer.name])
                maps[layer.name] = _through(ends, keras.tree.flatten(x)[0])
        return _of_blocks(maps, self.blocks)

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal model with new weights."""
        return {
            **super().get_config(),
            "layers": serialize(list(map(self.get_layer, self._trunk))),
            "blocks": self.blocks if isinstance(self.blocks, str) else list(self.blocks),
            "norm": self._norm and serialize(self.get_layer(self._norm)),
            "prefix_tokens": self.prefix_tokens,
        }


def _of_blocks(maps, blocks):
    return maps[blocks] if isinstance(blocks, str) else [maps[block] for block in blocks]


def _through(layers, x):
    for layer in layers:
        x = layer(x)
    return x
