"""The model of `configs/char_lm.py` as a plain PyTorch loop, the way its tutorials write one."""

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from ml_collections import ConfigDict

from experiments.benchmarks.peers.torch_cpu import TorchTrainer, load_torch, tensors

if TYPE_CHECKING:  # optional package
    from torch import Tensor
    from torch.nn import Module

IGNORED = -100  # a label that torch leaves out of its losses


class TorchGPT(TorchTrainer):
    """A GPT and its training step on one batch."""

    def __init__(self, config: ConfigDict, vocab_size: int, *, tuned: bool = False) -> None:
        """Make the model of a config like `configs/char_lm.py`, and its optimizer."""
        train = config.train

        def schedule(step: int) -> float:
            if step < train.warmup_steps:
                return step / train.warmup_steps
            progress = (step - train.warmup_steps) / (train.steps - train.warmup_steps)
            return (1 + math.cos(math.pi * progress)) / 2

        make_model = partial(_make_model, config.model, vocab_size)
        super().__init__(config, make_model, schedule, tuned=tuned)
        self._compiled_loss = self.compiled(self._loss)

    def learn(self, inputs: np.ndarray, labels: np.ndarray) -> None:
        """Run one training step on ids `[B, T]`."""
        self.update(self._compiled_loss, (inputs, labels))

    def loss(self, inputs: np.ndarray, labels: np.ndarray) -> float:
        """Return the mean loss of the tokens of a batch."""
        with load_torch().no_grad():
            return float(self._loss(*tensors((inputs, labels))))

    def _loss(self, inputs: "Tensor", labels: "Tensor") -> "Tensor":
        from torch.nn.functional import cross_entropy

        logits = self.model(inputs)
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def _make_model(config: ConfigDict, vocab_size: int) -> "Module":
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
