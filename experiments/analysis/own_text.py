"""Word alignments of pairs of the user, with gold links or without."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.analysis.alignment import Gold, Links, read_links, score
from experiments.analysis.collect import DECODER, ENCODER, Example
from experiments.analysis.cross_alignment import (
    TEST,
    VALIDATION,
    Method,
    Report,
    align_split,
    align_with_links,
    baselines,
    has_links,
    report,
    words_of,
)
from experiments.data.pairs import SentencePair
from experiments.errors import UsageError

if TYPE_CHECKING:
    from experiments.learner import TrainState
    from experiments.tasks.translation import Translation


def align_with_gold(
    task: "Translation",
    state: "TrainState",
    pairs: Sequence[SentencePair],
    examples: Sequence[Example],
    gold: Sequence[Gold],
) -> tuple[Report, Sequence[Links]]:
    """Choose a method on the first half of the pairs, and score it on the second.

    Returns:
        The report, and the links of all pairs by the chosen method.
    """
    links, half = align_split(task, state.parameters, examples), len(pairs) // 2
    parts = {VALIDATION: slice(half), TEST: slice(half, None)}
    first, second = ({name: each[part] for name, each in links.items()} for part in parts.values())
    parts = {name: gold[part] for name, part in parts.items()}
    found = report(first, second, parts, baselines(task, pairs[half:]))
    return found, links[found.chosen]


def align_without_gold(
    task: "Translation", state: "TrainState", examples: Sequence[Example]
) -> tuple[Method, Sequence[Links]] | None:
    """Align by the method with the lowest error on the validation split, None without gold there.

    Returns:
        The method and its links.
    """
    if not has_links(task.examples(VALIDATION)):
        return None
    known, gold = align_with_links(task, state, VALIDATION)
    chosen = min(known, key=lambda method: score(known[method], gold).aer)
    return chosen, align_split(task, state.parameters, examples)[chosen]


def read_gold(
    task: "Translation",
    path: Path,
    first: int,
    pairs: Sequence[SentencePair],
    examples: Sequence[Example],
) -> list[Gold]:
    """Read the gold alignments of pairs, between the words of `words_of`.

    Args:
        task: of the run.
        path: of the links, as in `alignment.read_links`.
        first: number of the first word, 0 or 1.
        pairs: of a file.
        examples: of the pairs.

    Raises:
        UsageError: another task, a pair without a target, fewer than two pairs, and as
            `read_links`.
    """
    if {*examples[0].labels} != {ENCODER, DECODER}:
        raise UsageError(f"--gold is for translation, and task={task.config.task!r} has one text")
    missing = [number for number, pair in enumerate(pairs, start=1) if not pair.target]
    if missing:
        raise UsageError(
            f"--gold needs pairs with a tab between them, and line {missing[0]} has none"
        )
    if len(pairs) < 2:
        raise UsageError("--gold needs two pairs: one to choose a head, one to score it")
    lengths = [tuple(map(len, words_of(task.tokenizers, pair))) for pair in pairs]
    return read_links(path, first=first, lengths=lengths)
