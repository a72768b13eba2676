"""A model for loops of many short steps."""

from typing import TypeVar

from flax import nnx

from attention.modules.transformer import Stack

Model = TypeVar("Model", bound=nnx.Module)


def unrolled(model: Model) -> Model:
    """The same model, in which each layer has its parameters apart.

    Out of a stack, every token of a decoding loop would copy the parameters of every layer; taken
    apart before the loop, they are copied once. Compiling it takes as much longer as it is deeper,
    so learn, and read what is long, with the model as it was made.

    Args:
        model: of stacks of blocks, like `EncoderDecoder` and `LanguageModel`; left as it is.
    """
    model = nnx.merge(*nnx.split(model))
    for _, part in nnx.iter_modules(model):
        if isinstance(part, Stack) and part.num_layers:
            part.layers = nnx.List(part.blocks())
    return model
