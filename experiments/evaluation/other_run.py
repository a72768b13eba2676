"""Another run with which the translations of a run are compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.data.pairs import SentencePair
from experiments.errors import UsageError
from experiments.evaluation.scores import paired_bootstrap
from experiments.files import read_json
from experiments.results import deciding
from experiments.workdir import Workdir


class OtherRun(NamedTuple):
    """Another run, with its scores and hypotheses by the labels of this run.

    Attributes:
        path: its workdir.
        scores: BLEU, or tokenized BLEU, of each split.
        decoding: how it was decoded.
        hypotheses: of each split.
        tokenized: as in `answer_scores`.
    """

    path: Path
    scores: dict[str, float]
    decoding: dict[str, object]
    hypotheses: dict[str, list[str]]
    tokenized: bool

    def against(
        self, split: str, translations: Sequence[str], references: Sequence[str]
    ) -> dict[str, object]:
        """Compare translations of a split with those of this run.

        Args:
            split: its label.
            translations: of another run.
            references: one correct translation of each sentence.

        Returns:
            workdir, decoding and bleu or tok_bleu of this run, and p: the probability that chance
            alone makes the scores differ as much as they do, by `paired_bootstrap`.
        """
        systems = {"other": self.hypotheses[split], "this": translations}
        chances = paired_bootstrap(systems, references, tokenized=self.tokenized)
        score = {_score(tokenized=self.tokenized): self.scores[split]}
        return {"workdir": str(self.path), "decoding": self.decoding, **score, "p": chances["this"]}


def load_other_run(
    theirs: Workdir,
    ours: Workdir,
    splits: Mapping[str, Sequence[SentencePair]],
    *,
    tokenized: bool,
) -> OtherRun:
    """Read the hypotheses of a run for some splits; those with the same text correspond.

    Args:
        theirs: workdir of the other run.
        ours: workdir of the run that is compared with it, which has the fingerprints of the splits.
        splits: the sentences, by label.
        tokenized: as in `answer_scores`.

    Raises:
        UsageError: the same run, a run of another task, or one that was not measured so on these
            sentences.
    """
    if theirs.path.resolve() == ours.path.resolve():
        raise UsageError(f"--against needs another run than {ours.path} itself")
    other = read_json(theirs.config, {"task": str})["task"] if theirs.config.is_file() else ""
    if other not in ("", "translation"):
        raise UsageError(f"--against={theirs.path} is no translation: its task is {other!r}")
    results, score = theirs.load_results(), _score(tokenized=tokenized)
    their_texts, our_texts = theirs.load_fingerprints(), ours.load_fingerprints()
    scores, hypotheses = {}, {}
    for label, pairs in splits.items():
        same = [name for name, text in their_texts.items() if text == our_texts[label]]
        name = next((name for name in same if score in results["splits"].get(name, {})), label)
        if score not in results["splits"].get(name, {}):
            raise UsageError(
                f"{theirs.path} was not measured on the {label} split: --mode=evaluate "
                f"--split={label.partition('@')[0]} --workdir={theirs.path} does it"
            )
        if name not in same:
            raise UsageError(
                f"the {label} split of {theirs.path} has other sentences than that of {ours.path}"
            )
        scores[label] = results["splits"][name][score]
        hypotheses[label] = theirs.load_hypotheses(name)
        if len(hypotheses[label]) != len(pairs):
            raise UsageError(
                f"{theirs.path} translated {len(hypotheses[label]):,} of the {len(pairs):,} "
                f"sentences of the {label} split: measure it again"
            )
    decoding = deciding(results.get("decoding", {}))
    return OtherRun(theirs.path, scores, decoding, hypotheses, tokenized)


def _score(*, tokenized: bool) -> str:
    """Return the name of the score that is compared."""
    return "tok_bleu" if tokenized else "bleu"
