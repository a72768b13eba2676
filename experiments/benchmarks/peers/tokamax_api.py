"""tokamax.dot_product_attention: flags for causal and windows."""

from collections.abc import Iterator
from functools import partial
from importlib.metadata import version

import jax
from absl import flags

from experiments.benchmarks.contender import Contender, jax_peer
from experiments.benchmarks.peers.jax_nn import FLAGS

SUPPORTS = {"scale", "grouped", "value_width", "leading_axes"}


def contenders() -> Iterator[Contender]:
    """Yield both implementations for every platform, and the default one on an accelerator.

    Raises:
        ModuleNotFoundError: tokamax is not installed.
    """
    import tokamax

    if not flags.FLAGS.is_parsed():  # tokamax would parse the command line for its own flags
        flags.FLAGS.mark_as_parsed()
    attend = tokamax.dot_product_attention
    functions = {
        "tokamax:xla_chunked": partial(attend, implementation="xla_chunked"),
        "tokamax:xla": partial(attend, implementation="xla"),
    }
    if jax.default_backend() != "cpu":
        functions["tokamax"] = attend
    for name, function in functions.items():
        yield jax_peer(name, f"tokamax {version('tokamax')}", function, FLAGS, SUPPORTS)
