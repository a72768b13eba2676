"""The model of `configs/char_lm.py` as a plain PyTorch loop, the way its tutorials write one."""

import math
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.environment import num_cores


class TorchGPT:
    """Trains by a batch at a time, on the CPU."""

    def __init__(self, config: ConfigDict, vocab_size: int) -> None:
        """Makes the model and its optimizer.

        Args:
            config: of a language model: `model` and `train`, as `configs/char_lm.py` has them.
            vocab_size: V.

        Raises:
            ImportError: torch is not installed.
        """
        import torch

        torch.set_num_threads(num_cores())
        torch.manual_seed(config.seed)
        train = config.train
        self._config = train
        self._model = _make_model(config.model, vocab_size)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=train.learning_rate,
            betas=(train.beta1, train.beta2),
            eps=train.epsilon,
            weight_decay=train.weight_decay,
        )
        self._step = 0
        self.num_parameters = sum(weights.numel() for weights in self._model.parameters())

    def learn(self, inputs: np.ndarray, labels: np.ndarray) -> None:
        """One step."""
        import torch

        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        loss = self._loss(inputs, labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.clip_norm)
        self._optimizer.step()
        self._step += 1

    def loss(self, inputs: np.ndarray, labels: np.ndarray) -> float:
        """The mean over the tokens of a batch, without learning from it."""
        import torch

        with torch.no_grad():
            return float(self._loss(inputs, labels))

    def _loss(self, inputs: np.ndarray, labels: np.ndarray) -> Any:  # noqa: ANN401 - a tensor
        import torch

        inputs, labels = (torch.from_numpy(ids).long() for ids in (inputs, labels))
        logits = self._model(inputs)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def _learning_rate(self) -> float:
        config, step = self._config, self._step
        if step < config.warmup_steps:
            return config.learning_rate * step / config.warmup_steps
        progress = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
        return config.learning_rate * (1 + math.cos(math.pi * progress)) / 2


def _make_model(config: ConfigDict, vocab_size: int) -> Any:  # noqa: ANN401 - a torch module
    import torch
    from torch import nn

    width, heads = config.width, config.num_heads
    head_width = width // heads
    half = torch.arange(head_width // 2) / (head_width // 2)
    angles = torch.outer(torch.arange(config.max_length), config.rotary.base**-half)
    cos, sin = angles.cos(), angles.sin()  # [T, H / 2]

    def turn(vectors: torch.Tensor) -> torch.Tensor:  # [B, N, T, H]
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
            seen = nn.functional.scaled_dot_product_attention(
                turn(query), turn(key), value, is_causal=True
            )
            x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
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
