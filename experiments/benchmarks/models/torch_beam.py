"""Beam search in PyTorch that remembers keys and values the plain way.

Every layer has the keys and values of all hypotheses so far: a step concatenates its own to them,
and all are taken anew by `index_select` where hypotheses go on from others.
"""

from typing import Any

import numpy as np

from experiments.benchmarks.models.torch_transformer import TorchTransformer
from experiments.data.vocabulary import BOS, EOS, PAD


def beam_search(
    peer: TorchTransformer, source: np.ndarray, *, beam: int, length: int
) -> np.ndarray:
    """The likeliest answers that a beam finds, of so many tokens, of which only the last may end.

    Args:
        peer: the model.
        source: `[B, S]` ids, padded.
        beam: W, hypotheses that are followed.
        length: L, tokens of an answer.

    Returns:
        `[B, L]` ids.
    """
    import torch

    model, rows = peer.model.eval(), len(source)
    with torch.inference_mode():
        decoder = _Decoder(model, torch.from_numpy(source).long(), beam)
        start = torch.arange(rows)[:, None] * beam  # where the hypotheses of a row begin
        said = torch.full((rows * beam, 1), BOS)
        scores = torch.full((rows, beam), -torch.inf)
        scores[:, 0] = 0.0  # at first all are the same
        for index in range(length):
            log_probs = decoder.read(said[:, -1:]).log_softmax(-1)
            if index + 1 < length:
                log_probs[:, EOS] = -torch.inf
            totals = scores[..., None] + log_probs.view(rows, beam, -1)
            scores, picks = totals.flatten(1).topk(beam)
            parents = (start + picks // log_probs.shape[-1]).flatten()
            tokens = (picks % log_probs.shape[-1]).view(-1, 1)
            said = torch.cat([said.index_select(0, parents), tokens], 1)
            decoder.follow(parents)
        return said.view(rows, beam, -1)[:, 0, 1:].numpy()


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
