"""Draw and measure what a trained model attends to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from flax import nnx

from experiments.analysis.agreement import (
    POSITIONS,
    Explainer,
    agreement_table,
    worst_completeness,
)
from experiments.analysis.alignment import as_pharaoh
from experiments.analysis.collect import CROSS, ENCODER, Attended, Collector, Example
from experiments.analysis.contextual_senses import (
    FEWEST,
    draw_senses,
    sense_vectors,
    senses_table,
)
from experiments.analysis.cross_alignment import align_task
from experiments.analysis.figures import FORMATS, draw_maps, draw_mask, write_csv
from experiments.analysis.heads import beside, changes, heads_table, repeated_block, visible
from experiments.analysis.page.build import write_explanation
from experiments.analysis.replaced_weights import loss_table, unneeded
from experiments.analysis.tables import markdown, write_tables
from experiments.config import Config
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.files import write_whole
from experiments.registry import TASKS
from experiments.tasks.task import Task
from experiments.tasks.translation import Translation
from experiments.training.session import restore
from experiments.training.step import TrainState
from experiments.workdir import Workdir

SHOWN = 3  # examples of a split that are drawn
IN_PAGE = 20  # examples of a split that are in its page
MEASURED = 100  # examples of a split in the table of heads
AT_ONCE = 20  # examples of a pass


def explain(
    config: Config,
    workdir: Workdir,
    cache: Path,
    sentence: str | None = None,
    split: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> None:
    """Write what a model attends to into the folder `explain` of its run.

    Args:
        config: of the run.
        workdir: of the run.
        cache: where generated data is kept.
        sentence: that is drawn. Without it, the first sentences of a split are drawn, and heads and
            alignments are measured on the split.
        split: the first test split if None.
        layer: of the head that is drawn alone, from 1; the last one if None.
        head: that is drawn alone, from 1; the first one if None.

    Raises:
        UsageError: a sentence that cannot be read, an unknown split, a layer or a head out of
            range, or a model that does not attend.
    """
    if sentence is not None and split is not None:
        raise UsageError("--mode=explain takes a --sentence or a --split, got both")
    if getattr(config.model, "implementation", None) is not None:  # some return no weights
        config = replace(config, model=replace(config.model, implementation=None))
    task = TASKS[config.task].load(config, workdir, cache)
    split = split or task.test_splits[0]
    with as_usage_errors():
        one_of("--split", split, task.known_splits)
    state = restore(workdir, task).state
    untrained = task.learner.initial_state().parameters
    collector, folder = Collector(task), workdir.explanation
    if sentence is not None:
        with as_usage_errors("--sentence: "):
            examples = {"sentence": task.example(state, sentence)}
    else:
        pairs = task.first_examples(split, SHOWN)
        examples = {
            f"{split}-{number}": task.example(state, pair.source)
            for number, pair in enumerate(pairs, start=1)
        }
    found, control = (
        [*collector(parameters, [*examples.values()])]
        for parameters in (state.parameters, untrained)
    )
    for name, *each in zip(examples, found, control, strict=True):
        draw_example(*each, folder / name, layer, head)
        print(f"{folder / name}: {' '.join(texts(examples[name]))}")
    notes = [
        f"re-initialised weights move {change:.0%} of the {kind}"
        for kind, change in changes(found, control).items()
    ]
    print("\n".join(notes))
    if sentence is not None:
        write_explanation(folder / "sentence.html", task, state, [sentence], notes=notes)
        return
    heads = measure_heads(task, state, untrained, collector, split, folder)
    notes += measure_replaced_weights(task, state, split, folder)
    sources = [pair.source for pair in task.first_examples(split, IN_PAGE)]
    write_explanation(folder / f"{split}.html", task, state, sources, heads, notes)
    if CROSS in found[0].maps and pairs[0].links:
        measure_alignment(task, state, collector, split, folder)
        measure_agreement(task, state, split, folder)
    if task.source.has_phenomena and ENCODER in found[0].hidden_states:
        measure_senses(task, state, collector, folder)


def texts(example: Example) -> list[str]:
    """Return the labels of the text of each stack, joined by arrows."""
    found = []
    for stack, labels in example.labels.items():
        before, after = example.special[stack]
        found += [*(["→"] if found else []), *labels[before : len(labels) - after]]
    return found


def draw_example(
    found: Attended, untrained: Attended, folder: Path, layer: int | None, head: int | None
) -> None:
    """Write the maps of an example: all heads of each layer, one head, the mask, and CSV.

    Args:
        found: what the model attends to.
        untrained: the same of an untrained model, for the mask.
        folder: of the files.
        layer: as in `explain`.
        head: as in `explain`.

    Raises:
        UsageError: a layer or a head out of range, or a model that does not attend.
    """
    if not found.maps:
        raise UsageError("this model has no layer that attends")
    places = {
        kind: maps.index(maps.layers[-1] if layer is None else layer, 1 if head is None else head)
        for kind, maps in found.maps.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    for kind, maps in found.maps.items():
        for place, number in enumerate(maps.layers):
            heads = [(place, head) for head in range(maps.weights.shape[1])]
            draw_maps(maps, folder / f"{kind}-layer-{number}", places=heads, formats=FORMATS)
        place, at = places[kind]
        path = folder / f"{kind}-layer-{maps.layers[place]}-head-{at + 1}"
        draw_maps(maps, path, places=[(place, at)], formats=FORMATS)
        draw_mask(visible(untrained.maps[kind], place), maps, folder / f"{kind}-mask")
        write_csv(maps, folder / f"{kind}.csv")


def measure_heads(
    task: Task,
    state: TrainState,
    untrained: nnx.State,
    collector: Collector,
    split: str,
    folder: Path,
) -> list[dict[str, Any]]:
    """Write, print and return the table of heads, over the first examples of a split."""
    pairs = task.first_examples(split, MEASURED)
    examples = [task.example(state, pair.source, pair.target) for pair in pairs]
    block = repeated_block(examples, getattr(task.config.model, "max_length", None))

    def table(parameters: nnx.State) -> list[dict[str, Any]]:
        repeated = None if block is None else next(collector(parameters, [block.example]))
        found = collector(parameters, examples, batch_size=AT_ONCE)
        return heads_table(found, block, repeated)

    rows = table(state.parameters)
    write_tables(beside(rows, table(untrained)), folder / "heads", 3)
    print(f"\nheads, over {len(examples)} examples of the {split} split")
    print(markdown(rows, 2))
    return rows


def measure_replaced_weights(task: Task, state: TrainState, split: str, folder: Path) -> list[str]:
    """Write and print how much the loss of a split rises with other weights.

    Returns:
        A sentence for each kind of attention whose weights are not needed.
    """
    rows = loss_table(task, state, split)
    write_tables(rows, folder / "replaced_weights", 4)
    print(f"loss of the {split} split with other weights, in nats per token")
    print(markdown(rows, 4))
    found = unneeded(rows)
    print("".join(f"{line}\n" for line in found))
    return found


def measure_alignment(
    task: Translation, state: TrainState, collector: Collector, split: str, folder: Path
) -> None:
    """Write and print word alignments of a split, and their error."""
    report = align_task(task, state, collector, split)
    write_tables(report.every, folder / "alignment", 1)
    lines = "".join(f"{as_pharaoh(links)}\n" for links in report.links)
    write_whole(folder / f"alignment.{split}.pharaoh", lines)
    print(f"alignment of the {split} split, in %; methods are chosen on validation")
    print(markdown(report.rows, 1))


def measure_agreement(task: Translation, state: TrainState, split: str, folder: Path) -> None:
    """Write and print how attention agrees with attributions, over the first short examples."""
    pairs = task.first_examples(split, 3 * MEASURED)
    every = [task.example(state, pair.source, pair.target) for pair in pairs]
    short = [each for each in every if max(map(len, each.inputs.values())) <= POSITIONS]
    found = [*Explainer(task)(state.parameters, short[:MEASURED])]
    if not found:
        return
    rows = agreement_table(found)
    write_tables(rows, folder / "agreement", 2)
    print(f"agreement with attributions, rank correlations over {len(found)} sentences")
    print(markdown(rows, 2))
    print(
        f"integrated gradients: the sum is off by at most {worst_completeness(found):.2%} for 95 % "
        "of the target tokens\n"
    )


def measure_senses(task: Task, state: TrainState, collector: Collector, folder: Path) -> None:
    """Write and print how well the vectors of each layer distinguish the senses of words."""
    found, vectors = sense_vectors(task, state, collector)
    if not found:
        return
    rows = senses_table(found, vectors)
    write_tables(rows, folder / "senses", 2)
    draw_senses(found, vectors, folder / "senses")
    print(f"senses of words with at least {FEWEST} uses in the splits beside train, in %")
    print(markdown(rows, 2))
