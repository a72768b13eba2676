"""How long translating takes, beside a plain beam search in PyTorch and beside CTranslate2.

All have the same parameters, drawn at random. With those a model hardly ever ends what it says, so
nobody may end early: every answer has the same number of tokens, each search does the same work,
and what they say is the same to rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.decoding import Answer, Rules, beam_search
from experiments.benchmarks.clock import round_robin, seconds_of
from experiments.benchmarks.models import torch_beam
from experiments.benchmarks.models.ctranslate import make_ctranslator, named
from experiments.benchmarks.models.figure import Figure
from experiments.benchmarks.models.sentences import Sentences, load_sentences, padded
from experiments.benchmarks.models.torch_transformer import TorchTransformer
from experiments.data.batching import Batch, Buckets, EncodedPair, evaluation_batches
from experiments.data.vocabulary import EOS
from experiments.evaluation.translator import say
from experiments.training.sharding import by_rows

Translate = Callable[[], np.ndarray]  # the ids of every answer, [sentences, length]

TOKENS = 256  # of a batch of CTranslate2: of 256 to 2,048 the quickest on two cores


def measure(config: ConfigDict, cache: Path) -> Iterator[Figure]:
    """Translates the test sentences, from ids to ids, in turn with one peer and then the other.

    Compiling is not counted, nor is making the models.

    Args:
        config: `translation` and `translating` of the benchmark, and its `rounds`.
        cache: where subwords are kept.

    Raises:
        FileNotFoundError: no sentences are named.
        ImportError: torch or ctranslate2 is not installed.
    """
    length, beam = config.translating.length, config.translation.decoding.beam
    found = load_sentences(config.translation, cache)
    parameters = found.task.learner.initial_state().parameters
    our_way = ours(found, parameters, length)
    our_way()  # compiles
    for peer, make, limit in (
        ("a plain beam search in PyTorch", in_torch, 1 / 10),
        ("CTranslate2 in float32", in_ctranslate, 1.0),
    ):
        our_time, their_time, alike = _compared(our_way, make(found, parameters, length), config)
        what = f"{len(found.test):,} sentences, beam of {beam}, {length} tokens each"
        parts = f"{our_time:.1f} s ÷ {their_time:.1f} s ({alike:,} answers alike)"
        yield Figure(f"translating {what} ÷ {peer}", our_time / their_time, limit, parts)


def _compared(ours: Translate, theirs: Translate, config: ConfigDict) -> tuple[float, float, int]:
    """Median seconds of both, in turn, and how many answers are the same."""
    ways = {"ours": ours, "theirs": theirs}
    said: dict[str, np.ndarray] = {}
    warm_ups = {
        name: seconds_of(lambda name=name, way=way: said.update({name: way()}))
        for name, way in ways.items()
    }
    seconds = config.translating.seconds
    times = round_robin(ways, warm_ups, seconds=seconds, rounds=config.rounds)
    alike = int(np.sum((said["ours"] == said["theirs"]).all(axis=1)))
    return float(np.median(times["ours"])), float(np.median(times["theirs"])), alike


def ours(found: Sentences, parameters: nnx.State, length: int) -> Translate:
    """As `Translator` does it, with its batches, but that nothing ends early."""
    config, learner = found.task.config, found.task.learner

    def search(
        step: object, state: object, start: Array, rules: Rules, **options: object
    ) -> Answer:
        rules = replace(rules, min_length=length)
        return beam_search(step, state, start, rules, beam=config.decoding.beam, **options)

    @by_rows
    def translate(parameters: nnx.State, source: Array, source_lengths: Array) -> Array:
        model = nnx.merge(learner.definition, parameters)
        return say(model, source, source_lengths, length, search).tokens[:, 0]

    batches = _batches(found, found.task.tokens_translated)
    return lambda: _in_order(
        (members, translate(parameters, batch.source, batch.source_lengths))
        for members, batch in batches
    )


def in_torch(found: Sentences, parameters: nnx.State, length: int) -> Translate:
    """By `torch_beam`, in batches as large as those learned from, as long as their longest."""
    config = found.task.config
    peer = TorchTransformer(config, found.vocab_size)
    peer.load(parameters)
    batches = [
        (members, padded([found.test[place] for place in members]).source)
        for members, _ in _batches(found, config.train.batch_tokens)
    ]
    return lambda: _in_order(
        (members, torch_beam.beam_search(peer, source, beam=config.decoding.beam, length=length))
        for members, source in batches
    )


def in_ctranslate(found: Sentences, parameters: nnx.State, length: int) -> Translate:
    """By CTranslate2, which sorts and divides the sentences itself."""
    config = found.task.config
    with TemporaryDirectory() as directory:
        translator = make_ctranslator(config.model, parameters, Path(directory))
    sentences = [named([*pair.source, EOS]) for pair in found.test]

    def translate() -> np.ndarray:
        answers = translator.translate_batch(
            sentences,
            beam_size=config.decoding.beam,
            max_batch_size=TOKENS,
            batch_type="tokens",
            min_decoding_length=length,
            max_decoding_length=length,
        )
        return np.array([[int(token) for token in one.hypotheses[0]] for one in answers])

    return translate


def _batches(found: Sentences, tokens: int) -> list[tuple[np.ndarray, Batch]]:
    config = found.task.config
    longest = config.model.max_length
    pairs = [EncodedPair(pair.source, ()) for pair in found.test]
    lengths = {max(config.data.bucket_lengths), longest}
    return [*evaluation_batches(Buckets(pairs, sorted(lengths), max(tokens, longest)))]


def _in_order(answers: Iterator[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Answers in the order of their sentences."""
    places, said = zip(
        *((members, np.asarray(ids)[: len(members)]) for members, ids in answers), strict=True
    )
    return np.concatenate(said)[np.argsort(np.concatenate(places))]
