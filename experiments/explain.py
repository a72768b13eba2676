"""Draw and measure what a trained model attends to."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from experiments.analysis import alignment
from experiments.analysis.alignment import read_links
from experiments.analysis.attribution import POSITIONS, Explainer, agreement_table
from experiments.analysis.collect import CROSS, DECODER, Attended, Example
from experiments.analysis.figures import as_csv, draw_attributions, draw_example, markdown
from experiments.analysis.heads import heads_table, repeated_block
from experiments.analysis.page.build import write_explanation
from experiments.analysis.page.example_data import examples_data
from experiments.analysis.replaced_weights import loss_table
from experiments.config import Config
from experiments.config.parts import MeshPart
from experiments.data.tokenizers import SentencePair, WordTokenizer
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.files import make_folder, read_lines, write_whole
from experiments.tasks.task import Task
from experiments.tasks.translation import Translation
from experiments.trained import Run
from experiments.workdir import Workdir, origin

DRAWN = 3  # examples of a file or a split that are drawn
MEASURED = 100  # examples in the table of heads
EXPLAINED = 30  # short examples of a split in the table of agreement
IN_PAGE = 20  # examples of a file or a split that are in its page
# The page of a split begins with those of which a translator knows every word.
FAMILIAR = (
    "I went to the bank to deposit money",
    "the bank of the river was dirty",
    "the cat sat on the mat",
    "I ate an apple for breakfast",
    "Apple released a new phone",
)


class Inputs(NamedTuple):
    """Sentences or pairs that are explained."""

    folder: Path  # of their tables and pictures
    shown: Sequence[SentencePair]  # in the page; a target that is not given is generated
    drawn: Sequence[Example]  # of the first ones, of which there are pictures
    pairs: Sequence[SentencePair] = ()  # that are measured; of sentences none
    examples: Sequence[Example] = ()  # of `pairs`
    gold: Sequence[alignment.Gold] = ()  # alignments of `pairs`, if there are any
    split: str = ""  # of `pairs`, "" if they are those of a file


def explain(
    config: Config,
    workdir: Workdir,
    cache: Path,
    sentence: Sequence[str] | None = None,
    split: str | None = None,
    file: Path | None = None,
    gold: Path | None = None,
    gold_first: int = 0,
    layer: int | None = None,
    head: int | None = None,
) -> None:
    """Write what a model attends to into the folder `explain` of its run.

    There is a page and a folder for the sentences, for each split and for each name of a file. The
    arguments after `cache` are the flags of the same names; by default, the first test split is
    explained.

    Raises:
        UsageError: a sentence that cannot be read, an unknown split, an unknown head, or a model
            that does not attend.
    """
    values = {"--sentence": sentence, "--file": file, "--split": split}
    flags = [flag for flag, value in values.items() if value is not None]
    if len(flags) > 1:
        raise UsageError(f"--mode=explain takes one of {' and '.join(flags)}")
    if getattr(config.model, "implementation", None) is not None:  # some return no weights
        config = replace(config, model=replace(config.model, implementation=None))
    run = Run.load(workdir, cache, replace(config, mesh=MeshPart(data=1)))
    task, state, folder = run.task, run.state, workdir.explanation
    if sentence is not None:
        with as_usage_errors("--sentence: "):
            drawn = [task.example(state, line) for line in sentence]
        inputs = Inputs(folder / name_of(sentence), [*map(SentencePair, sentence)], drawn)
    elif file is not None:
        inputs = read_file(run, folder, file, gold, gold_first)
    else:
        with as_usage_errors():
            one_of("--split", split := split or task.test_splits[0], task.known_splits)
        inputs = read_split(run, folder, split)
    folder = inputs.folder
    make_folder(folder)
    write_whole(folder / "origin.json", json.dumps(origin() | {"step": int(state.step)}) + "\n")
    sources, targets, _ = zip(*inputs.shown, strict=True)
    page = examples_data(task, state, sources, targets)
    passes = draw(run, inputs, page, layer, head)
    heads = measure_heads(run, inputs) if inputs.examples else []
    if inputs.split:
        print(f"measuring the loss of the {split} split with replaced weights", flush=True)
        write_table(folder / "replaced_weights", loss_table(task, state, split), 4)
    if isinstance(task, Translation):
        if inputs.pairs:
            measure_alignment(run, inputs)
        attribute(run, inputs, passes)
    if inputs.split and (known := familiar(task)):
        page = [*examples_data(task, state, known), *page]
    path = folder.with_name(f"{folder.name}.html")
    write_explanation(path, task, state, page, heads)
    print(f"the page is {path}")


def name_of(sentences: Sequence[str]) -> str:
    """Return a name of a file for sentences, made of their first words and a hash."""
    words = re.findall(r"[^\W_]+", sentences[0])
    digest = hashlib.sha256("\n".join(sentences).encode()).hexdigest()
    return "_".join([*words, ""])[:40] + digest[:6]


def read_split(run: Run, folder: Path, split: str) -> Inputs:
    """Return the first examples of a split; all of them if they have gold alignments."""
    task, state = run.task, run.state
    gold = split_gold(task, split) if isinstance(task, Translation) else []
    pairs = [*task.examples(split)] if gold else task.first_examples(split, MEASURED)
    shown = [SentencePair(pair.source) for pair in pairs[:IN_PAGE]]
    drawn = [task.example(state, pair.source) for pair in shown[:DRAWN]]
    examples = [task.example(state, pair.source, pair.target) for pair in pairs]
    return Inputs(folder / split, shown, drawn, pairs, examples, gold, split)


def familiar(task: Task) -> list[str]:
    """Return the familiar sentences of which a translator of words knows every word."""
    if not (isinstance(task, Translation) and isinstance(task.tokenizers.source, WordTokenizer)):
        return []
    return [each for each in FAMILIAR if not task.read(each).unknown]


def split_gold(task: Translation, split: str) -> list[alignment.Gold]:
    """Return the links of a split, all of them sure; [] if no pair has any."""
    links = [frozenset(pair.alignment) for pair in task.examples(split)]
    return [alignment.Gold(sure, sure) for sure in links] if any(links) else []


def read_file(run: Run, folder: Path, path: Path, gold: Path | None, gold_first: int) -> Inputs:
    """Read sentences, one a line; a tab separates a sentence from its translation.

    A file that cannot be read, or a line of another form, is a UsageError.
    """
    task = run.task
    if gold and not isinstance(task, Translation):
        raise UsageError(f"--gold is for translation, and task={task.config.task!r} has no pair")
    try:
        lines = read_lines(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--file={path} cannot be read: {error}") from error
    if not lines:
        raise UsageError(f"--file={path} is empty")
    pairs, examples = [], []
    for number, line in enumerate(lines, start=1):
        with as_usage_errors(f"--file={path}, line {number}: "):
            if line.count("\t") > 1:
                raise ValueError("a line has at most one tab")
            pairs.append(SentencePair(*line.split("\t")))
            if gold and not pairs[-1].target:
                raise ValueError("--gold needs a tab and a translation")
            examples.append(task.example(run.state, pairs[-1].source, pairs[-1].target or None))
    links = read_links(gold, first=gold_first, lengths=lengths(task, pairs)) if gold else []
    name = f"file_{path.name}" if path.name in task.known_splits else path.name
    return Inputs(folder / name, pairs[:IN_PAGE], examples[:DRAWN], pairs, examples, links)


def draw(
    run: Run, inputs: Inputs, page: Sequence[Mapping[str, Any]], layer: int | None, head: int | None
) -> list[Attended]:
    """Draw and return the attention of examples, each in a folder; `page` has their texts."""
    passes = [*run.task.collector(run.state.parameters, inputs.drawn)]
    for number, (example, attended) in enumerate(zip(inputs.drawn, passes, strict=True), start=1):
        path, shown = inputs.folder / str(number), page[number - 1]
        texts = [shown["name"], *(answer["text"] for answer in shown["translations"][:1])]
        print(f"drawing {path}: {' → '.join(texts)}".replace("\n", r"\n"), flush=True)
        if example.note:
            print(example.note)
        draw_example(attended.maps, path, layer, head)
    return passes


def attribute(run: Run, inputs: Inputs, passes: Sequence[Attended]) -> None:
    """Draw attributions of examples, and write how the attention of a split agrees with them."""
    explainer, parameters = Explainer(run.task), run.state.parameters
    for number, (example, attended) in enumerate(zip(inputs.drawn, passes, strict=True), start=1):
        path = inputs.folder / str(number) / "attributions"
        if explainer.takes(example):
            ((values, _),) = explainer(parameters, [example])
            draw_attributions(values, attended.maps[CROSS], path)
        else:
            print(f"no {path}: more than {POSITIONS - 1} tokens of a side, or no end")
    examples = [*filter(explainer.takes, inputs.examples[: 3 * EXPLAINED])][:EXPLAINED]
    if inputs.split and examples:
        print(f"measuring agreement with attributions over {len(examples)} examples", flush=True)
        explained = [*explainer(parameters, examples)]
        write_table(inputs.folder / "agreement", agreement_table(explained), 2)


def measure_heads(run: Run, inputs: Inputs) -> list[dict[str, Any]]:
    """Write the table of heads, and that of the initial parameters; return the first one."""
    task, examples, tables = run.task, inputs.examples[:MEASURED], {}
    block = repeated_block(examples, getattr(task.config.model, "max_length", None))
    for name, measured in (("heads", run.state), ("heads_untrained", task.learner.initial_state())):
        print(f"measuring {name} over {len(examples)} examples of {inputs.folder.name}", flush=True)
        repeated = next(task.collector(measured.parameters, [block])) if block else None
        passes = task.collector(measured.parameters, examples, batch_size=alignment.BATCH_SIZE)
        tables[name] = heads_table(passes, block, repeated)
        write_table(inputs.folder / name, tables[name], 2)
    return tables["heads"]


def measure_alignment(run: Run, inputs: Inputs) -> None:
    """Write word alignments, and their error against gold links.

    The method is that with the lowest error on the validation split; with gold links of a file, on
    the first half of its pairs, and the error is that on the other half.
    """
    task, state, folder = run.task, run.state, inputs.folder
    gold, validation = inputs.gold, split_gold(task, "validation")
    half = 0 if inputs.split else len(gold) // 2
    if not (half or validation):
        print("words are not aligned: neither the data nor --gold has gold alignments")
        return
    print("measuring alignments", flush=True)
    links = alignment.align(task, state, inputs.examples)
    if half:
        first = {method: aligned[:half] for method, aligned in links.items()}
        chosen = alignment.errors(first, gold[:half])
    else:
        pairs = task.examples("validation")
        examples = [task.example(state, pair.source, pair.target) for pair in pairs]
        chosen = alignment.errors(alignment.align(task, state, examples), validation)
    if gold:
        rest = {method: aligned[half:] for method, aligned in links.items()}
        sizes = lengths(task, inputs.pairs[half:])
        table = alignment.alignment_table(chosen, rest, gold[half:], sizes)
        write_table(folder / "alignment", table, 1)
    method = next(iter(chosen))
    print(f"words are aligned by {method}")
    lines = (f"{alignment.as_pharaoh(aligned)}\n" for aligned in links[method])
    write_whole(folder / "alignment.pharaoh", "".join(lines))
    decode = task.tokenizers.target.decode  # the targets that are not given are generated
    lines = (
        f"{pair.source}\t{pair.target or decode(example.inputs[DECODER][1:].tolist())}\n"
        for pair, example in zip(inputs.pairs, inputs.examples, strict=True)
    )
    write_whole(folder / "alignment.tsv", "".join(lines))


def lengths(task: Task, pairs: Sequence[SentencePair]) -> list[tuple[int, int]]:
    """Return the numbers of words of each pair, between which alignments are."""
    source, target = task.tokenizers
    return [(len(source.words(pair.source)), len(target.words(pair.target))) for pair in pairs]


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], digits: int) -> None:
    """Print a table, and write it as Markdown and as CSV."""
    text = markdown(rows, digits)
    write_whole(path.with_name(f"{path.name}.md"), text)
    write_whole(path.with_name(f"{path.name}.csv"), as_csv(rows))
    print(text)
