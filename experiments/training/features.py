"""What a translator scores the next tokens by, of batches that are padded or packed."""

from jax import Array

from attention.modules.dropout import split_key
from attention.modules.transformer import EncoderDecoder
from attention.primitives import masks
from experiments.data.batching import Batch
from experiments.data.packing import PackedPairs


def padded_features(model: EncoderDecoder, batch: Batch, key: Array | None) -> Array:
    """What a model scores the next tokens by, where each row is one pair."""
    mask = masks.lengths(batch.source_lengths)
    encode_key, decode_key = split_key(key, 2)
    memory = model.encode(batch.source, mask=mask, key=encode_key)
    features, _ = model.decode(batch.target_inputs, memory, memory_mask=mask, key=decode_key)
    return features


def packed_features(
    model: EncoderDecoder, batch: PackedPairs, placed: bool, key: Array | None
) -> Array:
    """The same where rows hold several pairs, which know nothing of each other.

    Args:
        model: a Transformer.
        batch: the rows.
        placed: whether positions are added to embeddings, where they begin anew in each pair.
        key: random key for dropout, none without.
    """
    source, target = batch
    encode_key, decode_key = split_key(key, 2)
    memory = model.encode(
        source.labels,
        mask=masks.segments(source.segments),
        positions=source.positions if placed else None,
        key=encode_key,
    )
    features, _ = model.decode(
        target.inputs,
        memory,
        mask=masks.causal() & masks.segments(target.segments),
        memory_mask=masks.segments(target.segments, source.segments),
        positions=target.positions if placed else None,
        key=decode_key,
    )
    return features
