"""What decoding costs: with a cache beside reading the prefix again, and several hypotheses."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.decoding import Answer, Rules, beam_search, cached, greedy, recompute
from attention.modules.config import TransformerConfig
from attention.modules.transformer import Caches, EncoderDecoder
from attention.modules.unrolled import unrolled
from experiments.benchmarks.models.figure import Figure
from experiments.clock import round_robin, seconds_of

VOCABULARY = 200
FIRST = 3  # a token that is neither padding nor the end


def measure(config: ConfigDict) -> Iterator[Figure]:
    """Decodes with random parameters, which say exactly as many tokens as they are told to.

    Args:
        config: `decoding` of the benchmark, and its `rounds`.
    """
    settings = config.decoding
    length, beam = settings.length, settings.beam
    for batch in settings.batches:
        ways = programs(settings, batch)
        for run in ways.values():
            run()  # compiles
        warm_ups = {name: seconds_of(run) for name, run in ways.items()}
        times = round_robin(ways, warm_ups, seconds=settings.seconds, rounds=config.rounds)
        median = {name: float(np.median(taken)) for name, taken in times.items()}
        where = f"{length} tokens, B {batch}"
        for name, ours, theirs, limit in (
            (f"greedy, a cache ÷ all read again each time, {where}", "greedy", "recomputed", 1 / 5),
            (f"beam of {beam}, the {beam} best ÷ greedy, {where}", "beam", "greedy", 6.0),
        ):
            parts = f"{1e3 * median[ours]:.1f} ms ÷ {1e3 * median[theirs]:.1f} ms"
            yield Figure(name, median[ours] / median[theirs], limit, parts)


def programs(settings: ConfigDict, batch: int) -> dict[str, Callable[[], Answer]]:
    """Greedy with a cache, the same without, and beam search, compiled when they first run."""
    length, beam = settings.length, settings.beam
    model = EncoderDecoder(
        TransformerConfig(**settings.model),
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        rngs=nnx.Rngs(0),
    )
    source = jax.random.randint(jax.random.key(1), (batch, length), FIRST, VOCABULARY)
    start = jnp.full(batch, FIRST, jnp.int32)
    rules = Rules(end=1, pad=0, max_length=length, min_length=length)

    def remembering(model: EncoderDecoder, source: Array) -> tuple[Callable[..., object], Caches]:
        memory = model.remember(model.encode(source, mask=None))
        model = unrolled(model)

        def read(tokens: Array, cache: Caches) -> tuple[Array, Caches]:
            features, _, cache = model.decode(tokens, memory, memory_mask=None, cache=cache)
            return model.logits(features), cache

        return cached(read), model.new_cache((batch,), length)

    def forgetting(model: EncoderDecoder, source: Array) -> tuple[Callable[..., object], object]:
        memory = model.remember(model.encode(source, mask=None))
        model = unrolled(model)

        def score(tokens: Array, index: Array) -> Array:
            features, _ = model.decode(tokens, memory, memory_mask=None)
            return model.logits(jax.lax.dynamic_index_in_dim(features, index, 1, keepdims=False))

        # One shape serves every prefix, so each is read at its full length.
        return recompute(score, batch_size=batch, max_length=length)

    decoders = {
        "greedy": lambda model, source: greedy(*remembering(model, source), start, rules),
        "recomputed": lambda model, source: greedy(*forgetting(model, source), start, rules),
        "beam": lambda model, source: beam_search(
            *remembering(model, source), start, rules, beam=beam, n_best=beam
        ),
    }

    def ready(decode: Callable[[EncoderDecoder, Array], Answer]) -> Callable[[], Answer]:
        run = jax.jit(decode)
        return lambda: jax.block_until_ready(run(model, source))

    return {name: ready(decode) for name, decode in decoders.items()}
