"""Check all functions and write docs/CONFORMANCE.md: python -m experiments.conformance [file]."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax

from attention.testing import check_attention
from experiments.conformance import flax_nnx, jax_nn, ours, tokamax_api, torch_sdpa
from experiments.conformance.candidate import Candidate
from experiments.conformance.page import page

PAGE = Path("docs/CONFORMANCE.md")
PEERS: dict[str, Callable[[], Candidate]] = {
    "jax.nn.dot_product_attention": jax_nn.candidate,
    "flax.nnx.dot_product_attention": flax_nnx.candidate,
    "flax.nnx.MultiHeadAttention": flax_nnx.module_candidate,
    "torch.nn.functional.scaled_dot_product_attention": torch_sdpa.candidate,
    "tokamax.dot_product_attention": tokamax_api.candidate,
}


def main(argv: Sequence[str]) -> int:
    """Write the page and return the exit status: 1 if an implementation of this library fails."""
    checked, absent = [], []
    for candidate in candidates():
        if not isinstance(candidate, Candidate):
            absent.append(candidate)
            continue
        print(f"{candidate.name} …", file=sys.stderr, flush=True)
        checked.append((candidate, check_attention(candidate.function, candidate.supports)))
    device = jax.devices()[0]
    platform = f"{device.platform} ({device.device_kind}), jax {jax.__version__}"
    path = Path(argv[1]) if len(argv) > 1 else PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(checked, absent, platform), encoding="utf-8")
    return int(not all(report.ok for one, report in checked if one.version == ours.LIBRARY))


def candidates() -> Iterator[Candidate | tuple[str, str]]:
    """Yield all candidates; (name, reason) for those that cannot run here."""
    yield from ours.candidates()
    for name, candidate in PEERS.items():
        try:
            yield candidate()
        except ImportError:
            yield name, "not installed"


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)  # the rows about sharding need two devices
    sys.exit(main(sys.argv))
