"""Fields that vary in a sweep: `--grid.FIELD=V1,V2` and `--seeds=0,1`."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product

from ml_collections import ConfigDict

from experiments.arguments import flag_name, values_of
from experiments.errors import UsageError

BETWEEN = re.compile(r",(?![^(\[]*[)\]])")  # commas, but for those of a tuple


def axis_flags(arguments: Sequence[str]) -> list[str]:
    """Return the names of the flags that make a field vary, as "grid.model.width"."""
    names = dict.fromkeys(map(flag_name, arguments))
    return [name for name in names if name == "seeds" or name.startswith("grid.")]


def read_axes(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each field that varies; the seeds vary fastest.

    Raises:
        UsageError: an empty list, seeds that are no numbers, or a field that is given twice.
    """
    axes: dict[str, list[str]] = {}
    for flag in sorted(axis_flags(arguments), key=("seeds", "grid.seed").__contains__):
        field = "seed" if flag == "seeds" else flag.removeprefix("grid.")
        lists = values_of(flag, arguments)
        if len(lists) > 1 or field in axes:
            raise UsageError(f"the field {field!r} of the sweep is given twice")
        values = [value.strip() for value in BETWEEN.split(lists[0])]
        if not all(values):
            raise UsageError(f"--{flag} needs a list of values, as in 1,2, got {lists[0]!r}")
        if field == "seed" and not all(value.isdecimal() for value in values):
            raise UsageError(f"--{flag} must be whole numbers, as in 0,1,2, got {lists[0]!r}")
        axes[field] = values
    return axes


def expand(
    load: Callable[[str, list[str]], ConfigDict],
    configs: Mapping[str, str],
    axes: Mapping[str, Sequence[str]],
) -> dict[str, ConfigDict]:
    """Return the configuration of each run by its name, as "learning_rate=0.003,seed=1".

    Args:
        load: returns the configuration of a name and of flags that override its fields.
        configs: their names, by the short ones that name runs.
        axes: values of each field that varies.

    Raises:
        UsageError: an unknown field, a value of the wrong type, or a run that occurs twice.
    """
    runs: dict[str, ConfigDict] = {}
    fields = _short(tuple(axes))
    for (label, name), *values in product(configs.items(), *axes.values()):
        pairs = zip(axes, values, strict=True)
        try:
            config = load(name, [f"--config.{field}={value}" for field, value in pairs])
        except UsageError as error:
            sentence = str(error)
            if any(re.search(rf"[.']{re.escape(field)}[=' ]", sentence) for field in axes):
                sentence = sentence.replace("--config.", "--grid.")
            raise UsageError(sentence) from error
        parts = [label] if len(configs) > 1 else []
        for field, short in fields.items():
            parts.append(f"{short}={reduce(getattr, field.split('.'), config)}")
        folder = ",".join(parts or [label]).replace(" ", "").replace("/", "_")
        if folder in runs:
            raise UsageError(f"the run {folder!r} occurs twice")
        runs[folder] = config
    return runs


def _short(fields: Sequence[str]) -> dict[str, str]:
    """Return the last part of each dotted name, the whole name if two have the same.

    Only the seed of a run is called "seed": runs that differ in another one are not averaged.
    """
    last = [field.split(".")[-1] for field in fields]
    taken = [*last, "seed"]
    pairs = zip(fields, last, strict=True)
    return {field: name if taken.count(name) == 1 else field for field, name in pairs}
