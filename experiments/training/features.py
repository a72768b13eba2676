"""Decoder features of a translation model, for padded and for packed batches."""

from jax import Array

from attention.modules import EncoderDecoder, Output
from attention.modules.context import add_losses
from attention.modules.dropout import split_rng
from attention.primitives import masks
from experiments.data.rows import Batch, PackedPairs


def padded_features(model: EncoderDecoder, batch: Batch, rng: Array | None) -> Output:
    """Compute the features that `logits` maps to scores; each row is one pair.

    Args:
        model: an encoder-decoder, recurrent or not.
        batch: the rows.
        rng: random key of dropout; None turns dropout off.

    Returns:
        The output of the decoder, with the losses of encoder and decoder.
    """
    mask = masks.lengths(batch.source_lengths)
    encoder_rng, decoder_rng = split_rng(rng, 2)
    encoded = model.encode(batch.source, mask=mask, rng=encoder_rng)
    decoded = model.decode(
        batch.target_inputs, encoded.features, encoder_mask=mask, rng=decoder_rng
    )
    return decoded._replace(losses=add_losses(encoded.losses, decoded.losses))


def packed_features(model: EncoderDecoder, batch: PackedPairs, rng: Array | None) -> Output:
    """Compute the features of rows that hold several pairs, which do not attend to each other.

    Args:
        model: a Transformer.
        batch: the rows.
        rng: random key of dropout; None turns dropout off.

    Returns:
        As `padded_features`.
    """
    source, target = batch
    encoder_rng, decoder_rng = split_rng(rng, 2)
    encoded = model.encode(
        source.labels,
        mask=masks.segments(source.segments),
        positions=source.positions,
        rng=encoder_rng,
    )
    decoded = model.decode(
        target.inputs,
        encoded.features,
        mask=masks.segments(target.segments),
        encoder_mask=masks.segments(target.segments, source.segments),
        positions=target.positions,
        rng=decoder_rng,
    )
    return decoded._replace(losses=add_losses(encoded.losses, decoded.losses))
