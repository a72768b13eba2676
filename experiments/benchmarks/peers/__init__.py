"""Adapters of other libraries, shared by benchmarks and conformance."""

import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TypeVar

from experiments.benchmarks.contender import first_line
from experiments.benchmarks.peers import flax_nnx, jax_nn, tokamax_api, torch_sdpa

T = TypeVar("T")

# Each module has `contenders()` and `candidates()`.
PEERS = {"jax.nn": jax_nn, "flax.nnx": flax_nnx, "torch": torch_sdpa, "tokamax": tokamax_api}


def of_peers(each: Callable[[ModuleType], Iterator[T]]) -> Iterator[T | tuple[str, str]]:
    """Yield what `each` yields for every peer; (library, reason) for those that cannot run here."""
    for library, peer in PEERS.items():
        try:
            yield from list(each(peer))
        except ModuleNotFoundError as error:
            yield library, "not installed" if error.name == library else str(error)
        except Exception as error:  # a broken installation of one peer does not stop the others
            traceback.print_exception(error)
            yield library, first_line(error)
