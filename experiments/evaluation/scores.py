"""Scores of translations against references."""

from collections.abc import Sequence

import sacrebleu


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, object]:
    """Exact match and BLEU of a set of translations.

    Args:
        hypotheses: one translation a sentence, as plain text.
        references: one correct translation a sentence.

    Returns:
        sentences; exact_match, the fraction that equal their reference; bleu (0 to 100) and
        bleu_signature, how sacreBLEU computed it (Post 2018).
    """
    matches = sum(ours == gold for ours, gold in zip(hypotheses, references, strict=True))
    metric = sacrebleu.BLEU()
    bleu = metric.corpus_score(list(hypotheses), [list(references)])
    return {
        "sentences": len(references),
        "exact_match": matches / len(references),
        "bleu": bleu.score,
        "bleu_signature": str(metric.get_signature()),
    }
