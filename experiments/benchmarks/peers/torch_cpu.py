"""PyTorch on all cores of this process, and the training step of its tutorials."""

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from experiments.environment import num_cores

if TYPE_CHECKING:  # optional package
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer


def load_torch() -> ModuleType:
    """Return torch, with one thread for each core.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    import torch

    torch.set_num_threads(num_cores())
    return torch


class TorchTrainer:
    """A torch module, its optimizer, learning-rate schedule and gradient clipping, on the CPU.

    Attributes:
        model: the module.
        num_parameters: of the module.
    """

    def __init__(
        self,
        model: "Module",
        optimizer: "Optimizer",
        schedule: Callable[[int], float],
        clip_norm: float,
    ) -> None:
        """Keep the parts of a training step.

        Args:
            model: to train.
            optimizer: of its parameters.
            schedule: step → factor of the learning rate.
            clip_norm: largest norm of the gradient.
        """
        import torch

        self.model, self._optimizer, self._clip_norm = model, optimizer, clip_norm
        self._schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
        self.num_parameters = sum(weights.numel() for weights in model.parameters())

    def update(self, loss: "Tensor") -> None:
        """Run one optimizer step on a loss, a scalar tensor."""
        import torch

        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        self._optimizer.step()
        self._schedule.step()
