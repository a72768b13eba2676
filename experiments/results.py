"""Scores of a run: as JSON in results.json, and printed in one line for each split."""

import json
from collections.abc import Mapping
from typing import Any

from experiments.files import write_whole
from experiments.workdir import Workdir

Scores = Mapping[str, Any]

# Labels and formats of scores; those of plugins are printed by their names.
SHOWN = {
    "exact_match": ("exact match", "{:7.2%}"),
    "accuracy": ("accuracy", "{:7.2%}"),
    "bleu": ("BLEU", "{:6.2f}"),
    "tok_bleu": ("tokenized BLEU", "{:6.2f}"),
    "chrf": ("chrF", "{:6.2f}"),
    "perplexity": ("perplexity", "{:.3f}"),
    "word_perplexity": ("per word", "{:.3f}"),
}
NOT_SHOWN = ("loss", "nll", "tokens", "sentences")  # numbers that are in results.json alone
BOOTSTRAP = "paired bootstrap over sentences; it ignores the variance between seeds"
# Fields of `decoding` that do not change a translation.
FIELDS_WITHOUT_EFFECT_ON_OUTPUT = {"hypotheses", "n_best", "metrics"}


def report(
    workdir: Workdir, measured: Mapping[str, Any], splits: Mapping[str, Scores], before: Scores
) -> None:
    """Add scores to the results file, and print them, one split a line.

    Earlier scores stay if they are of the same step.

    Args:
        workdir: of the run.
        measured: step, ended, training_seconds and parameters.
        splits: the scores by the label of a split.
        before: the results so far, {} if there are none.
    """
    # Metrics and tasks of plugins return numbers of NumPy and jax too.
    splits = json.loads(json.dumps(splits, default=float))
    step, kept = measured["step"], before.get("splits", {})
    if kept and before["step"] != step:
        if others := kept.keys() - splits.keys():
            print(f"scores of step {before['step']:,} are left out: {', '.join(sorted(others))}")
        kept = {}
    every = kept | {label: kept.get(label, {}) | scores for label, scores in splits.items()}
    write_whole(workdir.results, json.dumps({**measured, "splits": every}, indent=2) + "\n")
    last = max(step, workdir.newest_step())
    of_step = "" if step == last else f"; measured: step {step:,}"
    print(f"{last:,} steps, {measured['training_seconds']} s of training{of_step}")
    for label, scores in splits.items():
        print(line_of(label, scores))
        if settings := scores.get("settings"):
            print(f"{'':14s}{', '.join(f'{name}={value}' for name, value in settings.items())}")
        if other := scores.get("against"):
            otherwise, score = differing(other["decoding"], {}), " ".join(_shown(other)[0].split())
            print(
                f"{'':14s}against {other['workdir']}{otherwise}: {score}, p = {other['p']:.3f} "
                f"that chance alone makes them differ so ({BOOTSTRAP})"
            )
    print(f"everything is in {workdir.path}")


def results_so_far(workdir: Workdir) -> dict[str, Any]:
    """Return the results of a run, {} if it has none; to be read before anything is measured."""
    return workdir.load_results() if workdir.results.exists() else {}


def differing(decoding: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Return the fields of `decoding` that differ from `usual`, in parentheses."""
    fields = [f"{name}={value}" for name, value in decoding.items() if usual.get(name) != value]
    return f" (decoding: {', '.join(fields)})" if fields else ""


def deciding(decoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `decoding` that translations depend on."""
    ignored = FIELDS_WITHOUT_EFFECT_ON_OUTPUT
    return {name: value for name, value in decoding.items() if name not in ignored}


def line_of(split: str, scores: Scores) -> str:
    """Return the scores of a split in a line."""
    return f"{split:13s} {'   '.join(_shown(scores))}"


def _shown(scores: Scores) -> list[str]:
    """Return the scores that are printed, with their labels: those of `SHOWN` come first."""
    others = {
        name: (name, "{:.3f}")
        for name, value in scores.items()
        if isinstance(value, int | float) and name not in (*SHOWN, *NOT_SHOWN)
    }
    return [
        f"{label} {form.format(scores[name])}"
        for name, (label, form) in (SHOWN | others).items()
        if name in scores
    ]
