"""What a run achieved: for programs in results.json, for people on the screen."""

import json
from collections.abc import Mapping

from ml_collections import ConfigDict

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


def report(
    config: ConfigDict,
    workdir: Workdir,
    learner: Learner,
    state: TrainState,
    seconds: float,
    splits: Mapping[str, Scores],
) -> None:
    """Writes the results file and prints the scores of each split, one split a line."""
    results = {
        "step": int(state.step),
        "training_seconds": round(seconds, 1),
        "parameters": learner.num_parameters,
        "splits": splits,
    }
    if "decoding" in config:  # which may be another one than that of the run
        results["decoding"] = config.decoding.to_dict()
    write_whole(workdir.results, json.dumps(results, indent=2) + "\n")
    print(f"{results['step']:,} steps, {results['training_seconds']} s of training")
    for split, scores in splits.items():
        shown = [
            f"{label} {form.format(scores[name])}"
            for name, (label, form) in SHOWN.items()
            if name in scores
        ]
        print(f"{split:14s}{'   '.join(shown)}")
    print(f"everything is in {workdir.path}")
