"""The model of `configs/multi30k.py` as a plain PyTorch loop around `nn.Transformer`."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from experiments.benchmarks.models.sentences import PaddedPairs
from experiments.benchmarks.peers.torch_cpu import TorchTrainer, load_torch
from experiments.data.packing import PackedPairs
from experiments.data.tokenizers import PAD

if TYPE_CHECKING:  # optional package
    from torch import Tensor
    from torch.nn import Module


class TorchTransformer(TorchTrainer):
    """An `nn.Transformer` with embeddings, and its training step on one batch."""

    def __init__(self, config: ConfigDict, vocab_size: int, *, tuned: bool = False) -> None:
        """Make the model of a config like `configs/multi30k.py`, its loss and its optimizer."""
        warmup = config.train.warmup_steps  # linear, then 1/√step

        def schedule(step: int) -> float:
            return min(step / warmup, (warmup / max(step, 1)) ** 0.5)

        make_model = partial(_make_model, config.model, vocab_size)
        super().__init__(config, make_model, schedule, tuned=tuned)
        self._criterion = load_torch().nn.CrossEntropyLoss(
            ignore_index=PAD, label_smoothing=config.train.label_smoothing
        )
        self._loss, self._packed_loss = map(self.compiled, (self._loss, self._packed_loss))

    def learn(self, batch: PaddedPairs | PackedPairs) -> float:
        """Run one training step and return the mean loss of its tokens."""
        if isinstance(batch, PackedPairs):
            return self.update(self._packed_loss, [*batch.source, *batch.target])
        return self.update(self._loss, batch)

    def _loss(self, source: "Tensor", inputs: "Tensor", labels: "Tensor") -> "Tensor":
        return self._criterion(self.model(source, inputs).flatten(0, 1), labels.flatten())

    def _packed_loss(self, *arrays: "Tensor") -> "Tensor":
        """Return the loss of the fields of both sides of `PackedPairs`."""
        _, source, *source_rows, inputs, labels, segments, positions = arrays
        logits = self.model.forward_packed(source, source_rows, inputs, (segments, positions))
        return self._criterion(logits.flatten(0, 1), labels.flatten())

    def load(self, parameters: nnx.State) -> None:
        """Copy the parameters of our model."""
        torch, weights = load_torch(), torch_weights(parameters)
        self.model.load_state_dict(
            {name: torch.from_numpy(array.copy()) for name, array in weights}
        )


def torch_weights(parameters: nnx.State) -> list[tuple[str, np.ndarray]]:
    """Return our parameters of an `EncoderDecoder` by the names of `nn.Transformer`."""
    found = [("tokens.weight", _array(parameters["target_embedding"]["tokens"]))]
    for side, attentions in (
        ("encoder", {"self_attention": "self_attn"}),
        ("decoder", {"self_attention": "self_attn", "cross_attention": "multihead_attn"}),
    ):
        for number, layer in enumerate(_layers(parameters[side]["layers"]["blocks"])):
            into = f"transformer.{side}.layers.{number}"
            for ours, name in attentions.items():
                sublayer = layer[ours]["sublayer"]
                projections = [_linear(sublayer[each]) for each in ("query", "key", "value")]
                kernels, biases = zip(*projections, strict=True)
                kernel, bias = _linear(sublayer["output"])
                found += [
                    (f"{into}.{name}.in_proj_weight", np.concatenate(kernels)),
                    (f"{into}.{name}.in_proj_bias", np.concatenate(biases)),
                    (f"{into}.{name}.out_proj.weight", kernel),
                    (f"{into}.{name}.out_proj.bias", bias),
                ]
            for name, ours in (("linear1", "up"), ("linear2", "down")):
                kernel, bias = _linear(layer["feed_forward"]["sublayer"][ours])
                found += [(f"{into}.{name}.weight", kernel), (f"{into}.{name}.bias", bias)]
            for place, ours in enumerate((*attentions, "feed_forward"), start=1):
                norm = layer[ours]["norm"]
                found += [
                    (f"{into}.norm{place}.weight", norm["scale"]),
                    (f"{into}.norm{place}.bias", norm["bias"]),
                ]
    return found


def _layers(blocks: nnx.State) -> list[dict]:
    """Return the parameters of each layer of a stack of equal layers, stacked or not."""
    every = [jax.tree.map(np.asarray, nnx.to_pure_dict(blocks[index])) for index in blocks]
    if every[0]["feed_forward"]["norm"]["scale"].ndim == 1:
        return every
    (stacked,) = every
    number = len(stacked["feed_forward"]["norm"]["scale"])
    return [jax.tree.map(lambda leaf, at=at: leaf[at], stacked) for at in range(number)]


def _linear(layer: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel `[out, in]` and the bias `[out]` of a layer, heads side by side."""
    kernel, bias = layer["kernel"], layer["bias"]
    return kernel.reshape(-1, bias.size).T, bias.ravel()


def _array(parameter: nnx.Variable) -> np.ndarray:
    return np.asarray(parameter[...])


def _make_model(config: ConfigDict, vocab_size: int) -> "Module":
    import torch
    from torch import nn

    width = config.width
    half = 10_000.0 ** -(torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(config.max_length), half)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocab_size, width)
            nn.init.normal_(self.tokens.weight, std=width**-0.5)
            self.transformer = nn.Transformer(
                width,
                config.num_heads,
                config.encoder_layers,
                config.decoder_layers,
                config.hidden,
                config.dropout,
                layer_norm_eps=1e-6,
                batch_first=True,
            )
            # Layers end with a norm in any case; dropout is applied where our recipe applies it.
            self.transformer.encoder.norm = self.transformer.decoder.norm = None
            for part in self.transformer.modules():
                if isinstance(part, nn.MultiheadAttention):
                    part.dropout = config.attention_dropout
                elif isinstance(part, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                    part.dropout = nn.Identity()  # after the ReLU
            self.dropout = nn.Dropout(config.dropout)
            positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
            self.register_buffer("positions", positions, persistent=False)

        def embed(
            self, ids: torch.Tensor, positions: torch.Tensor | slice | None = None
        ) -> torch.Tensor:  # [B, T]
            if positions is None:
                positions = slice(ids.shape[1])
            return self.dropout(self.tokens(ids) * width**0.5 + self.positions[positions])

        def forward(self, source: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
            padding = source == PAD
            features = self.transformer(
                self.embed(source),
                self.embed(inputs),
                tgt_mask=nn.Transformer.generate_square_subsequent_mask(inputs.shape[1]),
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,  # padding is at the end, so targets need no other mask
            )
            return features @ self.tokens.weight.T

        def forward_packed(
            self,
            source: torch.Tensor,
            source_rows: Sequence[torch.Tensor],
            inputs: torch.Tensor,
            target_rows: Sequence[torch.Tensor],
        ) -> torch.Tensor:
            (source_segments, source_positions), (segments, positions) = source_rows, target_rows
            length = inputs.shape[1]
            features = self.transformer(
                self.embed(source, source_positions),
                self.embed(inputs, positions),
                src_mask=hidden(source_segments, source_segments),
                tgt_mask=hidden(segments, segments)
                | torch.ones(length, length, dtype=torch.bool).triu(1),
                memory_mask=hidden(segments, source_segments),
            )
            return features @ self.tokens.weight.T

    def hidden(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return where a query must not attend, `[B * N, T, S]`, from segments."""
        # Padding attends to everything: without a visible key, its softmax would be NaN.
        different = (queries[:, :, None] != keys[:, None, :]) & (queries[:, :, None] != 0)
        return different.repeat_interleave(config.num_heads, 0)

    return Model()
