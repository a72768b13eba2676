"""Draw and measure what a trained model attends to."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from experiments.analysis.alignment import (
    Gold,
    align,
    alignment_table,
    as_pharaoh,
    errors,
    read_links,
)
from experiments.analysis.attribution import POSITIONS, agreement_table
from experiments.analysis.collect import CROSS, DECODER, Example
from experiments.analysis.figures import as_csv, draw_attributions, draw_example, markdown
from experiments.analysis.heads import heads_table, repeated_block
from experiments.analysis.page.build import write_explanation
from experiments.analysis.page.example_data import examples_data
from experiments.analysis.replaced_weights import loss_table
from experiments.config import Config
from experiments.config.train import MeshPart
from experiments.data.tokenizers import SentencePair
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.files import read_lines, write_whole
from experiments.learner import TrainState
from experiments.origin import origin
from experiments.registry import TASKS
from experiments.tasks.task import Task
from experiments.tasks.translation import Translation
from experiments.trained import restore
from experiments.workdir import Workdir

VALIDATION = "validation"
DRAWN = 3  # examples of a file or a split that are drawn
MEASURED = 100  # examples of a split in the table of heads
EXPLAINED = 30  # short examples of a split in the table of agreement
IN_PAGE = 20  # examples of a file or a split that are in its page
BATCH_SIZE = 20  # examples of a pass


def explain(
    config: Config,
    workdir: Workdir,
    cache: Path,
    sentence: str | Sequence[str] | None = None,
    split: str | None = None,
    file: Path | None = None,
    gold: Path | None = None,
    gold_first: int = 0,
) -> None:
    """Write what a model attends to into the folder `explain` of its run.

    There is a page and a folder for the sentences, for each split and for each name of a file.

    Args:
        config: of the run.
        workdir: of the run.
        cache: folder of generated data.
        sentence: one or several, which are drawn. Without it, the first sentences of a split are
            drawn, and heads and alignments are measured on the split.
        split: the first test split if None.
        file: of sentences, or of pairs, in place of a split.
        gold: word alignments of the pairs in the file.
        gold_first: number of the first word in them, 0 or 1.

    Raises:
        UsageError: a sentence that cannot be read, an unknown split, or a model that does not
            attend.
    """
    inputs = {"--sentence": sentence, "--file": file, "--split": split}
    flags = [flag for flag, value in inputs.items() if value is not None]
    if len(flags) > 1:
        raise UsageError(f"--mode=explain takes one of {' and '.join(flags)}")
    if getattr(config.model, "implementation", None) is not None:  # some return no weights
        config = replace(config, model=replace(config.model, implementation=None))
    task = TASKS[config.task].load(replace(config, mesh=MeshPart(data=1)), workdir, cache)
    split = split or task.test_splits[0]
    with as_usage_errors():
        one_of("--split", split, task.known_splits)
    state = restore(workdir, task).state
    explanation = Explanation(task, state, workdir.explanation)
    if sentence is not None:
        explanation.of_sentences([sentence] if isinstance(sentence, str) else sentence)
    elif file is not None:
        explanation.of_file(file, gold, gold_first)
    else:
        explanation.of_split(split)


class Explanation:
    """Pictures, tables and the page of a trained model."""

    def __init__(self, task: Task, state: TrainState, folder: Path) -> None:
        """Explain the model of a task; a folder and a page are written into `folder`."""
        self.task, self.state, self.parent = task, state, folder

    def of_sentences(self, sentences: Sequence[str]) -> None:
        """Draw sentences; their page and folder have a name made of their letters and a hash."""
        with as_usage_errors("--sentence: "):
            drawn = [self.task.example(self.state, sentence) for sentence in sentences]
        self._start(name_of(sentences))
        page = self._draw(drawn, [SentencePair(sentence) for sentence in sentences])
        self._write_page(page)

    def of_split(self, split: str) -> None:
        """Draw the first examples of a split, and measure heads and alignments on it."""
        task, state = self.task, self.state
        pairs = task.first_examples(split, MEASURED)
        self._start(split)
        drawn = [task.example(state, pair.source) for pair in pairs[:DRAWN]]
        page = self._draw(drawn, [SentencePair(pair.source) for pair in pairs[:IN_PAGE]])
        heads = self._measure_heads(self._examples(pairs), f"the {split} split")
        print(f"measuring the loss of the {split} split with replaced weights", flush=True)
        self._write_table("replaced_weights", loss_table(task, state, split), 4)
        if isinstance(task, Translation):
            if gold := self._gold(split):
                every = [*task.examples(split)]
                self._align(every, self._examples(every), gold)
            self._measure_agreement(split)
        self._write_page(page, heads)

    def of_file(self, path: Path, gold: Path | None, gold_first: int) -> None:
        """Draw the first lines of a file, measure heads, and align its words."""
        task = self.task
        if gold and not isinstance(task, Translation):
            raise UsageError(
                f"--gold is for translation, and task={task.config.task!r} has no pair"
            )
        pairs, examples = read_file(task, self.state, path)
        links = None
        if gold:
            if missing := [line for line, pair in enumerate(pairs, start=1) if not pair.target]:
                raise UsageError(f"--gold needs pairs, and line {missing[0]} of {path} has no tab")
            links = read_links(gold, first=gold_first, lengths=[*map(self._lengths, pairs)])
        self._start(f"file_{path.name}" if path.name in task.known_splits else path.name)
        page = self._draw(examples[:DRAWN], pairs[:IN_PAGE])
        heads = self._measure_heads(examples, str(path))
        if isinstance(task, Translation):
            if links or self._gold(VALIDATION):
                self._align(pairs, examples, links, start=len(pairs) // 2 if links else 0)
            else:
                print("words are not aligned: neither the data nor --gold has gold alignments")
        self._write_page(page, heads)

    def _start(self, name: str) -> None:
        """Create the folder, and write into it which command of which commit makes the tables."""
        self.folder, self.page = self.parent / name, self.parent / f"{name}.html"
        self.folder.mkdir(parents=True, exist_ok=True)
        written = origin() | {"step": int(self.state.step)}
        write_whole(self.folder / "origin.json", json.dumps(written) + "\n")

    def _write_page(
        self, examples: list[dict[str, Any]], heads: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        write_explanation(self.page, self.task, self.state, examples, heads)
        print(f"the page is {self.page}")

    def _write_table(self, name: str, rows: Sequence[Mapping[str, Any]], digits: int) -> None:
        """Print a table, and write it as Markdown and as CSV."""
        text = markdown(rows, digits)
        write_whole(self.folder / f"{name}.md", text)
        write_whole(self.folder / f"{name}.csv", as_csv(rows))
        print(text)

    def _draw(
        self, examples: Sequence[Example], pairs: Sequence[SentencePair]
    ) -> list[dict[str, Any]]:
        """Draw examples, and return the data of the page, which has more of them.

        Args:
            examples: that are drawn.
            pairs: of the page; the first ones are those of the examples.
        """
        task, parameters = self.task, self.state.parameters
        attended = [*task.collector(parameters, examples)]
        if any(not each.maps for each in attended):
            raise UsageError("this model has no layer that attends")
        sources = [pair.source for pair in pairs]
        page = examples_data(task, self.state, sources, [pair.target for pair in pairs])
        for number, (example, each) in enumerate(zip(examples, attended, strict=True), start=1):
            folder = self.folder / str(number)
            shown = page[number - 1]
            texts = [shown["name"], *(found["text"] for found in shown["translations"][:1])]
            line = " → ".join(texts).replace("\n", r"\n")
            print(f"drawing {folder}: {line}", flush=True)
            if example.note:
                print(example.note)
            draw_example(each.maps, folder)
            if not isinstance(task, Translation):
                continue
            if task.explainer.takes(example):
                ((values, _),) = task.explainer(parameters, [example])
                draw_attributions(values, each.maps[CROSS], folder / "attributions")
            else:
                print(
                    "no attribution: a translation has no end, or one side has more than "
                    f"{POSITIONS - 1} tokens"
                )
        return page

    def _measure_heads(self, examples: Sequence[Example], place: str) -> list[dict[str, Any]]:
        """Write the table of heads, and that of the initial parameters; return the first one."""
        examples = examples[:MEASURED]
        block = repeated_block(examples, getattr(self.task.config.model, "max_length", None))
        collector, initial = self.task.collector, self.task.learner.initial_state()
        tables = []
        for name, state in (("heads", self.state), ("heads_untrained", initial)):
            print(f"measuring {name} over {len(examples)} examples of {place}", flush=True)
            repeated = next(collector(state.parameters, [block])) if block else None
            passes = collector(state.parameters, examples, batch_size=BATCH_SIZE)
            tables.append(heads_table(passes, block, repeated))
            self._write_table(name, tables[-1], 2)
        return tables[0]

    def _align(
        self,
        pairs: Sequence[SentencePair],
        examples: Sequence[Example],
        gold: Sequence[Gold] | None = None,
        start: int = 0,
    ) -> None:
        """Write word alignments, and their error against gold links.

        Args:
            pairs: that are aligned.
            examples: of the pairs.
            gold: of the pairs; without it, their error is not measured.
            start: number of pairs by which the method is chosen, and whose error is not measured;
                with 0, it is chosen on the validation split.
        """
        print("measuring alignments", flush=True)
        links = align(self.task, self.state, examples)
        if start:
            chosen = errors({method: each[:start] for method, each in links.items()}, gold[:start])
        else:
            validation = [*self.task.examples(VALIDATION)]
            of_validation = align(self.task, self.state, self._examples(validation))
            chosen = errors(of_validation, self._gold(VALIDATION))
        if gold is not None:
            rest = {method: each[start:] for method, each in links.items()}
            lengths = [*map(self._lengths, pairs[start:])]
            self._write_table("alignment", alignment_table(chosen, rest, gold[start:], lengths), 1)
        method = next(iter(chosen))
        print(f"words are aligned by {method}")
        lines = "".join(f"{as_pharaoh(each)}\n" for each in links[method])
        write_whole(self.folder / "alignment.pharaoh", lines)
        decode = self.task.tokenizers.target.decode  # the targets that are not given are generated
        lines = (
            f"{pair.source}\t{pair.target or decode(example.inputs[DECODER][1:].tolist())}\n"
            for pair, example in zip(pairs, examples, strict=True)
        )
        write_whole(self.folder / "alignment.tsv", "".join(lines))

    def _examples(self, pairs: Sequence[SentencePair]) -> list[Example]:
        return [self.task.example(self.state, pair.source, pair.target) for pair in pairs]

    def _gold(self, split: str) -> list[Gold]:
        """Return the links of a split, all of them sure; [] if no pair has any."""
        links = [frozenset(pair.alignment) for pair in self.task.examples(split)]
        return [Gold(each, each) for each in links] if any(links) else []

    def _lengths(self, pair: SentencePair) -> tuple[int, int]:
        source, target = self.task.tokenizers
        return len(source.words(pair.source)), len(target.words(pair.target))

    def _measure_agreement(self, split: str) -> None:
        """Write how attention agrees with attributions, over the first short examples."""
        task, state = self.task, self.state
        examples = self._examples(task.first_examples(split, 3 * EXPLAINED))
        examples = [*filter(task.explainer.takes, examples)][:EXPLAINED]
        print(f"measuring agreement with attributions over {len(examples)} examples", flush=True)
        if not examples:
            return
        explained = task.explainer(state.parameters, examples)
        bar = tqdm(explained, total=len(examples), unit="sentence", disable=None, leave=False)
        self._write_table("agreement", agreement_table([*bar]), 2)


def name_of(sentences: Sequence[str]) -> str:
    """Return a name of a file for sentences, another one for each."""
    words = re.findall(r"[^\W_]+", sentences[0])
    digest = hashlib.sha256("\n".join(sentences).encode()).hexdigest()
    return "_".join([*words, ""])[:40] + digest[:6]


def read_file(
    task: Task, state: TrainState, path: Path
) -> tuple[list[SentencePair], list[Example]]:
    """Read sentences, one a line; a tab separates a sentence from its translation.

    Returns:
        The pairs, and what the model reads of them; it generates the targets that are not given.

    Raises:
        UsageError: a file that cannot be read or is empty, a line with several tabs, or one that
            the model cannot read.
    """
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
            examples.append(task.example(state, pairs[-1].source, pairs[-1].target or None))
    return pairs, examples
