"""Page of the results of all runs beside published ones, made from one JSON file for each."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from statistics import mean

from ml_collections import ConfigDict

from experiments.config.differences import differences
from experiments.errors import UsageError
from experiments.files import write_whole
from experiments.records import Record, Run, label_of, table, warn_skipped
from experiments.results import deciding
from experiments.workdir import Workdir

INTRODUCTION = """\
# Results

Results of runs of this repository, beside published ones. Figures of several seeds are mean ±
standard deviation (n - 1). `results/` contains a JSON file for each row of runs; this command
updates the files of the runs in `workdirs/` and writes this page from all of them:

```sh
python run.py --mode=ledger
```

"""


def ledger(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Write the records of the runs of a folder, and a page of all records.

    Args:
        config: `folder` of workdirs, `results`, the folder of records, and `page`, a file.
        workdir: unused: the runs have their own.
        cache: unused.

    Raises:
        UsageError: no run and no record, or a damaged record.
    """
    del workdir, cache
    results = Path(config.results)
    for record in records_below(Path(config.folder)):
        path = results / f"{record.run}.json"
        if reason := differs(path, record):
            warn_skipped(record.run, f"{reason}; rename its workdir, or remove the file")
        else:
            record.save(path)
    records = [Record.load(path) for path in results.rglob("*.json")]
    if not records:
        raise UsageError(f"folder={config.folder} contains no run that was measured: train one")
    text = page(sorted(records, key=lambda record: record.run))
    write_whole(Path(config.page), text)
    print(text)


def records_below(folder: Path) -> Iterator[Record]:
    """Yield the records of all runs of a folder; one line on standard error for unreadable ones."""
    runs = []
    for path in sorted(path.parent for path in folder.rglob("results.json")):
        try:
            runs.append(Run.read(path, path.relative_to(folder).as_posix()))
        except UsageError as error:
            warn_skipped(path.name, error)
    names: set[str] = set()
    for _, group in groupby(sorted(runs, key=_order), key=_kind):
        first, *others = group
        is_taken = not first.is_whole or first.label in ("", *names)
        name = first.name if is_taken else first.label
        names.add(name)
        try:
            yield Record.of(name, [first, *others])
        except UsageError as error:
            warn_skipped(first.name, error)


def differs(path: Path, record: Record) -> str:
    """Return how the configuration in the file of a record differs, "" if it is the same.

    Fields that only one of them has are those of another version. A file without a configuration
    is compared by the number of parameters, and is never replaced by a shorter training.
    """
    if not path.exists():
        return ""
    kept = Record.load(path)
    if kept.config is None or record.config is None:
        other = kept.parameters not in (None, record.parameters)
        fields = ["parameters"] * other + ["steps"] * (max(record.steps) < max(kept.steps))
        there, here = (each._asdict() for each in (kept, record))
    else:
        there, here = kept.config, record.config
        fields = [name for name in differences(there, here) if name in there and name in here]
    if not fields:
        return ""
    name = fields[0]
    values = f"{name}: {there[name]} there, {here[name]} here"
    return f"{path} is of another configuration ({values})"


def _kind(run: Run) -> str:
    """Return what runs that differ in their seed alone have in common."""
    fields = {name: value for name, value in run.config.to_dict().items() if name != "seed"}
    cut = None if run.is_whole else run.results["step"]
    return json.dumps([fields, deciding(run.results.get("decoding", {})), cut], sort_keys=True)


def _order(run: Run) -> tuple[str, int]:
    return _kind(run), run.config.seed


def page(records: Sequence[Record]) -> str:
    """Return Markdown: a row for each figure, and the command of each run."""
    commands = [f"- {record.run}: `{record.command}`\n" for record in records]
    rows = [*chain.from_iterable(map(_rows, records))]
    return "".join([INTRODUCTION, table(rows), "\nThe commands of the runs:\n\n", *commands])


def _rows(record: Record) -> Iterator[dict[str, str]]:
    steps = ", ".join(dict.fromkeys(f"{step:,}" for step in record.steps))
    if record.planned_steps is not None:
        steps = f"**{steps} of {record.planned_steps:,}**"
    for split, published in record.published.items():
        for score, figure in (published or {record.headline(split): ""}).items():
            yield {
                "run": record.run,
                "figure": f"{split} {label_of(score)}{record.decoding}",
                "ours": record.written(split, score),
                "published": figure,
                "seeds": ", ".join(map(str, record.seeds)),
                "steps": steps,
                "training": f"{mean(record.seconds) / 60:.1f} min",
                "commit": record.commit,
                "machine": record.machine,
            }
