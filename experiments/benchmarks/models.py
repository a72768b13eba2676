"""The benchmark of models: training beside PyTorch, translation beside CTranslate2."""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.benchmarks.attention import seconds_in_turn
from experiments.benchmarks.cases import select
from experiments.benchmarks.report import models_page, save
from experiments.config import Config
from experiments.data.pipeline import TextBatch
from experiments.data.tokenizers import EOS
from experiments.registry import TASKS
from experiments.trained import Run
from experiments.workdir import Workdir

STEPS_IN_TURN = 50
# Ours ÷ theirs in words, and seconds with a note of ours and of theirs.
Figure = tuple[str, tuple[float, str], tuple[float, str]]


def benchmark(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Measure, and write `models.json` and `models.md` to the workdir.

    Raises:
        UsageError: before anything is written, an unknown part, or a run that cannot be used.
    """
    parts = {"training": training, "translating": translating}
    names = select("parts", config.parts, list(parts))
    figures, absent = [], []
    if "translating" in names and not config.run:
        names.remove("translating")
        absent.append("translating: no run is named by --config.run=FOLDER")
    workdir.save_config(config)
    for name in names:
        try:
            figures += parts[name](config, cache)
        except ModuleNotFoundError as error:  # PyTorch and CTranslate2 are optional
            absent.append(f"{name}: {error.name} is not installed")
    record = {"figures": figures, "absent": absent}
    save(record, models_page, workdir.path / "models.json", config.page)


def training(config: ConfigDict, cache: Path) -> Iterator[Figure]:
    """Train a small GPT and a PyTorch loop of the same model on the same batches, in turn.

    The model is that of `config.characters`. The first step of each, which compiles, is timed by
    itself. The times exclude reading the data and the validation at the end.
    """
    from experiments.benchmarks.peers.torch_gpt import TorchGPT

    settings = Config.read(config.characters.to_dict())
    task = TASKS[settings.task].prepare(settings, cache)
    batches, validation = task.training_batches(), [*task.batches("validation")]
    learner, steps = task.learner, settings.train.steps
    state = learner.initial_state()

    def learn(turn: Sequence[TextBatch]) -> None:
        nonlocal state
        for batch in turn:
            state, _ = learner.train_step(state, batch)
        jax.block_until_ready(state)

    peer = TorchGPT(settings, len(task.tokenizers.source))
    times: tuple[list[float], list[float]] = [], []
    for first, last in pairwise(sorted({0, *range(1, steps, STEPS_IN_TURN), steps})):
        turn = [batches[step] for step in range(first, last)]
        for seconds, run in zip(times, (learn, peer.learn), strict=True):
            start = time.perf_counter()
            run(turn)
            seconds.append(time.perf_counter() - start)
    losses = (
        learner.losses(state.with_ema().parameters, validation)["nll"],
        peer.loss(validation),
    )
    totals = (
        (sum(rest), f"first step {first:.1f} s; validation loss {loss:.3f}")
        for (first, *rest), loss in zip(times, losses, strict=True)
    )
    yield f"training on characters, {steps - 1:,} steps after the first ÷ PyTorch", *totals


def translating(config: ConfigDict, cache: Path) -> Iterator[Figure]:
    """Translate the test split by a trained run, from ids to ids, in turn with CTranslate2.

    `config.run` is the workdir of a translator with post-norm layers and sinusoidal positions,
    which CTranslate2 has too. Its search keeps the beam at full width where ours narrows, and
    divides a score by n ** alpha, so some outputs differ. Times exclude compilation and the
    construction of the models.
    """
    from experiments.benchmarks.peers.ctranslate import CTranslator

    run = Run.load(Workdir(config.run), cache)
    task, decoding = run.task, run.config.decoding
    sources = [pair.source for pair in task.ids("test")]
    peer = CTranslator(run.model, run.config.model)
    outputs: dict[str, list[Sequence[int]]] = {}

    def ours() -> None:
        outputs["ours"] = task.translate_ids(run.state.parameters, sources)

    def theirs() -> None:
        outputs["theirs"] = peer.translate([[*ids, EOS] for ids in sources], decoding)

    limits = {"seconds": config.seconds, "rounds": config.rounds}
    times = seconds_in_turn({"ours": ours, "theirs": theirs}, **limits)
    own, other = (float(np.median(seconds)) for seconds in times.values())
    pairs = zip(outputs["ours"], outputs["theirs"], strict=True)
    equal = sum([*one] == [*other] for one, other in pairs)
    size = f"{len(sources):,} sentences, beam of {decoding.num_beams}"
    name = f"translating {size} ÷ CTranslate2 in float32"
    yield name, (own, "median"), (other, f"median; {equal:,} equal outputs")
