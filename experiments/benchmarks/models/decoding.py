"""Time of decoding: a cache beside recomputation, and beam search beside greedy decoding."""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.decoding import (
    Beam,
    GenerationOutput,
    Greedy,
    StoppingCriteria,
    Strategy,
    decode,
    generate,
)
from attention.modules import EncoderDecoder, TransformerConfig, unstack_layers
from experiments.benchmarks.clock import round_robin
from experiments.benchmarks.models.figure import Figure, Timed

VOCABULARY = 200
FIRST = 3  # first id that is neither padding nor an end token


def measure(config: ConfigDict) -> Iterator[Figure]:
    """Decode with random parameters, always the same number of tokens.

    Args:
        config: `decoding` of the benchmark, and its `rounds`.
    """
    settings = config.decoding
    length, beam = settings.length, settings.num_beams
    for batch in settings.batches:
        runs = programs(settings, batch)
        times = round_robin(runs, seconds=settings.seconds, rounds=config.rounds)
        median = {name: float(np.median(taken)) for name, taken in times.items()}
        where = f"{length} tokens, B {batch}"
        for name, ours, theirs, limit in (
            (f"greedy, cached ÷ recomputed at each step, {where}", "greedy", "recomputed", 1 / 5),
            (f"beam search with {beam} beams ÷ greedy, {where}", "beam", "greedy", 6.0),
        ):
            yield Figure(name, limit, Timed(median[ours]), Timed(median[theirs]))


def programs(settings: ConfigDict, batch: int) -> dict[str, Callable[[], GenerationOutput]]:
    """Return greedy decoding with and without a cache, and beam search, compiled when first run."""
    length, beam = settings.length, settings.num_beams
    model = EncoderDecoder.from_config(
        TransformerConfig(**settings.model),
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        rngs=nnx.Rngs(0),
    )
    source = jax.random.randint(jax.random.key(1), (batch, length), FIRST, VOCABULARY)
    stopping = StoppingCriteria(length, stop=1, min_tokens=length)

    def with_cache(strategy: Strategy) -> Callable[[], GenerationOutput]:
        options = {"max_tokens": length, "min_tokens": length, "stop": 1, "start": FIRST}

        @jax.jit  # so that both are one call of a compiled program
        def run(model: EncoderDecoder, source: Array) -> GenerationOutput:
            return generate(model, source, strategy=strategy, **options)

        return lambda: run(model, source)

    @jax.jit
    def recomputed(model: EncoderDecoder, source: Array) -> GenerationOutput:
        encoder_output = model.encode(source, mask=None).features
        model = unstack_layers(model)

        def step(state: tuple[Array, Array], tokens: Array) -> tuple[Array, tuple[Array, Array]]:
            read, index = state  # [B, T], [B]
            read = read.at[jnp.arange(batch), index].set(tokens)
            # One shape for every prefix, so each is computed at its full length.
            features = model.decode(read, encoder_output, encoder_mask=None).features
            last = jnp.take_along_axis(features, index[:, None, None], axis=1)[:, 0]
            return model.logits(last), (read, index + 1)

        state = jnp.zeros((batch, length), jnp.int32), jnp.zeros(batch, jnp.int32)
        start = jnp.full(batch, FIRST, jnp.int32)
        return decode(step, state, start, Greedy(), stopping)

    runs = {
        "greedy": with_cache(Greedy()),
        "recomputed": lambda: recomputed(model, source),
        "beam": with_cache(Beam(beam, n_best=beam)),
    }
    return {name: partial(_finished, run) for name, run in runs.items()}


def _finished(run: Callable[[], GenerationOutput]) -> GenerationOutput:
    return jax.block_until_ready(run())
