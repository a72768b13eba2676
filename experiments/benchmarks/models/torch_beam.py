"""Beam search in PyTorch that remembers keys and values the plain way.

Every layer has the keys and values of all hypotheses so far: a step concatenates its own to them,
and all are taken anew by `index_select` where hypotheses go on from others.
"""

from typing import Any

import numpy as np

from attention.decoding import StoppingCriteria
from experiments.benchmarks.models.torch_transformer import TorchTransformer
from experiments.data.vocabulary import BOS, PAD


def beam_search(
    peer: TorchTransformer,
    source: np.ndarray,
    stopping: StoppingCriteria,
    *,
    num_beams: int,
    length_penalty: float,
) -> list[np.ndarray]:
    """Return the best answers of a beam, as `attention.decoding.Beam` defines them.

    Args:
        peer: the model.
        source: `[B, S]` ids, padded.
        stopping: with one id that ends an answer.
        num_beams: W; a hypothesis that ends makes the beam narrower.
        length_penalty: alpha of `attention.decoding.GNMT`.

    Returns:
        The ids of each answer, its end included if it has one.
    """
    import torch

    model, rows, beam = peer.model.eval(), len(source), num_beams
    ((end,),), alpha = stopping.stop, length_penalty
    with torch.inference_mode():
        decoder = _Decoder(model, torch.from_numpy(source).long(), beam)
        start = torch.arange(rows)[:, None] * beam  # where the hypotheses of a row begin
        said = torch.full((rows * beam, 1), BOS)
        scores = torch.full((rows, beam), -torch.inf)
        scores[:, 0] = 0.0  # at first all are the same
        width = torch.full((rows, 1), beam)
        best = torch.full((rows,), -torch.inf)
        answers = [said[0]] * rows
        for index in range(stopping.max_tokens):
            log_probs = decoder.read(said[:, -1:]).log_softmax(-1)
            if index + 1 < stopping.min_tokens:
                log_probs[:, end] = -torch.inf
            totals = scores[..., None] + log_probs.view(rows, beam, -1)
            scores, picks = totals.flatten(1).topk(beam)
            scores[torch.arange(beam) >= width] = -torch.inf
            parents = (start + picks // log_probs.shape[-1]).flatten()
            tokens = picks % log_probs.shape[-1]
            said = torch.cat([said.index_select(0, parents), tokens.view(-1, 1)], 1)

            ends = (tokens == end) | (index + 1 == stopping.max_tokens)
            ends &= scores > -torch.inf
            ended = torch.where(ends, scores / ((6 + index) / 6) ** alpha, -torch.inf)
            score, place = ended.max(1)
            for row in (score > best).nonzero()[:, 0].tolist():
                answers[row] = said[row * beam + place[row], 1:]
            best = torch.maximum(best, score)
            width -= ends.sum(1, keepdim=True)
            scores[ends] = -torch.inf
            likeliest, ahead = scores.amax(1), (index + 2, stopping.max_tokens)
            bounds = [likeliest / ((5 + length) / 6) ** alpha for length in ahead]
            scores[torch.maximum(*bounds) <= best] = -torch.inf  # nothing to come is better
            if not (scores > -torch.inf).any():
                break
            decoder.follow(parents)
        return [ids.numpy() for ids in answers]


class _Decoder:
    """What has been read of every hypothesis; `Any` is a torch tensor or module."""

    def __init__(self, model: Any, source: Any, beam: int) -> None:  # noqa: ANN401 - of torch, an extra that no type here can name
        padding = source == PAD
        memory = model.transformer.encoder(model.embed(source), src_key_padding_mask=padding)
        memory = memory.repeat_interleave(beam, 0)
        self._model = model
        self._layers = model.transformer.decoder.layers
        self._visible = ~padding.repeat_interleave(beam, 0)[:, None, None]
        behind = slice(memory.shape[-1], None)  # the projection of queries
        self._memory = [_projected(layer.multihead_attn, memory, behind) for layer in self._layers]
        self._past = [_projected(layer.self_attn, memory[:, :0], behind) for layer in self._layers]

    def read(self, tokens: Any) -> Any:  # noqa: ANN401 - of torch, an extra that no type here can name
        """The next token `[B, 1]` of every hypothesis → the logits of those after it, `[B, V]`."""
        import torch

        features = self._model.embed(tokens, start=self._past[0][0].shape[2])
        for number, layer in enumerate(self._layers):
            query, *new = _projected(layer.self_attn, features, slice(None))
            past = zip(self._past[number], new, strict=True)
            self._past[number] = [torch.cat(both, 2) for both in past]
            seen = _attended(layer.self_attn, query, *self._past[number])
            features = layer.norm1(features + seen)
            (query,) = _projected(layer.multihead_attn, features, slice(features.shape[-1]))
            seen = _attended(layer.multihead_attn, query, *self._memory[number], self._visible)
            features = layer.norm2(features + seen)
            features = layer.norm3(features + layer.linear2(layer.linear1(features).relu()))
        return features[:, 0] @ self._model.tokens.weight.T

    def follow(self, parents: Any) -> None:  # noqa: ANN401 - of torch, an extra that no type here can name
        """Goes on from these hypotheses, `[B]`."""
        self._past = [[array.index_select(0, parents) for array in layer] for layer in self._past]


def _projected(attention: Any, inputs: Any, rows: slice) -> list[Any]:  # noqa: ANN401 - of torch, an extra that no type here can name
    """What these rows of the projection make of `[B, T, D]`: each D of them is `[B, N, T, H]`."""
    import torch

    weight, bias = attention.in_proj_weight[rows], attention.in_proj_bias[rows]
    parts = torch.nn.functional.linear(inputs, weight, bias).split(attention.embed_dim, -1)
    return [part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for part in parts]


def _attended(attention: Any, query: Any, key: Any, value: Any, mask: Any = None) -> Any:  # noqa: ANN401 - of torch, an extra that no type here can name
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    return attention.out_proj(attend(query, key, value, mask).transpose(1, 2).flatten(2))
