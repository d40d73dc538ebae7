"""Arguments of layers, and what they are built for or called with."""

from harness import numbers

from keras_vitx import layers as kvl
from keras_vitx.layers import MLP, Attention, Block, LocalMapConvolution, PatchEmbedding
from keras_vitx.layers.tokens import TokenDownsampling

BACKEND_FREE = True
MAPS, TOKENS, IMAGES = (None, 2, 5, 5), (None, 5, 8), (None, 8, 10, 3)
X = numbers((3, 5, 8))


def of_maps(make, *shape):
    return lambda: make(2).build((TOKENS, shape))


ERRORS = {
    ValueError: {
        "`kernel_size` must be odd ... Received: kernel_size=2": lambda: LocalMapConvolution(2),
        "`kernel_size` must ...=4": lambda: kvl.ResidualRefinement(kernel_size=4),
        "`expansion` must be an integer in ... Received: 0": lambda: kvl.ResidualRefinement(0),
        "`expansion` must ... -1": lambda: kvl.RefinedAttention(2, expansion=-1),
        "`constraint` must be one of ... Received: 'rows'": lambda: LocalMapConvolution(3, "rows"),
        "`grid` must be given ... Received: grid=None": lambda: LocalMapConvolution(3, "spatial"),
        "`grid` must have no more patches than there are keys. Received: grid=(2, 3), keys=5": (
            lambda: LocalMapConvolution(3, "spatial", (2, 3)).build(MAPS)
        ),
        "`num_heads` must be a square ... Received: num_heads=6. With conv_start='partial', the "
        "first 4 heads start so and the other 2 at random": lambda: kvl.GatedPositionalAttention(6),
        "`conv_start` must be one of ... Received: 'half'": lambda: kvl.PositionalAttention(
            4, conv_start="half"
        ),
        "`grid` must have as many patches as ... tokens; ... Received: grid=(2, 2), tokens=5": (
            lambda: kvl.PositionalAttention(4, (2, 2)).build(TOKENS)
        ),
        "they must fill a square. Received: grid=None, tokens=5": (
            lambda: kvl.PositionalAttention(4).build(TOKENS)
        ),
        "receives ... Received: (None, 4, 5, 5)": of_maps(kvl.SharedAttention, None, 4, 5, 5),
        "`temperature` must be a number in (0, inf). Received: 0": lambda: kvl.Temperature(0),
        "`context` must be one of ... Received: 'median'": lambda: kvl.ContextBroadcasting(
            "median"
        ),
        "`scale` must be None with context='class_product', ... Received: scale=0.1": (
            lambda: kvl.ContextBroadcasting("class_product", scale=0.1)
        ),
        "`count` must be an integer ... Received: 0": lambda: kvl.UniformHeads(0),
        "`count` must be an integer in [1, inf). Received: 0": lambda: kvl.ClassToken(0),
        "`rate` must be in [0, 1). Received: rate=1.": lambda: kvl.DropPath(1),
        "`pooling` must be one of ... Received: 'median'": lambda: kvl.TokenPooling("median"),
        "`patch_size` must be even... Received: patch_size=7": lambda: kvl.ConvStem(
            8, patch_size=7
        ),
        "`input_shape` must have sides that are multiples of the patch size 4. Received: "
        "input_shape=(8, 10, 3); the nearest is (8, 12)": lambda: kvl.ConvStem(8, (4,), 4).build(
            IMAGES
        ),
        "`input_shape` ...=(None, 8, 3).": lambda: PatchEmbedding(6, 4).build((None, None, 8, 3)),
        "at least the patch size 4. ...=(3, 8, 3)": (
            lambda: PatchEmbedding(6, 4, 2).build((None, 3, 8, 3))
        ),
        "`dim` must be a multiple ... Received: dim=12, width=8": (
            lambda: TokenDownsampling(12, (2, 2)).build(TOKENS)
        ),
        "`grid` must ... Received: grid=(2, 3), num_prefix_tokens=1, tokens=5": (
            lambda: TokenDownsampling(16, (2, 3)).build(TOKENS)
        ),
        "`residual_scale` must be a number in (0, inf). Received: 0": (
            lambda: Block(Attention(2), MLP(), residual_scale=0)
        ),
        "`attention` must be a layer. Received: <class": lambda: Block(Attention, MLP()),
        "`mlp` must be a layer. Received: <class": lambda: Block(Attention(2), MLP),
        "`residual_dtype` must be one of 'float32', or None. Received: 'float16'": (
            lambda: Block(Attention(2), MLP(), residual_dtype="float16")
        ),
        "`mlp_ratio`, or `hidden`, must ... Received: mlp_ratio=0.1, hidden=None, width=8": (
            lambda: MLP(0.1).build(TOKENS)
        ),
        "`initialization` must be one of ... Received: 'ones'": (
            lambda: MLP(initialization="ones").build(TOKENS)
        ),
        "`num_heads` must be an integer ... Received: 0": lambda: Attention(0),
        "`num_heads` must be an integer ... Received: 2.0": lambda: Attention(2.0),
        "`head_size` must be an integer ... Received: 0": lambda: Attention(2, head_size=0),
        "`num_heads` must divide ... Received: num_heads=3, width=8": (
            lambda: Attention(3).build(TOKENS)
        ),
        "`num_heads` must divide ...=6, width=8": (
            lambda: kvl.SharedAttention(6).build((TOKENS, (None, 6, 5, 5)))
        ),
    }
}
