"""Metrics of the answers of a model, and the significance of their differences."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import sacrebleu
from sacrebleu.significance import PairedTest

from experiments.registry import METRICS

SACREBLEU = {  # Post 2018
    "bleu": sacrebleu.BLEU,
    "tok_bleu": partial(sacrebleu.BLEU, tokenize="none", force=True),  # of tokenized text
    "chrf": sacrebleu.CHRF,  # Popović 2015
}


def answer_scores(
    metrics: Sequence[str],
    answers: Sequence[str],
    references: Sequence[str],
    *,
    tokenized: bool = False,
) -> dict[str, Any]:
    """Return the number of sentences, and the named metrics of answers.

    A metric that returns a number is stored under its name; one that returns a mapping may have
    several. BLEU of text that is tokenized already is not comparable with that of plain text, so
    "bleu" is then replaced by "tok_bleu".
    """
    scores: dict[str, Any] = {"sentences": len(references)}
    for name in metrics:
        name = "tok_bleu" if tokenized and name == "bleu" else name
        values = METRICS[name](answers, references)
        values = values if isinstance(values, Mapping) else {name: values}
        for key, value in values.items():
            scores[key] = value if isinstance(value, str) else float(value)
    return scores


@METRICS("exact_match")
def exact_match(answers: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of the answers that equal their reference."""
    return sum(map(str.__eq__, answers, references)) / len(references)


def corpus_score(name: str, answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return BLEU or chrF, 0 to 100, and the signature of sacreBLEU."""
    metric = SACREBLEU[name]()
    score = metric.corpus_score([*answers], [[*references]]).score
    return {name: score, f"{name.removeprefix('tok_')}_signature": str(metric.get_signature())}


METRICS.update({name: partial(corpus_score, name) for name in SACREBLEU})


def paired_bootstrap(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    tokenized: bool = False,
) -> float:
    """Return the p-value of the difference of two systems in BLEU (Koehn 2004); 1 if there is none.

    The sentences are resampled 1,000 times, and the systems are not: the variance between training
    seeds is ignored, so a small p does not show that another seed would have the difference.
    """
    test = PairedTest(
        [("first", [*first]), ("second", [*second])],
        {"BLEU": SACREBLEU["tok_bleu" if tokenized else "bleu"]()},
        [[*references]],
        test_type="bs",
        n_samples=1_000,
    )
    one, other = test()[1]["BLEU"]
    return 1.0 if one.score == other.score else other.p_value
