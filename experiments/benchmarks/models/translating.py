"""Translation time, beside a beam search in PyTorch and beside CTranslate2.

All implementations use the same parameters: those of a trained run, if one is named, else random
ones. Random parameters hardly ever produce the end token, so it is then forbidden and every output
has the same number of tokens.

The PyTorch search is the same algorithm as ours, with the same outputs up to rounding. It drops
finished sentences from the batch. It is timed with the fastest batch size, and with one sentence at
a time.

The search of CTranslate2 is the same as ours while all outputs have the same length. Otherwise it
keeps the beam at full width where ours narrows, removes finished sentences from the batch where
ours refills their slots, and divides a score by n ** alpha, so about one output in twelve differs.
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
from experiments.benchmarks.models.figure import Figure, Peer, Timed
from experiments.benchmarks.models.ours import (
    Translation,
    check_translation,
    load_translation,
    make_translate,
    trained_config,
)
from experiments.benchmarks.models.sentences import padded
from experiments.benchmarks.peers import torch_beam
from experiments.benchmarks.peers.ctranslate import make_ctranslator, token_names
from experiments.benchmarks.peers.torch_transformer import TorchTransformer
from experiments.clock import round_robin
from experiments.config import Config
from experiments.data.vocabulary import EOS, PAD
from experiments.errors import UsageError
from experiments.trained import restore
from experiments.workdir import Workdir

Ids = Sequence[int]
Translate = Callable[[], list[Ids]]  # returns the ids of every output, with its end token if any

# The fastest batch sizes of the peers for a trained run on two cores.
SENTENCES = 32  # for PyTorch, of 1 to 170
TOKENS = 512  # for CTranslate2, of 256 to 1,024


class Trial(NamedTuple):
    """A model and the sentences to translate.

    Attributes:
        task: the model, and the sentences of its test split.
        parameters: of the model.
        stopping: when a translation ends.
        described: the length of the outputs, in words.
    """

    task: Translation
    parameters: nnx.State
    stopping: StoppingCriteria
    described: str


def measure(config: ConfigDict, cache: Path) -> Iterator[Figure]:
    """Translate the test sentences, from ids to ids, with ours and each peer in turn.

    Times exclude compilation and the construction of the models.

    Args:
        config: `translation` and `translating` of the benchmark, and its `rounds`.
        cache: folder of learned subwords.

    Raises:
        UsageError: as `load_trial`.
    """
    trial = load_trial(config, cache)
    number, beam = len(trial.task.ids("test")), trial.task.config.decoding.num_beams
    ours = make_translate(*trial[:3])
    ours()  # compiles
    for name, make, limit in (
        (f"the same search in PyTorch, {SENTENCES} at once", in_torch, 1 / 10),
        ("the same search in PyTorch, one at a time", partial(in_torch, at_once=1), 1 / 10),
        ("CTranslate2 in float32", in_ctranslate, 1.0),
    ):
        what = f"{number:,} sentences, beam of {beam}, {trial.described}"
        times = _compared(ours, Peer(partial(make, trial)), config)
        yield Figure(f"translating {what} ÷ {name}", limit, *times)


def check_trial(config: ConfigDict) -> None:
    """Check the sentences, and the run in `translating.workdir`, if they are named.

    Raises:
        UsageError: as `load_trial`, or a run is named without sentences.
    """
    settings, run = Config.read(config.translation.to_dict()), config.translating.workdir
    if run and not settings.data.path:
        raise UsageError(f"translating.workdir={run} needs sentences: translation.data.path")
    if settings.data.path:
        check_translation(trained_config(Workdir(run), settings) if run else settings)


def load_trial(config: ConfigDict, cache: Path) -> Trial:
    """Read the sentences, and the parameters of the run in `translating.workdir`, if any.

    Args:
        config: as in `measure`.
        cache: folder of learned subwords.

    Raises:
        UsageError: the run has another task, text or model, or has no checkpoint.
    """
    settings, length = Config.read(config.translation.to_dict()), config.translating.length
    if not config.translating.workdir:
        task = load_translation(settings, cache)
        stopping = StoppingCriteria(length, stop=EOS, min_tokens=length, pad=PAD)
        parameters = task.learner.eval_state(task.learner.initial_state()).parameters
        return Trial(task, parameters, stopping, f"{length} tokens each")
    run = Workdir(config.translating.workdir)
    settings = trained_config(run, settings)
    task = load_translation(settings, cache, run)
    return Trial(task, restore(run, task).state.parameters, task.stopping, "by a trained model")


def _compared(ours: Translate, peer: Peer, config: ConfigDict) -> tuple[Timed, Timed]:
    """Return the median seconds of both, called in turn, and the number of equal outputs."""
    functions = {"ours": ours, "theirs": partial(peer.run, lambda translate: translate())}
    outputs: dict[str, list[Ids]] = {}
    runs = {
        name: lambda name=name, function=function: outputs.update({name: function()})
        for name, function in functions.items()
    }
    times = round_robin(runs, seconds=config.translating.seconds, rounds=config.rounds)
    our_time, their_time = (float(np.median(taken)) for taken in times.values())
    if peer.failure:
        return Timed(our_time), Timed(None, peer.failure)
    pairs = zip(outputs["ours"], outputs["theirs"], strict=True)
    equal = sum(list(one) == list(other) for one, other in pairs)
    return Timed(our_time), Timed(their_time, f"{equal:,} equal outputs")


def in_torch(trial: Trial, at_once: int = SENTENCES) -> Translate:
    """Return the translation by `torch_beam`, in batches of sentences sorted by length."""
    config, test = trial.task.config, [*trial.task.ids("test")]
    peer = TorchTransformer(config, len(trial.task.tokenizers.target))
    peer.load(trial.parameters)
    order = sorted(range(len(test)), key=lambda index: len(test[index].source))
    batches = [order[start : start + at_once] for start in range(0, len(order), at_once)]
    decoding = config.decoding
    settings = {"num_beams": decoding.num_beams, "length_penalty": decoding.length_penalty}

    def translate() -> list[Ids]:
        outputs: list[Ids] = [()] * len(test)
        for members in batches:
            source = padded([test[index] for index in members]).source
            found = torch_beam.beam_search(peer, source, trial.stopping, **settings)
            for index, ids in zip(members, found, strict=True):
                outputs[index] = ids
        return outputs

    return translate


def in_ctranslate(trial: Trial) -> Translate:
    """Return the translation by CTranslate2, which sorts and batches the sentences itself."""
    config = trial.task.config
    with TemporaryDirectory() as directory:
        translator = make_ctranslator(config.model, trial.parameters, Path(directory))
    sentences = [token_names([*pair.source, EOS]) for pair in trial.task.ids("test")]

    def translate() -> list[Ids]:
        outputs = translator.translate_batch(
            sentences,
            beam_size=config.decoding.num_beams,
            length_penalty=config.decoding.length_penalty,
            max_batch_size=TOKENS,
            batch_type="tokens",
            min_decoding_length=max(trial.stopping.min_tokens - 1, 0),  # without the end token
            max_decoding_length=trial.stopping.max_tokens,
            return_end_token=True,
        )
        return [[int(token) for token in one.hypotheses[0]] for one in outputs]

    return translate
