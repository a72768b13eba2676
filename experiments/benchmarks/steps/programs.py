"""The programs that are profiled: training steps, and beam search."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from flax import nnx

from attention.decoding import GNMT, Beam, GenerationOutput, generate
from experiments.benchmarks.models.translating import Trial
from experiments.benchmarks.steps.shares import Share, profiled
from experiments.compilation import compiled
from experiments.data.vocabulary import BOS, EOS
from experiments.inference.by_rows import by_rows
from experiments.inference.translator import lengths_for


class Recorder:
    """Compiles functions, and keeps the text of each program.

    Attributes:
        texts: of the programs.
    """

    def __init__(self) -> None:
        """No program is compiled yet."""
        self.texts: list[str] = []

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is compiled for each shape of its arguments."""
        jitted, programs = compiled(function), {}

        def run(*arguments: Any) -> Any:  # noqa: ANN401 - of the function
            shapes = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), arguments)
            key = tuple(jax.tree.leaves(shapes))
            if key not in programs:
                programs[key] = jitted.lower(*arguments).compile()
                self.texts.append(programs[key].as_text())
            return programs[key](*arguments)

        return run


def training(trial: Trial, steps: int) -> list[Share]:
    """Return the shares of some training steps on one batch."""
    learner, batch = trial.task.learner, trial.task.training_batches()[0]
    state = learner.initial_state()
    program = learner.train_step.lower(state, batch).compile()

    def run() -> None:
        nonlocal state
        for _ in range(steps):
            state, _ = program(state, batch)
        jax.block_until_ready(state)

    return profiled(run, lambda: [program.as_text()])


def beam_search(trial: Trial) -> list[Share]:
    """Return the shares of the translation of the short test sentences, by one program."""
    task, stopping = trial.task, trial.stopping
    length, *_ = lengths_for(task.config.model.max_length)
    sources = [[*pair.source, EOS] for pair in task.ids("test") if len(pair.source) < length]
    decoding, recorder = task.config.decoding, Recorder()
    model = nnx.merge(task.learner.definition, trial.parameters)
    compile = partial(by_rows, jit=recorder)  # the same at each call, or it is compiled again

    def run() -> GenerationOutput:
        return generate(
            model,
            sources,
            strategy=Beam(decoding.num_beams, length_penalty=GNMT(decoding.length_penalty)),
            buckets=(length,),
            slots=task.sentences_at_once,
            max_tokens=min(stopping.max_tokens, 3 * length // 2),
            min_tokens=stopping.min_tokens,
            stop=stopping.stop,
            start=BOS,
            compile=compile,
        )

    return profiled(run, lambda: recorder.texts)
