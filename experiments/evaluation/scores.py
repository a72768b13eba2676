"""Metrics of the answers of a model, and the significance of their differences."""

from collections.abc import Mapping, Sequence
from typing import Any

import sacrebleu
from sacrebleu.significance import PairedTest

from experiments.registry import METRICS


def answer_scores(
    metrics: Sequence[str],
    answers: Sequence[str],
    references: Sequence[str],
    *,
    tokenized: bool = False,
) -> dict[str, Any]:
    """Return the number of sentences, and the named metrics of answers.

    Args:
        metrics: names in `METRICS`. A metric that returns a number is stored under its name; one
            that returns a mapping may have several numbers.
        answers: of the model, one for each reference.
        references: one correct answer each.
        tokenized: whether the text is tokenized already. Its BLEU is not comparable with that of
            plain text, so "bleu" is replaced by "tok_bleu".
    """
    scores: dict[str, Any] = {"sentences": len(references)}
    for name in metrics:
        name = "tok_bleu" if tokenized and name == "bleu" else name
        found = METRICS[name](answers, references)
        for key, each in (found if isinstance(found, Mapping) else {name: found}).items():
            scores[key] = each if isinstance(each, str) else float(each)
    return scores


@METRICS("exact_match")
def exact_match(answers: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of the answers that equal their reference."""
    pairs = [*zip(answers, references, strict=True)]
    return sum(answer == reference for answer, reference in pairs) / len(pairs)


@METRICS("bleu")
def bleu(answers: Sequence[str], references: Sequence[str]) -> dict[str, object]:
    """Return BLEU, 0 to 100, and the signature of sacreBLEU (Post 2018)."""
    return _corpus_score("bleu", sacrebleu.BLEU(), answers, references)


@METRICS("tok_bleu")
def tok_bleu(answers: Sequence[str], references: Sequence[str]) -> dict[str, object]:
    """Return BLEU of text that is tokenized already."""
    return _corpus_score("tok_bleu", _bleu(tokenized=True), answers, references)


@METRICS("chrf")
def chrf(answers: Sequence[str], references: Sequence[str]) -> dict[str, object]:
    """Return chrF, 0 to 100 (Popović 2015)."""
    return _corpus_score("chrf", sacrebleu.CHRF(), answers, references)


def _corpus_score(
    name: str,
    metric: sacrebleu.metrics.base.Metric,
    answers: Sequence[str],
    references: Sequence[str],
) -> dict[str, object]:
    score = metric.corpus_score([*answers], [[*references]]).score
    return {name: score, f"{name.removeprefix('tok_')}_signature": str(metric.get_signature())}


def paired_bootstrap(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], *, tokenized: bool = False
) -> dict[str, float]:
    """Return the p-values of differences in BLEU, by paired bootstrap (Koehn 2004).

    The sentences are resampled, and the systems are not: the variance between training seeds is
    ignored, so a small p does not show that another seed would have the difference.

    Args:
        systems: translations of the same sentences by name; each is compared with the first.
        references: one correct translation of each sentence.
        tokenized: as in `answer_scores`.

    Returns:
        p of each but the first, from 1,000 resamples; 1 without a difference.
    """
    test = PairedTest(
        [(name, list(said)) for name, said in systems.items()],
        {"BLEU": _bleu(tokenized)},
        [list(references)],
        test_type="bs",
        n_samples=1_000,
    )
    _, found = test()
    first, *others = found["BLEU"]
    chances = (1.0 if one.score == first.score else one.p_value for one in others)
    return dict(zip(found["System"][1:], chances, strict=True))


def _bleu(tokenized: bool) -> sacrebleu.BLEU:
    return sacrebleu.BLEU(tokenize="none", force=True) if tokenized else sacrebleu.BLEU()
