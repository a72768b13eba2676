"""Scores of a run: as JSON in results.json, and printed in one line for each split."""

import json
from collections.abc import Mapping
from typing import Any

from experiments.config import Config
from experiments.config.build import as_tree
from experiments.files import write_whole
from experiments.learner import Learner, TrainState
from experiments.workdir import Workdir

Scores = Mapping[str, object]

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
    config: Config,
    workdir: Workdir,
    learner: Learner,
    state: TrainState,
    seconds: float,
    ended: bool,
    splits: Mapping[str, Scores],
    before: Mapping[str, Any],
) -> None:
    """Write the results file and print the scores of each split, one split a line.

    Earlier scores of other splits are kept if parameters and decoding are the same.

    Args:
        config: of the run.
        workdir: of the run.
        learner: the model.
        state: that was measured.
        seconds: of training.
        ended: whether the training has ended.
        splits: the scores.
        before: the results so far, {} if there are none.
    """
    # Metrics and tasks of plugins return numbers of NumPy and jax too.
    splits = json.loads(json.dumps(splits, default=float))
    results = {
        "step": int(state.step),
        "ended": ended,
        "training_seconds": round(seconds, 1),
        "parameters": learner.num_parameters,
        "splits": splits,
    }
    if config.decoding:  # may differ from that of the run
        results["decoding"] = as_tree(config.decoding)
    if before and _how(before) == _how(results):
        results["splits"] = before["splits"] | splits
    elif others := before.get("splits", {}).keys() - splits.keys():
        print(f"scores of {', '.join(sorted(others))} were measured otherwise, and are left out")
    write_whole(workdir.results, json.dumps(results, indent=2) + "\n")
    step, last = results["step"], max(results["step"], workdir.newest_step())
    measured = "" if step == last else f"; measured: step {step:,}"
    print(f"{last:,} steps, {results['training_seconds']} s of training{measured}")
    for split, scores in splits.items():
        print(line_of(split, scores))
        if data := scores.get("data"):
            print(f"{'':14s}{', '.join(f'{name}={value}' for name, value in data.items())}")
        if other := scores.get("against"):
            decoding = differing(other["decoding"], deciding(results["decoding"]))
            score = " ".join(_shown(other)[0].split())
            print(
                f"{'':14s}against {other['workdir']}{decoding}: {score}, p = {other['p']:.3f} that "
                f"chance alone makes them differ so ({BOOTSTRAP})"
            )
    print(f"everything is in {workdir.path}")


def results_so_far(workdir: Workdir) -> dict[str, Any]:
    """Return the results of a run, {} if it has none; to be read before anything is measured.

    Raises:
        UsageError: they are damaged.
    """
    return workdir.load_results() if workdir.results.exists() else {}


def differing(decoding: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Return the fields of `decoding` that differ from `usual`, in parentheses."""
    fields = [f"{name}={value}" for name, value in decoding.items() if usual.get(name) != value]
    return f" (decoding: {', '.join(fields)})" if fields else ""


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


def _how(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the step and the decoding that scores depend on."""
    return {"step": results["step"], "decoding": deciding(results.get("decoding", {}))}


def deciding(decoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `decoding` that translations depend on."""
    ignored = FIELDS_WITHOUT_EFFECT_ON_OUTPUT
    return {name: value for name, value in decoding.items() if name not in ignored}
