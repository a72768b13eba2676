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

    Args:
        config: of the run.
        workdir: folder of all results.
        cache: folder of generated data.

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

    The first step of each, which compiles, is timed by itself. The times exclude reading the data
    and the validation at the end.

    Args:
        config: `characters`, a config of a language model.
        cache: folder of generated data.
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
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for first, last in pairwise(sorted({0, *range(1, steps, STEPS_IN_TURN), steps})):
        turn = [batches[step] for step in range(first, last)]
        for name, run in (("ours", learn), ("theirs", peer.learn)):
            start = time.perf_counter()
            run(turn)
            times[name].append(time.perf_counter() - start)
    losses = {
        "ours": learner.losses(state.with_ema().parameters, validation)["nll"],
        "theirs": peer.loss(validation),
    }
    totals = {
        name: (sum(rest), f"first step {first:.1f} s; validation loss {losses[name]:.3f}")
        for name, (first, *rest) in times.items()
    }
    title = f"training on characters, {steps - 1:,} steps after the first ÷ PyTorch"
    yield title, totals["ours"], totals["theirs"]


def translating(config: ConfigDict, cache: Path) -> Iterator[Figure]:
    """Translate the test split by a trained run, from ids to ids, in turn with CTranslate2.

    Its search keeps the beam at full width where ours narrows, and divides a score by n ** alpha,
    so some outputs differ. Times exclude compilation and the construction of the models.

    Args:
        config: `run`, the workdir of a translator with post-norm layers and sinusoidal positions,
            which CTranslate2 has too; `seconds` and `rounds` of the measurement.
        cache: folder of generated data.
    """
    from experiments.benchmarks.peers.ctranslate import CTranslator

    run = Run.load(Workdir(config.run), cache)
    task, decoding = run.task, run.config.decoding
    sources = [pair.source for pair in task.ids("test")]
    outputs: dict[str, list[Sequence[int]]] = {}

    def ours() -> None:
        outputs["ours"] = task.translate_ids(run.state.parameters, sources)

    name = (
        f"translating {len(sources):,} sentences, beam of {decoding.num_beams} "
        "÷ CTranslate2 in float32"
    )
    peer = CTranslator(run.model, run.config.model)

    def theirs() -> None:
        outputs["theirs"] = peer.translate([[*ids, EOS] for ids in sources], decoding)

    times = seconds_in_turn(
        {"ours": ours, "theirs": theirs}, seconds=config.seconds, rounds=config.rounds
    )
    medians = {name: float(np.median(seconds)) for name, seconds in times.items()}
    pairs = zip(outputs["ours"], outputs["theirs"], strict=True)
    equal = sum([*one] == [*other] for one, other in pairs)
    note = f"{equal:,} equal outputs"
    yield name, (medians["ours"], "median"), (medians["theirs"], f"median; {note}")
