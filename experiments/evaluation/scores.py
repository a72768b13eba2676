"""Scores of translations against references."""

from collections.abc import Mapping, Sequence

import sacrebleu
from sacrebleu.significance import PairedTest


def translation_scores(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenized: bool = False
) -> dict[str, object]:
    """Exact match, BLEU and chrF of a set of translations.

    Args:
        hypotheses: one translation a sentence.
        references: one correct translation a sentence.
        tokenized: whether the text stands in tokens with blanks between them already. Its BLEU is
            another measure than that of plain text, and has another name: tok_bleu.

    Returns:
        sentences; exact_match, the fraction that equal their reference; bleu or tok_bleu and chrf
        (0 to 100), and as bleu_signature and chrf_signature how sacreBLEU computed them (Post
        2018; chrF is Popović 2015).
    """
    matches = sum(ours == gold for ours, gold in zip(hypotheses, references, strict=True))
    bleu = _bleu(tokenized)
    scores: dict[str, object] = {
        "sentences": len(references),
        "exact_match": matches / len(references),
    }
    for name, metric in (("tok_bleu" if tokenized else "bleu", bleu), ("chrf", sacrebleu.CHRF())):
        scores[name] = metric.corpus_score(list(hypotheses), [list(references)]).score
        scores[f"{name.removeprefix('tok_')}_signature"] = str(metric.get_signature())
    return scores


def paired_bootstrap(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], *, tokenized: bool = False
) -> dict[str, float]:
    """How likely chance alone makes the BLEU of systems differ as much as it does (Koehn 2004).

    Args:
        systems: what each says of the same sentences, by its name; they are held against the first.
        references: one correct translation a sentence.
        tokenized: as in `translation_scores`.

    Returns:
        p of each but the first, of 1,000 resamples; 1 where there is no difference.
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
