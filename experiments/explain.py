"""Draw and measure what a trained model attends to."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax import nnx

from experiments.analysis.agreement import (
    POSITIONS,
    agreement_table,
    completeness_note,
    deletion_curves,
    explained,
    fits,
)
from experiments.analysis.alignment import Gold, as_pharaoh
from experiments.analysis.collect import CROSS, DECODER, AttentionMaps, Example, texts
from experiments.analysis.cross_alignment import Report, align_task, has_links
from experiments.analysis.figures import draw_attributions, draw_deletion, draw_example
from experiments.analysis.heads import beside, changes, heads_table, repeated_block
from experiments.analysis.inputs import MEASURED, Read, read_file, read_sentence, read_split
from experiments.analysis.own_text import (
    align_with_gold,
    align_without_gold,
    read_gold,
)
from experiments.analysis.page.build import write_explanation
from experiments.analysis.replaced_weights import loss_table
from experiments.analysis.replaced_weights import notes as loss_notes
from experiments.analysis.tables import markdown, write_tables
from experiments.config import Config
from experiments.config.train import MeshPart
from experiments.data.vocabulary import EOS
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.explanations import ORIGIN
from experiments.files import write_whole
from experiments.origin import origin
from experiments.registry import TASKS
from experiments.tasks.task import Task
from experiments.tasks.translation import Translation
from experiments.training.session import restore
from experiments.training.step import TrainState
from experiments.workdir import Workdir

SENTENCE = "sentence"  # name of the page and the folder of --sentence
IN_PAGE = 20  # examples of a split that are in its page
AT_ONCE = 20  # examples of a pass


def explain(
    config: Config,
    workdir: Workdir,
    cache: Path,
    sentence: str | None = None,
    split: str | None = None,
    file: Path | None = None,
    gold: Path | None = None,
    gold_first: int = 0,
    layer: int | None = None,
    head: int | None = None,
) -> None:
    """Write what a model attends to into the folder `explain` of its run.

    There is a page and a folder for the sentence, for each split and for each name of a file.

    Args:
        config: of the run.
        workdir: of the run.
        cache: where generated data is kept.
        sentence: that is drawn. Without it, the first sentences of a split are drawn, and heads and
            alignments are measured on the split.
        split: the first test split if None.
        file: of sentences, or of pairs, in place of a split.
        gold: word alignments of the pairs in the file.
        gold_first: number of the first word in them, 0 or 1.
        layer: of the head that is drawn alone, from 1; the last one if None.
        head: that is drawn alone, from 1; the first one if None.

    Raises:
        UsageError: a sentence that cannot be read, an unknown split, a layer or a head out of
            range, or a model that does not attend.
    """
    inputs = {"--sentence": sentence, "--file": file, "--split": split}
    given = [flag for flag, value in inputs.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"--mode=explain takes one of {' and '.join(given)}")
    if getattr(config.model, "implementation", None) is not None:  # some return no weights
        config = replace(config, model=replace(config.model, implementation=None))
    one_device = replace(config, mesh=MeshPart(data=1))
    task = TASKS[config.task].load(one_device, workdir, cache)
    split = split or task.test_splits[0]
    with as_usage_errors():
        one_of("--split", split, task.known_splits)
    state = restore(workdir, task).state
    untrained = task.learner.initial_state().parameters
    name = SENTENCE if sentence is not None else file.name if file else split
    if file and name in (SENTENCE, *task.known_splits):
        name = f"file_{name}"
    folder = workdir.explanation / name
    if sentence is not None:
        read = read_sentence(task, state, sentence)
    else:
        read = read_file(task, state, file) if file else read_split(task, state, split)
    links = None
    if gold is not None:
        links = read_gold(task, gold, gold_first, read.pairs, read.measured)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from error
    found, control = (
        [*task.collector(parameters, [*read.drawn.values()])]
        for parameters in (state.parameters, untrained)
    )
    for place, *each in zip(read.drawn, found, control, strict=True):
        draw_example(*each, folder / place, layer, head)
        example = read.drawn[place]
        print(f"{folder / place}: {' '.join(texts(example))}")
        if example.note:
            print(example.note)
        if CROSS in each[0].maps:
            measure_attributions(task, state, example, each[0].maps[CROSS], folder / place)
    notes = [
        f"re-initialised weights move {change.mean():.0%} of the {kind}, and at least "
        f"{change.min():.0%} in each head"
        for kind, change in changes(found, control).items()
    ]
    print("\n".join(notes))
    page = workdir.explanation / f"{name}.html"
    if sentence is not None:
        write_explanation(page, task, state, [sentence], notes=notes)
        return
    place = str(file) if file else f"the {split} split"
    heads = measure_heads(task, state, untrained, read.measured[:MEASURED], place, folder)
    if file is None:
        notes += measure_replaced_weights(task, state, split, folder)
        if CROSS in found[0].maps:
            if has_links(read.pairs):
                measure_alignment(task, state, split, folder)
            measure_agreement(task, state, split, folder)
    elif CROSS in found[0].maps:
        align_file(task, state, read, links, folder)
    write_origin(folder, int(state.step))
    sources = [pair.source for pair in read.pairs[:IN_PAGE]]
    targets = [pair.target for pair in read.pairs[:IN_PAGE]] if file else ()
    write_explanation(page, task, state, sources, targets, heads, notes)


def write_origin(folder: Path, step: int) -> None:
    """Write beside tables which command of which commit has made them, of which step of the run."""
    write_whole(folder / ORIGIN, json.dumps(origin() | {"step": step}) + "\n")


def measure_heads(
    task: Task,
    state: TrainState,
    untrained: nnx.State,
    examples: Sequence[Example],
    place: str,
    folder: Path,
) -> list[dict[str, Any]]:
    """Write, print and return the table of heads, over examples from a split or a file."""
    block = repeated_block(examples, getattr(task.config.model, "max_length", None))

    def table(parameters: nnx.State) -> list[dict[str, Any]]:
        repeated = None if block is None else next(task.collector(parameters, [block.example]))
        found = task.collector(parameters, examples, batch_size=AT_ONCE)
        return heads_table(found, block, repeated)

    rows = table(state.parameters)
    write_tables(beside(rows, table(untrained)), folder / "heads", 3)
    print(f"\nheads, over {len(examples)} examples of {place}")
    print(markdown(rows, 2))
    return rows


def measure_replaced_weights(task: Task, state: TrainState, split: str, folder: Path) -> list[str]:
    """Write and print how much the loss of a split rises with other weights; return sentences."""
    rows = loss_table(task, state, split)
    write_tables(rows, folder / "replaced_weights", 4)
    found = loss_notes(rows, split)
    print("\n".join(found), end="\n\n")
    return found


def measure_alignment(task: Translation, state: TrainState, split: str, folder: Path) -> None:
    """Write and print word alignments of a split, and their error."""
    report = align_task(task, state, split)
    write_alignment(report, folder)
    lines = "".join(f"{as_pharaoh(links)}\n" for links in report.links)
    write_whole(folder / "alignment.pharaoh", lines)
    print(f"alignment of the {split} split, in %; methods are chosen on validation")
    print(markdown(report.rows, 1))


def write_alignment(report: Report, folder: Path) -> None:
    """Write the best methods and baselines, and in a file of their own all methods."""
    write_tables(report.rows, folder / "alignment", 1)
    write_tables(report.every, folder / "alignment_methods", 1)


def align_file(
    task: Translation,
    state: TrainState,
    read: Read,
    gold: Sequence[Gold] | None,
    folder: Path,
) -> None:
    """Write the word alignments of a file and its pairs, and print their error with gold ones.

    Without gold, the method is that with the lowest error on the validation split.
    """
    if gold is not None:
        report, links = align_with_gold(task, state, read.pairs, read.measured, gold)
        write_alignment(report, folder)
        print("alignment of the second half of the file, in %; chosen on the first half")
        print(markdown(report.rows, 1))
    else:
        found = align_without_gold(task, state, read.measured)
        if found is None:
            print("words are not aligned: the data has no gold alignments, and --gold names none")
            return
        method, links = found
        print(f"words are aligned by {method}")
    lines = "".join(f"{as_pharaoh(each)}\n" for each in links)
    write_whole(folder / "alignment.pharaoh", lines)
    write = task.tokenizers.target.decode  # the targets that are not given are generated
    written = (write(example.inputs[DECODER][1:].tolist()) for example in read.measured)
    pairs = zip(read.pairs, written, strict=True)
    lines = (f"{pair.source}\t{pair.target or generated}\n" for pair, generated in pairs)
    write_whole(folder / "alignment.tsv", "".join(lines))


def measure_attributions(
    task: Translation, state: TrainState, example: Example, maps: AttentionMaps, folder: Path
) -> None:
    """Draw attributions of an example beside its attention, if `Explainer` takes it."""
    if not fits(example, task.tokenizers.target.token(EOS)):
        print(
            "no attribution: a translation has no end, or one side has more than "
            f"{POSITIONS - 1} tokens"
        )
        return
    ((found, _),) = task.explainer(state.parameters, [example])
    draw_attributions(found, maps, folder / "attributions")


def measure_agreement(task: Translation, state: TrainState, split: str, folder: Path) -> None:
    """Write and print how attention agrees with attributions, over the first short examples."""
    found, alignments = explained(task, state, split, MEASURED)
    if not found:
        print(f"no attribution: no pair has at most {POSITIONS - 1} tokens on each side\n")
        return
    rows = agreement_table(found, alignments)
    write_tables(rows, folder / "agreement", 2)
    draw_deletion(deletion_curves(found), folder / "deletion")
    print(f"agreement with attributions, rank correlations over {len(found)} sentences")
    print(markdown(rows, 2))
    print(f"{completeness_note(found)}\n")
