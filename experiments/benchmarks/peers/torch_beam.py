"""Beam search in PyTorch with a simple cache of keys and values.

Each step concatenates its keys and values to the cache of every layer, and `index_select` reorders
the cache after a beam step. A row that is finished is dropped from the batch.
"""

from typing import TYPE_CHECKING

import numpy as np

from attention.decoding import StoppingCriteria
from experiments.benchmarks.peers.torch_transformer import TorchTransformer
from experiments.data.tokenizers import BOS, PAD

if TYPE_CHECKING:  # optional package
    from torch import Tensor
    from torch.nn import Module, MultiheadAttention


def beam_search(
    peer: TorchTransformer,
    source: np.ndarray,
    stopping: StoppingCriteria,
    *,
    num_beams: int,
    length_penalty: float,
) -> list[np.ndarray]:
    """Return the best hypothesis of each source, as `attention.decoding.Beam` defines it.

    Args:
        peer: the model.
        source: `[B, S]` ids, padded.
        stopping: with one end token.
        num_beams: W; a finished hypothesis makes the beam narrower.
        length_penalty: alpha of `attention.decoding.GNMT`.

    Returns:
        The ids of each hypothesis, with its end token if it has one.
    """
    import torch

    model, rows, beam = peer.model.eval(), len(source), num_beams
    ((end,),), alpha = stopping.stop, length_penalty
    with torch.inference_mode():
        decoder = _Decoder(model, torch.from_numpy(source).long(), beam)
        row_of = torch.arange(rows)  # number of each row that is left
        sequences = torch.full((rows * beam, 1), BOS)
        scores = torch.full((rows, beam), -torch.inf)
        scores[:, 0] = 0.0  # all hypotheses are equal before the first step
        width = torch.full((rows, 1), beam)  # hypotheses that are not finished
        best = torch.full((rows,), -torch.inf)
        outputs = [sequences[0]] * rows
        for index in range(stopping.max_tokens):
            log_probs = decoder.step(sequences[:, -1:]).log_softmax(-1)
            if index + 1 < stopping.min_tokens:
                log_probs[:, end] = -torch.inf
            totals = scores[..., None] + log_probs.view(len(scores), beam, -1)
            scores, picks = totals.flatten(1).topk(beam)
            scores[torch.arange(beam) >= width] = -torch.inf
            first = torch.arange(len(scores))[:, None] * beam  # hypothesis of each row
            parents = (first + picks // log_probs.shape[-1]).flatten()
            tokens = picks % log_probs.shape[-1]
            sequences = torch.cat([sequences.index_select(0, parents), tokens.view(-1, 1)], 1)

            ends = (tokens == end) | (index + 1 == stopping.max_tokens)
            ends &= scores > -torch.inf
            ended = torch.where(ends, scores / ((6 + index) / 6) ** alpha, -torch.inf)
            score, place = ended.max(1)
            for row in (score > best).nonzero()[:, 0].tolist():
                outputs[row_of[row]] = sequences[row * beam + place[row], 1:]
            best = torch.maximum(best, score)
            width -= ends.sum(1, keepdim=True)
            scores[ends] = -torch.inf
            highest, lengths = scores.amax(1), (index + 2, stopping.max_tokens)
            bounds = [highest / ((5 + length) / 6) ** alpha for length in lengths]
            # Where no longer hypothesis can score higher, the row is finished.
            left = (torch.maximum(*bounds) > best).nonzero()[:, 0]
            if not len(left):
                break
            if len(left) < len(scores):
                row_of, scores, width, best = (
                    array.index_select(0, left) for array in (row_of, scores, width, best)
                )
                hypotheses = (left[:, None] * beam + torch.arange(beam)).flatten()
                sequences, parents = (
                    array.index_select(0, hypotheses) for array in (sequences, parents)
                )
                decoder.drop_rows(hypotheses)
            decoder.gather_rows(parents)
        return [ids.numpy() for ids in outputs]


class _Decoder:
    """The decoder with the cached keys and values of all hypotheses."""

    def __init__(self, model: "Module", source: "Tensor", beam: int) -> None:
        padding = source == PAD
        encoder_output = model.transformer.encoder(
            model.embed(source), src_key_padding_mask=padding
        )
        encoder_output = encoder_output.repeat_interleave(beam, 0)
        self._model = model
        self._layers = model.transformer.decoder.layers
        self._visible = ~padding.repeat_interleave(beam, 0)[:, None, None]
        keys_and_values = slice(
            encoder_output.shape[-1], None
        )  # rows after the projection of queries
        self._cross = [
            _projected(layer.multihead_attn, encoder_output, keys_and_values)
            for layer in self._layers
        ]
        self._past = [
            _projected(layer.self_attn, encoder_output[:, :0], keys_and_values)
            for layer in self._layers
        ]

    def step(self, tokens: "Tensor") -> "Tensor":
        """Append the last token `[B, 1]` of each hypothesis and return logits `[B, V]`."""
        import torch

        length = self._past[0][0].shape[2]
        features = self._model.embed(tokens, slice(length, length + 1))
        for number, layer in enumerate(self._layers):
            query, *new = _projected(layer.self_attn, features, slice(None))
            past = zip(self._past[number], new, strict=True)
            self._past[number] = [torch.cat(both, 2) for both in past]
            attended = _attended(layer.self_attn, query, *self._past[number])
            features = layer.norm1(features + attended)
            (query,) = _projected(layer.multihead_attn, features, slice(features.shape[-1]))
            attended = _attended(layer.multihead_attn, query, *self._cross[number], self._visible)
            features = layer.norm2(features + attended)
            features = layer.norm3(features + layer.linear2(layer.linear1(features).relu()))
        return features[:, 0] @ self._model.tokens.weight.T

    def gather_rows(self, parents: "Tensor") -> None:
        """Reorder the cache: row i continues hypothesis `parents[i]`."""
        self._past = _selected(self._past, parents)

    def drop_rows(self, left: "Tensor") -> None:
        """Keep the keys and values of the encoder output of these hypotheses alone."""
        self._cross = _selected(self._cross, left)
        self._visible = self._visible.index_select(0, left)


def _selected(layers: list[list["Tensor"]], rows: "Tensor") -> list[list["Tensor"]]:
    return [[array.index_select(0, rows) for array in layer] for layer in layers]


def _projected(attention: "MultiheadAttention", inputs: "Tensor", rows: slice) -> list["Tensor"]:
    """Project `[B, T, D]` by some rows of the input projection: `[B, N, T, H]` for each D rows."""
    import torch

    weight, bias = attention.in_proj_weight[rows], attention.in_proj_bias[rows]
    parts = torch.nn.functional.linear(inputs, weight, bias).split(attention.embed_dim, -1)
    return [part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for part in parts]


def _attended(attention: "MultiheadAttention", *arguments: "Tensor") -> "Tensor":
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    return attention.out_proj(attend(*arguments).transpose(1, 2).flatten(2))
