"""Masks of the layers of a model, drawn as text."""

from collections.abc import Iterator

from flax import nnx

from attention.modules import Layers, SelfAttention
from attention.primitives import masks
from attention.primitives.masks import Mask

DRAWN = 16  # positions
VISIBLE, MASKED = "■", "·"


def drawn(mask: Mask, size: int = DRAWN) -> str:
    """Return a line for each query position and a sign for each key position."""
    return masks.picture(mask, size).translate({ord("0"): MASKED, ord("1"): VISIBLE})


def masks_of(model: nnx.Module, size: int = DRAWN) -> str:
    """Return the masks of self-attention, each once, with the layers that have it.

    Masks of the data, such as those of padding or of several texts in a row, are not of the model.

    Args:
        model: an encoder, a decoder or both; shapes in place of arrays suffice.
        size: number of positions that are drawn.
    """
    layers: dict[tuple[str, str], list[int]] = {}
    for stack, number, attention in _self_attention(model):
        mask = masks.full()
        if stack == "decoder" and model.decoder.causal:
            mask = masks.causal()
        if attention.window is not None:
            mask &= masks.window(attention.window, attention.window)
        layers.setdefault((stack, drawn(mask, size)), []).append(number)
    return "\n\n".join(
        f"{stack} self-attention, layers {', '.join(map(str, sorted(numbers)))}; rows: queries\n"
        f"{picture}"
        for (stack, picture), numbers in layers.items()
    )


def _self_attention(model: nnx.Module) -> Iterator[tuple[str, int, SelfAttention]]:
    """Yield the stack, the number of the layer from 1, and the self-attention of each layer."""
    for stack in ("encoder", "decoder"):
        layers = getattr(getattr(model, stack, None), "layers", None)
        if not isinstance(layers, Layers):
            continue
        for block, indices in zip(layers.blocks, layers.indices(), strict=True):
            for _, module in nnx.iter_modules(block):
                if isinstance(module, SelfAttention):
                    for index in indices:
                        yield stack, index + 1, module
