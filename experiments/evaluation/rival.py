"""What another run says of the same sentences, which a run is held against."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.data.pairs import SentencePair
from experiments.errors import UsageError
from experiments.evaluation.scores import paired_bootstrap
from experiments.results import deciding
from experiments.workdir import Workdir


class Rival(NamedTuple):
    """Another run.

    Attributes:
        path: its workdir.
        scores: of each split, as they stand in its results.
        decoding: by which they came.
        said: its translations of each split.
        tokenized: as in `answer_scores`.
    """

    path: Path
    scores: dict[str, dict[str, object]]
    decoding: dict[str, object]
    said: dict[str, list[str]]
    tokenized: bool

    def against(
        self, split: str, translations: Sequence[str], references: Sequence[str]
    ) -> dict[str, object]:
        """How translations compare with its own.

        Args:
            split: whose sentences were translated.
            translations: of another run.
            references: one correct translation a sentence.

        Returns:
            workdir, decoding and bleu or tok_bleu of the rival, and p: how likely chance alone
            makes the two differ in it as much as they do, by `paired_bootstrap`.
        """
        systems = {"rival": self.said[split], "this": translations}
        chances = paired_bootstrap(systems, references, tokenized=self.tokenized)
        score = _score(tokenized=self.tokenized)
        of_rival = {"workdir": str(self.path), "decoding": self.decoding}
        return of_rival | {score: self.scores[split][score], "p": chances["this"]}


def load_rival(
    theirs: Workdir,
    ours: Workdir,
    splits: Mapping[str, Sequence[SentencePair]],
    *,
    tokenized: bool,
) -> Rival:
    """Reads what a run says of some splits.

    Args:
        theirs: where it is.
        ours: the workdir of the run that is held against it, and that has read these splits.
        splits: the sentences.
        tokenized: as in `answer_scores`.

    Raises:
        UsageError: the same run, or one that was not measured so on these sentences.
    """
    if theirs.path.resolve() == ours.path.resolve():
        raise UsageError(f"--against needs another run than {ours.path} itself")
    results = theirs.load_results()
    scores, decoding = results["splits"], deciding(results.get("decoding", {}))
    for split in splits:
        if _score(tokenized=tokenized) not in scores.get(split, {}):
            raise UsageError(
                f"{theirs.path} was not measured on the {split} split: --mode=evaluate "
                f"--split={split} --workdir={theirs.path} does it"
            )
    their_texts, our_texts = theirs.load_texts(), ours.load_texts()
    for split in splits:
        if their_texts.get(split) != our_texts[split]:
            raise UsageError(
                f"the {split} split of {theirs.path} has other sentences than that of {ours.path}"
            )
    said = {split: theirs.load_hypotheses(split) for split in splits}
    for split, translations in said.items():
        if len(translations) != len(splits[split]):
            raise UsageError(
                f"{theirs.path} translated {len(translations):,} of the {len(splits[split]):,} "
                f"sentences of the {split} split: measure it again"
            )
    return Rival(theirs.path, scores, decoding, said, tokenized)


def _score(*, tokenized: bool) -> str:
    """What two runs are held against each other by."""
    return "tok_bleu" if tokenized else "bleu"
