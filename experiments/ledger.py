"""Results of all runs: a JSON file for each, and the tables of the documents made from them."""

import json
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path

from ml_collections import ConfigDict

from experiments.config.build import differences
from experiments.errors import UsageError
from experiments.explanations import explanations
from experiments.files import write_whole
from experiments.records import Record, Run, deciding_fields, warn_skipped
from experiments.result_tables import Results
from experiments.results import deciding
from experiments.workdir import Workdir


def ledger(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Write the records of the runs of a folder, and the results in the documents.

    Args:
        config: `folder` of workdirs, "" for none; `results`, the folder of records; `documents`,
            patterns of files with blocks of results; and `configs`, the folder of configurations.
        workdir: unused: the runs have their own.
        cache: unused.

    Raises:
        UsageError: no such folder, no record, a record that is damaged or was changed, or a block
            of results with an unknown run or figure.
    """
    del workdir, cache
    results = Path(config.results)
    if config.folder and not Path(config.folder).is_dir():
        raise UsageError(
            f"folder={config.folder} does not exist: name a folder of workdirs, or none by "
            "--config.folder= to write the documents from the records alone"
        )
    for record in records_below(Path(config.folder)) if config.folder else ():
        path = results / f"{record.run}.json"
        if reason := differs(path, record):
            warn_skipped(record.run, f"{reason}; rename its workdir, or remove the file")
        else:
            record.save(path)
    found = Results.load(results, Path(config.configs))
    if not found.records:
        place = f", and folder={config.folder} contains no run that was measured: train one"
        raise UsageError(f"{results} contains no record{place if config.folder else ''}")
    updated = {path: found.updated(path) for path in documents(config)}
    for path, text in updated.items():
        if text != path.read_text(encoding="utf-8"):
            write_whole(path, text)
            print(path)
    print(f"{len(found.records)} records in {results}, results in {len(updated)} documents")


def documents(config: ConfigDict) -> list[Path]:
    """List the files that contain results: documents, and cards of configurations."""
    patterns = (*config.documents, f"{config.configs}/*.py")
    return sorted(path for pattern in patterns for path in Path().glob(pattern))


def records_below(folder: Path) -> Iterator[Record]:
    """Yield the records of all runs of a folder; one line on standard error for unreadable ones."""
    runs, explained = [], {}
    for path in sorted(path.parent for path in folder.rglob("results.json")):
        try:
            run = Run.read(path, path.relative_to(folder).as_posix())
            explained[run.name] = [
                each for each in explanations(run, path) if _is_of_last_step(each, run)
            ]
        except UsageError as error:
            warn_skipped(path.name, error)
            continue
        runs.append(run)
    names: set[str] = set()
    for _, kind in groupby(sorted(runs, key=_order), key=_kind):
        first, *others = kind
        is_taken = not first.is_whole or first.label in ("", *names)
        name = first.name if is_taken else first.label
        names.add(name)
        groups = {name: [first, *others]}
        for each in chain.from_iterable(explained[run.name] for run in groups[name]):
            groups.setdefault(f"{name}/{Path(each.name).name}", []).append(each)
        for record, group in groups.items():
            try:
                yield Record.of(record, group)
            except UsageError as error:
                warn_skipped(record, error)


def differs(path: Path, record: Record) -> str:
    """Return how the configuration in the file of a record differs, "" if it is the same.

    A file of more seeds is kept too. Fields that only one of them has are those of another version.
    """
    if not path.exists():
        return ""
    kept = Record.load(path)
    if len(kept.seeds) > len(record.seeds):
        return f"{path} is of more seeds ({', '.join(map(str, kept.seeds))})"
    there, here = kept.config, record.config
    fields = [name for name in differences(there, here) if name in there and name in here]
    if not fields:
        return ""
    name = fields[0]
    values = f"{name}: {there[name]} there, {here[name]} here"
    return f"{path} is of another configuration ({values})"


def _is_of_last_step(explanation: Run, run: Run) -> bool:
    """Return whether an explanation is of the step of the results; report one that is not."""
    step = explanation.results["step"]
    if step == run.results["step"]:
        return True
    warn_skipped(explanation.name, f"it is of step {step}: explain the run again")
    return False


def _kind(run: Run) -> str:
    """Return what runs that differ in their seed alone have in common."""
    cut = None if run.is_whole else run.results["step"]
    decoding, text = deciding(run.results.get("decoding", {})), run.texts.get("train")
    return json.dumps([deciding_fields(run.config), text, decoding, cut], sort_keys=True)


def _order(run: Run) -> tuple[str, int]:
    return _kind(run), run.config.seed
