"""The benchmark: choose cases and contenders, measure them in turn, report."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ml_collections import ConfigDict

from experiments.benchmarks import flax_nnx, jax_nn, ours, tokamax_api, torch_sdpa
from experiments.benchmarks.cases import CASES, Case, inputs
from experiments.benchmarks.contender import Contender, Program
from experiments.benchmarks.deviation import exact, relative_errors
from experiments.benchmarks.picture import draw_times
from experiments.benchmarks.products import products
from experiments.benchmarks.report import page, rows
from experiments.benchmarks.results import Deviation, Measurement, Results
from experiments.benchmarks.selection import selected
from experiments.clock import round_robin, seconds_of
from experiments.environment import environment, free_memory
from experiments.errors import UsageError, as_usage_errors, check_at_least, check_positive
from experiments.files import write_whole
from experiments.workdir import Workdir

LIBRARIES: dict[str, Callable[[], Iterator[Contender]]] = {
    ours.LIBRARY: ours.contenders,
    "jax.nn": jax_nn.contenders,
    "flax.nnx": flax_nnx.contenders,
    "torch": torch_sdpa.contenders,
    "tokamax": tokamax_api.contenders,
}


def benchmark(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Measures, and writes `benchmark.csv`, `benchmark.md` and `benchmark.png` to the workdir.

    Args:
        config: of the run.
        workdir: where all that the run makes goes.
        cache: unused: there is no data.
    """
    del cache
    check(config)
    workdir.claim(config)
    everybody, absent = contenders()
    names = selected("contenders", config.contenders, [*everybody, *(name for name, _ in absent)])
    chosen = [everybody[name] for name in names if name in everybody]
    where, measurements = environment(), []
    for case in _cases(config.cases):
        measurements += measure(case, chosen, config)
        write_whole(workdir.path / "benchmark.csv", rows(measurements, where))  # if it is stopped
    errors = [one for case in _cases(config.accuracy) for one in deviations(case, chosen)]
    results = Results(measurements, errors)
    absent = [(name, why) for name, why in absent if name in names]
    text = page(results, list(products()), absent, where, _command(config))
    write_whole(workdir.path / "benchmark.md", text)
    draw_times(results, workdir.path / "benchmark.png")
    if config.page:
        write_whole(Path(config.page), text)
    print(text)
    print(f"everything is in {workdir.path}")


def check(config: ConfigDict) -> None:
    """Refuses, before anything is written, a configuration that cannot run.

    Raises:
        UsageError: in one sentence.
    """
    if config.page and not Path(config.page).parent.is_dir():
        raise UsageError(f"page={config.page} has no folder to be written to")
    with as_usage_errors():
        check_at_least("rounds", config.rounds, 1)
        for name in ("seconds", "memory_gib"):
            check_positive(name, config[name])
        selected("cases", config.cases, list(CASES))
        selected("accuracy", config.accuracy, list(CASES))
        everybody, absent = contenders()
        selected("contenders", config.contenders, [*everybody, *(name for name, _ in absent)])


def contenders() -> tuple[dict[str, Contender], list[tuple[str, str]]]:
    """Ours and the peers by name; (library, why not) for those that cannot be asked here."""
    found, absent = {}, []
    for library, each in LIBRARIES.items():
        try:
            found |= {one.name: one for one in each()}
        except ImportError:
            absent.append((library, "not installed"))
    return found, absent


def measure(
    case: Case, contenders: Sequence[Contender], config: ConfigDict
) -> Iterator[Measurement]:
    """Times all contenders of a case in turn.

    Args:
        case: what to compute.
        contenders: by whom.
        config: says for how long, and with how much memory.
    """
    print(f"{case.name} …", file=sys.stderr, flush=True)
    numbers, programs, warm_ups, reasons = inputs(case), {}, {}, {}
    for one in contenders:
        try:
            programs[one.name], warm_ups[one.name] = _ready(one.prepare(case, numbers), config)
        except Exception as error:  # whatever another library says, the others are measured
            reasons[one.name] = _sentence(error)
    runs = {name: program.run for name, program in programs.items()}
    times = round_robin(runs, warm_ups, seconds=config.seconds, rounds=config.rounds)
    chosen = ours.chosen(case)
    for one in contenders:
        known = {"case": case, "contender": one.name, "version": one.version}
        known["chosen"] = one.name == chosen
        if one.name in reasons:
            yield Measurement(**known, reason=reasons[one.name])
        else:
            yield Measurement(**known, times=times[one.name], scratch=programs[one.name].scratch)


def _ready(program: Program, config: ConfigDict) -> tuple[Program, float]:
    """A program that has run once, and the seconds of that, if there is the memory for it."""
    allowed = min(config.memory_gib * 2**30, free_memory())  # to swap would stop everybody
    if program.scratch is not None and program.scratch > allowed:
        needed, allowed = program.scratch / 2**30, allowed / 2**30
        raise MemoryError(f"it needs {needed:.1f} GiB of scratch memory and may take {allowed:.1f}")
    return program, seconds_of(program.run)


def deviations(case: Case, contenders: Sequence[Contender]) -> Iterator[Deviation]:
    """How far every contender that can compute a case is from float64, for one example."""
    print(f"error of {case.name} …", file=sys.stderr, flush=True)
    case = replace(case, batch=1, gradient=True)
    numbers, chosen = inputs(case), ours.chosen(case)
    true = exact(case, numbers)
    for one in contenders:
        try:
            program = one.prepare(case, numbers)
            output, *gradients = relative_errors(program.arrays(program.run()), true)
        except Exception:  # the same reason stands with its times
            continue
        yield Deviation(case, one.name, one.name == chosen, output, max(gradients))


def _cases(words: str) -> list[Case]:
    return [CASES[name] for name in selected("cases", words, list(CASES))]


def _sentence(error: Exception) -> str:
    """The first line of an exception, with its type where that says more than "refused"."""
    text = str(error).strip().partition("\n")[0]
    return text or type(error).__name__


def _command(config: ConfigDict) -> str:
    """The command line of this configuration, every field written out."""
    fields = [
        f"    --config.{name}='{value}'" for name, value in config.items() if name != "experiment"
    ]
    return " \\\n".join(["python run.py --mode=benchmark", *fields])
