"""The benchmark: choose cases and contenders, measure them in turn, report."""

import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from ml_collections import ConfigDict

from experiments.benchmarks import ours
from experiments.benchmarks.cases import CASES, Case, inputs
from experiments.benchmarks.contender import (
    LIBRARY,
    Contender,
    Program,
    RefusalError,
    first_line,
)
from experiments.benchmarks.deviation import exact, relative_errors
from experiments.benchmarks.peers import of_peers
from experiments.benchmarks.picture import draw_times
from experiments.benchmarks.products import products
from experiments.benchmarks.record import as_json, check_page, origin, save
from experiments.benchmarks.report import page
from experiments.benchmarks.results import Deviation, Measurement, Results
from experiments.benchmarks.selection import selected
from experiments.clock import round_robin, seconds_of_second
from experiments.environment import free_memory
from experiments.errors import as_usage_errors, check_at_least, check_positive
from experiments.files import write_whole
from experiments.workdir import Workdir


def benchmark(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Measure, and write `benchmark.json`, `benchmark.md` and `benchmark.png` to the workdir.

    Args:
        config: of the run.
        workdir: folder of all results.
        cache: unused: there is no data.

    Raises:
        ExceptionGroup: of the exceptions of our contenders, after the page is written.
    """
    del cache
    check(config)
    workdir.save_config(config)
    available, absent = contenders()
    names = selected("contenders", config.contenders, [*available, *(name for name, _ in absent)])
    chosen = [available[name] for name in names if name in available]
    measurements: list[Measurement] = []
    errors: list[Exception] = []
    record, file = {"origin": origin()}, workdir.path / "benchmark.json"
    for case in _cases(config.cases):
        measurements += measure(case, chosen, config, errors)
        # Written after each case, so that a stopped run keeps what it measured.
        record["measurements"] = [asdict(one) for one in measurements]
        write_whole(file, as_json(record))
    accuracy = _cases(config.accuracy)
    compared = [one for case in accuracy for one in deviations(case, chosen, errors)]
    found = [one for one in compared if isinstance(one, Deviation)]
    record["deviations"] = [asdict(one) for one in found]
    record["products"] = [one._asdict() for one in products(with_torch="torch" in available)]
    record["absent"] = [(name, why) for name, why in absent if name in names]
    record["absent"] += [one for one in compared if not isinstance(one, Deviation)]
    record["failed"] = [f"{error.__notes__[-1]}: {first_line(error)}" for error in errors]
    text = save(record, page, file, config.page)
    draw_times(Results(measurements, found), workdir.path / "benchmark.png")
    print(text)
    print(f"everything is in {workdir.path}")
    if errors:
        raise ExceptionGroup("implementations of this library failed", errors)


def check(config: ConfigDict) -> None:
    """Check a config before anything is written.

    Raises:
        UsageError: the config cannot run.
    """
    check_page(config.page)
    with as_usage_errors():
        check_at_least("rounds", config.rounds, 1)
        for name in ("seconds", "memory_gib"):
            check_positive(name, config[name])
        selected("cases", config.cases, list(CASES))
        selected("accuracy", config.accuracy, list(CASES))
        available, absent = contenders()
        selected("contenders", config.contenders, [*available, *(name for name, _ in absent)])


def contenders() -> tuple[dict[str, Contender], list[tuple[str, str]]]:
    """Return ours and those of the peers by name; (library, reason) for those not usable here."""
    everything = [*ours.contenders(), *of_peers(lambda peer: peer.contenders())]
    found = {one.name: one for one in everything if isinstance(one, Contender)}
    return found, [one for one in everything if not isinstance(one, Contender)]


def measure(
    case: Case, contenders: Sequence[Contender], config: ConfigDict, errors: list[Exception]
) -> Iterator[Measurement]:
    """Measure the times of all contenders of a case in turn.

    Args:
        case: to compute.
        contenders: to measure.
        config: limits of time, rounds and memory.
        errors: exceptions of our contenders are appended; these have no measurement.
    """
    print(f"{case.name} …", file=sys.stderr, flush=True)
    numbers, programs, first, reasons = inputs(case), {}, {}, {}
    for one in contenders:
        try:
            programs[one.name], first[one.name] = _ready(one.prepare(case, numbers), config)
        except Exception as error:  # the other contenders are measured
            reasons[one.name] = _reason(error, one, case, errors)
    runs = {name: program.run for name, program in programs.items()}
    times = round_robin(runs, seconds=config.seconds, rounds=config.rounds, first=first)
    chosen = ours.chosen(case)
    for one in contenders:
        known = {"case": case, "contender": one.name, "version": one.version}
        known["chosen"] = one.name == chosen
        if one.name not in reasons:
            yield Measurement(**known, times=times[one.name], scratch=programs[one.name].scratch)
        elif reasons[one.name]:
            yield Measurement(**known, reason=reasons[one.name])


def _ready(program: Program, config: ConfigDict) -> tuple[Program, float]:
    """Return a program and its time in the first round, if there is enough memory."""
    allowed = min(config.memory_gib * 2**30, free_memory())  # swapping would slow down the others
    if program.scratch is not None and program.scratch > allowed:
        needed, allowed = program.scratch / 2**30, allowed / 2**30
        raise RefusalError(
            f"needs {needed:.1f} GiB of scratch memory, and {allowed:.1f} are allowed"
        )
    return program, seconds_of_second(program.run)


def deviations(
    case: Case, contenders: Sequence[Contender], errors: list[Exception]
) -> Iterator[Deviation | tuple[str, str]]:
    """Compare contenders with float64, for one example; (name, reason) for those that failed.

    Args:
        case: to compute.
        contenders: to compare; those that refuse the case are left out.
        errors: exceptions of our contenders are appended.
    """
    print(f"error of {case.name} …", file=sys.stderr, flush=True)
    case = replace(case, batch=1, gradient=True)
    numbers, chosen = inputs(case), ours.chosen(case)
    true = exact(case, numbers)
    for one in contenders:
        try:
            program = one.prepare(case, numbers)
            output, *gradients = relative_errors(program.arrays(program.run()), true)
        except RefusalError:
            continue
        except Exception as error:  # the other contenders are compared
            if reason := _reason(error, one, case, errors):
                yield one.name, f"error of {case.name}: {reason}"
        else:
            yield Deviation(case, one.name, one.name == chosen, output, max(gradients))


def _reason(error: Exception, one: Contender, case: Case, errors: list[Exception]) -> str:
    """Return why a contender has no result; append exceptions of ours and return "" for them."""
    if isinstance(error, RefusalError):
        return str(error)
    error.add_note(f"`{one.name}`, {case.name}")
    if one.version == LIBRARY:
        errors.append(error)
        return ""
    traceback.print_exception(error)
    return first_line(error)


def _cases(words: str) -> list[Case]:
    return [CASES[name] for name in selected("cases", words, list(CASES))]
