"""What a run achieved: for programs in results.json, for people on the screen."""

import json
from collections.abc import Mapping
from typing import Any

from experiments.config import Config
from experiments.config.build import as_tree
from experiments.files import write_whole
from experiments.training.learner import Learner
from experiments.training.step import TrainState
from experiments.workdir import Workdir

Scores = Mapping[str, object]

# How the scores that people look at are written; the rest stands in the file.
SHOWN = {
    "exact_match": ("exact match", "{:7.2%}"),
    "accuracy": ("accuracy", "{:7.2%}"),
    "bleu": ("BLEU", "{:6.2f}"),
    "tok_bleu": ("tokenized BLEU", "{:6.2f}"),
    "perplexity": ("perplexity", "{:.3f}"),
    "word_perplexity": ("per word", "{:.3f}"),
}
# Fields of `decoding` that do not change the translations.
INDIFFERENT = {"hypotheses", "details", "n_best", "metrics"}


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
    """Writes the results file and prints the scores of each split, one split a line.

    Scores of other splits, of the same parameters and decoded alike, stay beside them.

    Args:
        config: of the run.
        workdir: of the run.
        learner: the model.
        state: what was measured.
        seconds: of training.
        ended: whether it was trained as long as it should be.
        splits: the scores.
        before: the results so far, or nothing.
    """
    results = {
        "step": int(state.step),
        "ended": ended,
        "training_seconds": round(seconds, 1),
        "parameters": learner.num_parameters,
        "splits": splits,
    }
    if config.decoding:  # which may be another one than that of the run
        results["decoding"] = as_tree(config.decoding)
    if before and _how(before) == _how(results):
        results["splits"] = before["splits"] | splits
    elif others := before.get("splits", {}).keys() - splits.keys():
        print(f"scores of {', '.join(sorted(others))} were measured otherwise, and are left out")
    write_whole(workdir.results, json.dumps(results, indent=2) + "\n")
    print(f"{results['step']:,} steps, {results['training_seconds']} s of training")
    for split, scores in splits.items():
        print(f"{split:14s}{'   '.join(_shown(scores))}")
        if rival := scores.get("against"):
            other = differing(rival["decoding"], deciding(results["decoding"]))
            print(
                f"{'':14s}against {rival['workdir']}{other}: {' '.join(_shown(rival)[0].split())}, "
                f"p = {rival['p']:.3f} that chance alone makes them differ so (paired bootstrap)"
            )
    print(f"everything is in {workdir.path}")


def results_so_far(workdir: Workdir) -> dict[str, Any]:
    """Return the results of a run, {} if it has none; to be read before anything is measured.

    Raises:
        UsageError: they are damaged.
    """
    return workdir.load_results() if workdir.results.exists() else {}


def differing(decoding: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """How something was decoded, in words, where that is not as usual."""
    fields = [f"{name}={value}" for name, value in decoding.items() if usual.get(name) != value]
    return f" (decoding: {', '.join(fields)})" if fields else ""


def _shown(scores: Scores) -> list[str]:
    """The scores that people look at, with their names."""
    return [
        f"{label} {form.format(scores[name])}"
        for name, (label, form) in SHOWN.items()
        if name in scores
    ]


def _how(results: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, and how it was decoded."""
    return {"step": results["step"], "decoding": deciding(results.get("decoding", {}))}


def deciding(decoding: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `decoding` that decide which translations come."""
    return {name: value for name, value in decoding.items() if name not in INDIFFERENT}
