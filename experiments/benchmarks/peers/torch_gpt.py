"""The model of `configs/char_lm.py` as a PyTorch loop, the way its tutorials write one."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.benchmarks.peers.torch_sdpa import load_torch
from experiments.config import Config
from experiments.config.parts import DecoderModel
from experiments.data.pipeline import TextBatch

if TYPE_CHECKING:  # optional package
    from torch import Tensor
    from torch.nn import Module

IGNORED = -100  # a label that torch leaves out of its losses


class TorchGPT:
    """A GPT on the CPU and its training: AdamW, a schedule and clipped gradients."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        """Make the model of a config with weight decay of all parameters, and its optimizer.

        `torch.compile` and the fused optimizer are used, as its performance guide recommends. If
        torch is not installed, this is a ModuleNotFoundError.
        """
        torch, train = load_torch(), config.train

        def schedule(step: int) -> float:
            if step < train.warmup_steps:
                return step / train.warmup_steps
            progress = (step - train.warmup_steps) / (train.steps - train.warmup_steps)
            return (1 + math.cos(math.pi * progress)) / 2

        torch.manual_seed(config.seed)
        self._model, self._clip_norm = _make_model(config.model, vocab_size), train.clip_norm
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=train.learning_rate,
            betas=(train.beta1, train.beta2),
            eps=train.epsilon,
            weight_decay=train.weight_decay,
            fused=True,
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, schedule)
        self._compiled = torch.compile(self._loss)

    def learn(self, batches: Sequence[TextBatch]) -> None:
        """Run a training step on each batch."""
        torch = load_torch()
        for batch in batches:
            self._optimizer.zero_grad()
            ids, labels = (torch.from_numpy(array).long() for array in (batch.inputs, batch.labels))
            self._compiled(ids, labels).backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm)
            self._optimizer.step()
            self._schedule.step()

    def loss(self, batches: Sequence[TextBatch]) -> float:
        """Return the mean loss of the tokens of batches."""
        torch, losses = load_torch(), []
        for batch in batches:
            labels = np.where(batch.counted, batch.labels, IGNORED)
            with torch.no_grad():
                ids, labels = (torch.from_numpy(array).long() for array in (batch.inputs, labels))
                losses.append(float(self._loss(ids, labels)))
        return float(np.average(losses, weights=[batch.counted.sum() for batch in batches]))

    def _loss(self, ids: "Tensor", labels: "Tensor") -> "Tensor":
        from torch.nn.functional import cross_entropy

        logits = self._model(ids)
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def _make_model(config: DecoderModel, vocab_size: int) -> "Module":
    import torch
    from torch import nn

    width, heads = config.width, config.num_heads
    head_width = width // heads
    half = torch.arange(head_width // 2) / (head_width // 2)
    angles = torch.outer(torch.arange(config.max_length), config.rotary.base**-half)
    cos, sin = angles.cos(), angles.sin()  # [T, H / 2]

    def rotate(vectors: torch.Tensor) -> torch.Tensor:  # [B, N, T, H]
        first, second = vectors.chunk(2, dim=-1)
        c, s = cos[: vectors.shape[-2]], sin[: vectors.shape[-2]]
        return torch.cat([first * c - second * s, first * s + second * c], dim=-1)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width, eps=1e-6)
            self.feed_forward_norm = nn.LayerNorm(width, eps=1e-6)
            self.mix = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.feed_forward = nn.Sequential(
                nn.Linear(width, config.hidden, bias=False),
                nn.GELU(approximate="tanh"),
                nn.Linear(config.hidden, width, bias=False),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows, length, _ = x.shape
            mixed = self.mix(self.norm(x)).view(rows, length, 3, heads, head_width)
            query, key, value = mixed.permute(2, 0, 3, 1, 4)
            attended = nn.functional.scaled_dot_product_attention(
                rotate(query), rotate(key), value, is_causal=True
            )
            x = x + self.out(attended.transpose(1, 2).reshape(rows, length, width))
            return x + self.feed_forward(self.feed_forward_norm(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocab_size, width)
            nn.init.normal_(self.tokens.weight, std=width**-0.5)
            self.blocks = nn.Sequential(*(Block() for _ in range(config.decoder_layers)))
            self.norm = nn.LayerNorm(width, eps=1e-6)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            features = self.norm(self.blocks(self.tokens(ids) * width**0.5))
            return features @ self.tokens.weight.T

    return GPT()
