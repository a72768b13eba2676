"""Attention of a released model in one sentence; it has neither a task nor data here."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.decoding import generate
from attention.modules import EncoderDecoder, MaskedLanguageModel, Output
from experiments.analysis.collect import DECODER, ENCODER, RETURNING, Attended, Example, attended
from experiments.compilation import compiled


def read(model: Any, tokenizer: Any, sentence: str, options: Mapping[str, Any]) -> Example:  # noqa: ANN401 - of `attention.weights`
    """Return what the stacks of a model read; an encoder-decoder generates its target.

    Args:
        model: of `attention.weights.load`.
        tokenizer: of `attention.weights.load_tokenizer`.
        sentence: with at least one token.
        options: of `generate`, for an encoder-decoder.

    Raises:
        ValueError: a sentence without a token, or one that is too long.
    """
    ids = tokenizer.encode(sentence)
    if not ids:
        raise ValueError("the line has no token")
    is_pair = isinstance(model, EncoderDecoder)
    embedding = (model.source_embedding or model.target_embedding) if is_pair else model.embedding
    longest = embedding.num_positions
    if longest is not None and len(ids) > longest:
        raise ValueError(f"the line has {len(ids)} tokens, and the model reads at most {longest}")
    if not is_pair:
        stack = ENCODER if isinstance(model, MaskedLanguageModel) else DECODER
        return _example(tokenizer, {stack: ids})
    said = generate(model, [ids], **options)
    said = said.tokens[0, : int(said.lengths[0])].tolist()
    read = {ENCODER: ids, DECODER: [options["start"], *said[:-1]]}
    return _example(tokenizer, read)._replace(predicted=labels(tokenizer, said))


def labels(tokenizer: Any, ids: Sequence[int]) -> list[str]:  # noqa: ANN401 - as in `read`
    """Return the text of each token; of a special token its name."""
    return [tokenizer.decode([number], special_tokens=True) for number in ids]


def _example(tokenizer: Any, read: Mapping[str, Sequence[int]]) -> Example:  # noqa: ANN401 - as in `read`
    return Example(
        {stack: np.array(ids, np.int32) for stack, ids in read.items()},
        {stack: labels(tokenizer, ids) for stack, ids in read.items()},
        dict.fromkeys(read, (0, 0)),
    )


def collect(model: Any, example: Example) -> Attended:  # noqa: ANN401 - as in `read`
    """Return what the model attends to in an example."""

    def outputs(model: Any, inputs: Mapping[str, Any]) -> dict[str, Output]:  # noqa: ANN401 - as in `read`
        if DECODER not in inputs:
            return {ENCODER: model.encode(inputs[ENCODER], returning=RETURNING)}
        if ENCODER not in inputs:
            return {DECODER: model.decode(inputs[DECODER], returning=RETURNING)}
        encoded = model.encode(inputs[ENCODER], mask=None, returning=RETURNING)
        decoded = model.decode(
            inputs[DECODER], encoded.features, encoder_mask=None, returning=RETURNING
        )
        return {ENCODER: encoded, DECODER: decoded}

    inputs = {stack: jnp.asarray(ids)[None] for stack, ids in example.inputs.items()}
    return attended(jax.device_get(compiled(outputs)(model, inputs)), 0, example)
