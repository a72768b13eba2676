"""PyTorch on all cores of this process, and the training step of its tutorials."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from ml_collections import ConfigDict

from experiments.devices import num_cores

if TYPE_CHECKING:  # optional package
    from torch import Tensor
    from torch.nn import Module


def load_torch() -> ModuleType:
    """Return torch, with one thread for each core.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    import torch

    torch.set_num_threads(num_cores())
    return torch


class TorchTrainer:
    """A torch module on the CPU and its training: AdamW, a schedule and clipped gradients.

    Attributes:
        model: the module.
        num_parameters: of the module.
    """

    def __init__(
        self,
        config: ConfigDict,
        make_model: Callable[[], "Module"],
        schedule: Callable[[int], float],
        *,
        tuned: bool = False,
    ) -> None:
        """Make the model and its optimizer.

        Args:
            config: with `seed` and `train` of our training.
            make_model: makes the module.
            schedule: step → factor of the learning rate.
            tuned: use `torch.compile` and the fused optimizer, as its performance guide does.

        Raises:
            ModuleNotFoundError: torch is not installed.
        """
        torch, train = load_torch(), config.train
        torch.manual_seed(config.seed)
        self.model = make_model()
        self.num_parameters = sum(weights.numel() for weights in self.model.parameters())
        self._clip_norm, self._tuned = train.clip_norm, tuned
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=train.learning_rate,
            betas=(train.beta1, train.beta2),
            eps=train.epsilon,
            weight_decay=train.weight_decay,
            fused=tuned,
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, schedule)

    def compiled(self, function: Callable[..., "Tensor"]) -> Callable[..., "Tensor"]:
        """Return the function, compiled when it is first called if the training is tuned."""
        return load_torch().compile(function) if self._tuned else function

    def update(self, loss: Callable[..., "Tensor"], arrays: Sequence[np.ndarray]) -> float:
        """Run one optimizer step on the loss of some arrays of ids, and return the loss."""
        self.model.train()
        self._optimizer.zero_grad()
        found = loss(*tensors(arrays))
        found.backward()
        load_torch().nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        self._optimizer.step()
        self._schedule.step()
        return found.item()


def tensors(arrays: Sequence[np.ndarray]) -> list["Tensor"]:
    """Return arrays of ids as tensors."""
    torch = load_torch()
    return [torch.from_numpy(ids).long() for ids in arrays]
