"""How long translating takes, beside a beam search in PyTorch and beside CTranslate2.

All have the same parameters: those of a trained run, if one is named. Else they are drawn at
random; with those a model hardly ever ends what it says, so nobody may end early, and every answer
has the same number of tokens.

The search in PyTorch is ours to the letter and says the same to rounding. It takes many sentences
at once, which is soonest, and then one after another, the simple way.

That of CTranslate2 is ours while all answers are equally long. Else it keeps its beam as wide as it
was where ours narrows, takes sentences that have ended out of the batch where ours give their
places to others, and divides a score by n ** alpha, so that an answer in a dozen is another.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from attention.decoding import StoppingCriteria
from experiments.benchmarks.models import torch_beam
from experiments.benchmarks.models.ctranslate import make_ctranslator, named
from experiments.benchmarks.models.figure import Figure
from experiments.benchmarks.models.sentences import Sentences, load_sentences, padded
from experiments.benchmarks.models.torch_transformer import TorchTransformer
from experiments.clock import round_robin, seconds_of
from experiments.config import Config
from experiments.data.vocabulary import EOS, PAD
from experiments.training.session import restore
from experiments.workdir import Workdir

Ids = Sequence[int]
Translate = Callable[[], list[Ids]]  # the ids of every answer, its end included if it has one

# The batches with which a trained run translates soonest on two cores, as what is ours at once.
SENTENCES = 32  # of PyTorch, of 1 to 170
TOKENS = 512  # of CTranslate2, of 256 to 1,024


class Trial(NamedTuple):
    """What all translate.

    Attributes:
        found: the model, and the sentences.
        parameters: of the model.
        stopping: when a translation ends.
        described: how long answers are, in words.
    """

    found: Sentences
    parameters: nnx.State
    stopping: StoppingCriteria
    described: str


def measure(config: ConfigDict, cache: Path) -> Iterator[Figure]:
    """Translates the test sentences, from ids to ids, in turn with one peer and then the other.

    Compiling is not counted, nor is making the models.

    Args:
        config: `translation` and `translating` of the benchmark, and its `rounds`.
        cache: where subwords are kept.

    Raises:
        FileNotFoundError: no sentences are named.
        ImportError: torch or ctranslate2 is not installed.
        UsageError: as `load_trial`.
    """
    trial = load_trial(config, cache)
    number, beam = len(trial.found.test), config.translation.decoding.num_beams
    our_way = ours(trial)
    our_way()  # compiles
    for peer, make, limit in (
        (f"the same search in PyTorch, {SENTENCES} at once", in_torch, 1 / 10),
        ("the same search in PyTorch, one at a time", partial(in_torch, at_once=1), 1 / 10),
        ("CTranslate2 in float32", in_ctranslate, 1.0),
    ):
        our_time, their_time, alike = _compared(our_way, make(trial), config)
        what = f"{number:,} sentences, beam of {beam}, {trial.described}"
        parts = f"{our_time:.1f} s ÷ {their_time:.1f} s ({alike:,} answers alike)"
        yield Figure(f"translating {what} ÷ {peer}", our_time / their_time, limit, parts)


def load_trial(config: ConfigDict, cache: Path) -> Trial:
    """Reads the sentences, and the parameters of the run that is named, if one is.

    Args:
        config: as in `measure`.
        cache: where subwords are kept.

    Raises:
        FileNotFoundError: no sentences are named.
        UsageError: the run is of another configuration, or has no checkpoint.
    """
    settings, length = Config.read(config.translation.to_dict()), config.translating.length
    if not config.translating.workdir:
        found = load_sentences(settings, cache)
        stopping = StoppingCriteria(length, stop=EOS, min_tokens=length, pad=PAD)
        parameters = found.task.learner.initial_state().parameters
        return Trial(found, parameters, stopping, f"{length} tokens each")
    run = Workdir(config.translating.workdir)
    settings = run.as_trained(settings)
    found = load_sentences(settings, cache, run)
    parameters = restore(run, found.task).state.parameters
    return Trial(found, parameters, found.task.stopping, "by a trained model")


def _compared(ours: Translate, theirs: Translate, config: ConfigDict) -> tuple[float, float, int]:
    """Median seconds of both, in turn, and how many answers are the same."""
    ways = {"ours": ours, "theirs": theirs}
    said: dict[str, list[Ids]] = {}
    warm_ups = {
        name: seconds_of(lambda name=name, way=way: said.update({name: way()}))
        for name, way in ways.items()
    }
    seconds = config.translating.seconds
    times = round_robin(ways, warm_ups, seconds=seconds, rounds=config.rounds)
    pairs = zip(said["ours"], said["theirs"], strict=True)
    alike = sum(list(one) == list(other) for one, other in pairs)
    return float(np.median(times["ours"])), float(np.median(times["theirs"])), alike


def ours(trial: Trial) -> Translate:
    """Return the translation by the translator of the task, with the criteria of the trial."""
    task, sources = trial.found.task, [pair.source for pair in trial.found.test]
    translator = task.make_translator(trial.stopping)
    size = task.sentences_at_once
    return lambda: translator.translate_ids(trial.parameters, sources, batch_size=size)


def in_torch(trial: Trial, at_once: int = SENTENCES) -> Translate:
    """By `torch_beam`, sentences of like length together, each batch as long as its longest."""
    config, test = trial.found.task.config, trial.found.test
    peer = TorchTransformer(config, trial.found.vocab_size)
    peer.load(trial.parameters)
    order = sorted(range(len(test)), key=lambda place: len(test[place].source))
    batches = [order[start : start + at_once] for start in range(0, len(order), at_once)]
    decoding = config.decoding
    settings = {"num_beams": decoding.num_beams, "length_penalty": decoding.length_penalty}

    def translate() -> list[Ids]:
        answers: list[Ids] = [()] * len(test)
        for members in batches:
            source = padded([test[place] for place in members]).source
            said = torch_beam.beam_search(peer, source, trial.stopping, **settings)
            for place, ids in zip(members, said, strict=True):
                answers[place] = ids
        return answers

    return translate


def in_ctranslate(trial: Trial) -> Translate:
    """By CTranslate2, which sorts and divides the sentences itself."""
    config = trial.found.task.config
    with TemporaryDirectory() as directory:
        translator = make_ctranslator(config.model, trial.parameters, Path(directory))
    sentences = [named([*pair.source, EOS]) for pair in trial.found.test]

    def translate() -> list[Ids]:
        answers = translator.translate_batch(
            sentences,
            beam_size=config.decoding.num_beams,
            length_penalty=config.decoding.length_penalty,
            max_batch_size=TOKENS,
            batch_type="tokens",
            min_decoding_length=max(trial.stopping.min_tokens - 1, 0),  # before the end
            max_decoding_length=trial.stopping.max_tokens,
            return_end_token=True,
        )
        return [[int(token) for token in one.hypotheses[0]] for one in answers]

    return translate
