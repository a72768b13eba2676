"""The benchmark of attention: measure contenders in turn on chosen cases, and report."""

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from attention.modules.numbers import check_number
from experiments.benchmarks import ours
from experiments.benchmarks.cases import CASES, Case, exact, inputs, relative_errors, select
from experiments.benchmarks.contender import LIBRARY, Contender, Program, RefusalError
from experiments.benchmarks.peers import flax_nnx, jax_nn, tokamax_api, torch_sdpa
from experiments.benchmarks.report import Deviation, Measurement, attention_page, save
from experiments.errors import as_usage_errors
from experiments.processes import free_memory
from experiments.workdir import Workdir

REST = 0.01  # seconds; threads of a library keep spinning for a while after its last work


def benchmark(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Measure, and write `benchmark.json` and `benchmark.md` to the workdir.

    There is no data, so `cache` is unused.

    Raises:
        UsageError: before anything is written, a config that cannot run.
    """
    del cache
    with as_usage_errors():
        check_number("rounds", config.rounds, at_least=1)
        check_number("seconds", config.seconds, above=0)
    available, absent = contenders()
    names = [*available, *(name for name, _ in absent)]
    names = select("contenders", config.contenders, names)
    timed, compared = (
        [CASES[name] for name in select(field, config[field], list(CASES))]
        for field in ("cases", "accuracy")
    )
    workdir.save_config(config)
    chosen = [available[name] for name in names if name in available]
    measurements = [one for case in timed for one in measure(case, chosen, config)]
    deviations = [one for case in compared for one in compare(case, chosen)]
    record = {
        "measurements": [one._asdict() for one in measurements],
        "deviations": [one._asdict() for one in deviations],
        "absent": [(name, reason) for name, reason in absent if name in names],
    }
    save(record, attention_page, workdir.path / "benchmark.json", config.page)


def contenders() -> tuple[dict[str, Contender], list[tuple[str, str]]]:
    """Return ours and those of the peers by name; (library, reason) for those not usable here."""
    usable, absent = [*ours.contenders()], []
    for peer in (jax_nn, flax_nnx, torch_sdpa, tokamax_api):
        try:
            usable += peer.contenders()
        except ModuleNotFoundError as error:
            absent.append((error.name, "not installed"))
    return {contender.name: contender for contender in usable}, absent


def measure(
    case: Case, contenders: Sequence[Contender], config: ConfigDict
) -> Iterator[Measurement]:
    """Measure all contenders of a case in turn, within the limits of `seconds_in_turn`."""
    print(f"{case.name} …", file=sys.stderr, flush=True)
    numbers, programs, reasons = inputs(case), {}, {}
    for contender in contenders:
        try:
            programs[contender.name] = prepared(contender, case, numbers)
        except Exception as error:  # the other contenders are measured
            reasons[contender.name] = _reason(error, contender, case)
    runs = {name: program.run for name, program in programs.items()}
    times = seconds_in_turn(runs, seconds=config.seconds, rounds=config.rounds)
    chosen = ours.chosen(case)
    for name in (contender.name for contender in contenders):
        one = Measurement(case.name, case.batch, name, name == chosen)
        if name in reasons:
            yield one._replace(reason=reasons[name])
        else:
            median, scratch = float(np.median(times[name])), programs[name].scratch
            yield one._replace(seconds=median, calls=len(times[name]), scratch=scratch)


def prepared(contender: Contender, case: Case, numbers: np.ndarray) -> Program:
    """Return the program of a case after its first call.

    Raises:
        RefusalError: it needs more memory than is free; swapping would slow down the others.
    """
    program = contender.prepare(case, numbers)
    if (program.scratch or 0) > free_memory():
        raise RefusalError(f"needs {program.scratch / 2**30:.1f} GiB of memory, more than is free")
    program.run()
    return program


def seconds_in_turn(
    runs: Mapping[str, Callable[[], object]], *, seconds: float, rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of several functions in each round, by name.

    In its turn, a function is called twice, and the second call is timed: the first one also waits
    for memory that another one has given back.

    Args:
        runs: functions by name.
        seconds: a function takes part until its times add up to this, but at least three times.
        rounds: most times of a function.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            if len(times[name]) < 3 or sum(times[name]) < seconds:
                run()
                time.sleep(REST)
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return times


def compare(case: Case, contenders: Sequence[Contender]) -> Iterator[Deviation]:
    """Compare contenders with float64, for one example; without those that refuse it or fail."""
    print(f"error of {case.name} …", file=sys.stderr, flush=True)
    case = replace(case, batch=1, gradient=True)
    numbers = inputs(case)
    expected = exact(case, numbers)
    for contender in contenders:
        try:
            program = contender.prepare(case, numbers)
            output, *gradients = relative_errors(program.arrays(program.run()), expected)
        except Exception as error:  # the other contenders are compared
            _reason(error, contender, case)
        else:
            yield Deviation(case.name, contender.name, output, max(gradients))


def _reason(error: Exception, contender: Contender, case: Case) -> str:
    """Return why a contender of another library has no result; raise an exception of ours."""
    if isinstance(error, RefusalError):
        return str(error)
    if contender.version == LIBRARY:
        raise error
    print(f"{contender.name}, {case.name}:", file=sys.stderr)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
