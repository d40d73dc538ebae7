"""Invalid arguments: one ValueError that names the argument and the value received."""

import numpy as np
import pytest
from cases import LAYERS
from harness import numbers

from keras_vitx.layers import (
    MLP,
    AccumulatingAttention,
    Attention,
    Block,
    ClassAttention,
    ClassToken,
    ContextBroadcasting,
    ConvStem,
    DropPath,
    GatedPositionalAttention,
    LocalMapConvolution,
    PatchEmbedding,
    PositionalAttention,
    RefinedAttention,
    Refinement,
    ResidualRefinement,
    SharedAttention,
    Temperature,
    TokenPooling,
    UniformHeads,
)
from keras_vitx.layers.base import arguments
from keras_vitx.layers.tokens import TokenDownsampling

pytestmark = pytest.mark.backend_free

MAPS = (None, 2, 5, 5)
TOKENS = (None, 5, 8)
IMAGES = (None, 8, 10, 3)
# The call, the argument at fault, the value received.
WRONG = [
    (lambda: LocalMapConvolution(2), "kernel_size", "kernel_size=2"),
    (lambda: Refinement(kernel_size=-1), "kernel_size", "kernel_size=-1"),
    (lambda: ResidualRefinement(kernel_size=4), "kernel_size", "kernel_size=4"),
    (lambda: ResidualRefinement(0), "expansion", "expansion=0"),
    (lambda: RefinedAttention(2, expansion=-1), "expansion", "expansion=-1"),
    (lambda: LocalMapConvolution(3, "rows"), "constraint", "'rows'"),
    (lambda: Refinement(constraint="rows"), "constraint", "'rows'"),
    (lambda: LocalMapConvolution(3, "spatial"), "grid", "grid=None"),
    (lambda: LocalMapConvolution(3, "spatial", (2, 3)).build(MAPS), "grid", "grid=(2, 3), keys=5"),
    (lambda: GatedPositionalAttention(6), "num_heads", "num_heads=6"),
    (lambda: PositionalAttention(2), "num_heads", "num_heads=2"),
    (lambda: PositionalAttention(4, conv_start="half"), "conv_start", "'half'"),
    (lambda: PositionalAttention(4, (2, 2)).build(TOKENS), "grid", "grid=(2, 2), tokens=5"),
    (lambda: PositionalAttention(4).build(TOKENS), "grid", "grid=None, tokens=5"),
    *(
        (lambda make=make, maps=maps: make(2).build((TOKENS, maps)), "maps", str(maps))
        for make in (SharedAttention, AccumulatingAttention)
        for maps in ((None, 4, 5, 5), (None, 2, 5, 6), (None, 2, 6, 5))
    ),
    (lambda: Temperature(0), "temperature", "0"),
    (lambda: Temperature(-0.5, learnable=True), "temperature", "-0.5"),
    (lambda: ContextBroadcasting("median"), "context", "'median'"),
    (lambda: ContextBroadcasting("class_product", scale=0.1), "scale", "scale=0.1"),
    (lambda: UniformHeads(0), "count", "0"),
    (lambda: ClassToken(0), "count", "0"),
    (lambda: DropPath(-0.1), "rate", "-0.1"),
    (lambda: DropPath(1), "rate", "1"),
    (lambda: DropPath().set_rate(1.5), "rate", "1.5"),
    (lambda: TokenPooling("median"), "pooling", "'median'"),
    (lambda: ConvStem(8, patch_size=7), "patch_size", "patch_size=7"),
    (
        lambda: ConvStem(8, (4,), 4).build(IMAGES),
        "patch_size",
        "patch_size=4; the nearest is (8, 12)",
    ),
    (lambda: PatchEmbedding(6, 4).build((None, 9, 8, 3)), "patch_size", "(9, 8, 3), patch_size=4"),
    (lambda: PatchEmbedding(6, 4).build((None, None, 8, 3)), "patch_size", "(None, 8, 3)"),
    (lambda: PatchEmbedding(6, 4, 2).build((None, 3, 8, 3)), "patch_size", "(3, 8, 3)"),
    (lambda: TokenDownsampling(12, (2, 2)).build(TOKENS), "dim", "dim=12, width=8"),
    (
        lambda: TokenDownsampling(16, (2, 3)).build(TOKENS),
        "grid",
        "grid=(2, 3), num_prefix_tokens=1",
    ),
    (lambda: Block(Attention(2), MLP(), residual_scale=0), "residual_scale", "residual_scale=0"),
    (lambda: Block(Attention, MLP()), "attention", "class"),
    (lambda: Block(Attention(2), MLP), "mlp", "class"),
    (lambda: Block(Attention(2), MLP(), residual_dtype="float16"), "residual_dtype", "'float16'"),
    (lambda: MLP(0.1).build(TOKENS), "mlp_ratio", "mlp_ratio=0.1, hidden=None, width=8"),
    (lambda: MLP(initialization="ones").build(TOKENS), "initialization", "'ones'"),
    *(
        (lambda make=make, shape=shape: make(3).build(shape), "num_heads", "num_heads=3, width=8")
        for make, shape in (
            (Attention, TOKENS),
            (ClassAttention, TOKENS),
            (SharedAttention, (TOKENS, (None, 3, 5, 5))),
        )
    ),
    (lambda: PositionalAttention(9).build((None, 4, 8)), "num_heads", "num_heads=9, width=8"),
]


@pytest.mark.parametrize(("make", "argument", "received"), WRONG)
def test_wrong_arguments(make, argument, received):
    with pytest.raises(ValueError) as error:
        make()
    message, _, found = str(error.value).partition("Received: ")
    assert argument in message
    assert received in found


def test_what_happens_to_heads_left_over():
    with pytest.raises(ValueError, match=r"'partial', .*first 4 .*other 2 .*random"):
        GatedPositionalAttention(6)


def test_shared_maps_of_another_size_at_the_call():
    for make in (SharedAttention, AccumulatingAttention):
        with pytest.raises(ValueError, match=r"Received: maps of shape \(2, 2, 4, 4\)"):
            make(2)((numbers((2, 5, 8)), numbers((2, 2, 4, 4))))


def in_numpy(value):
    """Return numbers as NumPy's, and lists of numbers as arrays."""
    if isinstance(value, (tuple, list)):
        return (
            np.array(value) if value and all(isinstance(v, (int, float)) for v in value) else value
        )
    return np.array(value)[()] if isinstance(value, (bool, int, float)) else value


@pytest.mark.parametrize("convert", [in_numpy, lambda value: np.asarray(in_numpy(value))])
@pytest.mark.parametrize("name", LAYERS)
def test_numpy_numbers(name, convert):
    case = LAYERS[name]
    layer = case.make()
    given = {argument: getattr(layer, argument) for argument in arguments(type(layer))}
    numeric = {key: value for key, value in given.items() if in_numpy(value) is not value}
    twin = type(layer)(**given | {key: convert(value) for key, value in numeric.items()})
    twin(case.inputs(lambda shape: numbers((2, *shape))))
    config = {key: layer.get_config()[key] for key in arguments(type(layer))}
    assert {key: twin.get_config()[key] for key in config} == config
