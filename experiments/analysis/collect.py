"""Attention weights and hidden states of every layer, in a pass of their own."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from flax import nnx

from attention.modules import Output
from experiments.data.tokenizers import PAD
from experiments.errors import UsageError

if TYPE_CHECKING:
    from experiments.tasks.task import Task

RETURNING = ("weights", "hidden_states")
SHORTEST = 16  # positions: shorter inputs are padded, so that fewer lengths are compiled
ENCODER, DECODER, CROSS = "encoder", "decoder", "cross"  # kinds of attention


class Example(NamedTuple):
    """What the stacks of a model read of one example, by the name of the stack."""

    inputs: Mapping[str, np.ndarray]  # ids `[T]`, or an image
    labels: Mapping[str, Sequence[str]]  # T tokens, or patches of an image; with a class token
    special: Mapping[str, tuple[int, int]]  # labels before and after the text
    predicted: Sequence[str] = ()  # tokens that a decoder predicts, one for each that it reads
    words: Mapping[str, Sequence[int]] = {}  # number of the word of each token of a text
    unknown: Mapping[str, Sequence[int]] = {}  # indices of unknown words among the labels
    continuation: int = 0  # tokens at the end that a decoder alone added to the text

    @property
    def note(self) -> str:
        """A sentence about unknown words, "" if there are none."""
        words = [self.labels[stack][i] for stack, places in self.unknown.items() for i in places]
        names = ", ".join(map(repr, words))
        return f"not in the vocabulary, read as a placeholder: {names}" if words else ""

    def text_slice(self, stack: str) -> slice:
        """Return the slice of the ids of a stack without special tokens."""
        before, after = self.special[stack]
        without_id = len(self.labels[stack]) - len(self.inputs[stack])  # a class token has no id
        return slice(before - without_id, len(self.inputs[stack]) - after)

    def token_links(self, links: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return (source, target) indices of all tokens of words that are linked."""
        return [
            (source, target)
            for source, source_word in enumerate(self.words[ENCODER])
            for target, target_word in enumerate(self.words[DECODER])
            if (source_word, target_word) in links
        ]


class AttentionMaps(NamedTuple):
    """Attention of one kind, in all layers that have it."""

    kind: str  # "encoder" or "decoder" for self-attention, or "cross"
    layers: Sequence[int]  # number of each layer in its stack, from 1
    weights: np.ndarray  # float32 `[layers, N, T, S]`
    queries: Sequence[str]  # T tokens that are read; of cross-attention those that are predicted
    keys: Sequence[str]  # S tokens


class Attended(NamedTuple):
    """What a model attends to in one example, in float32."""

    maps: Mapping[str, AttentionMaps]  # by kind
    hidden_states: Mapping[str, np.ndarray] = {}  # `[1 + layers, T, D]` by stack, inputs first
    logits: Mapping[str, np.ndarray] = {}  # by stack, of a decoder `[T, V]` and of padding more


def title_of(kind: str) -> str:
    """Return the name of a kind of attention, as people read it."""
    return "cross-attention" if kind == CROSS else f"{kind} self-attention"


class Collector:
    """Collects the attention of a trained model; each shape of the inputs is compiled once."""

    def __init__(self, task: "Task") -> None:
        """Prepare the pass of the model of a task."""
        self._outputs = task.learner.apply(partial(task.attended, returning=RETURNING))
        self._longest = getattr(task.config.model, "max_length", None)

    def __call__(
        self, parameters: nnx.State, examples: Sequence[Example], *, batch_size: int = 1
    ) -> Iterator[Attended]:
        """Yield what the model attends to in each of the examples of `Task.example`, in order."""
        for start in range(0, len(examples), batch_size):
            batch = [*examples[start : start + batch_size]]
            rows = batch + [batch[-1]] * (batch_size - len(batch))
            inputs, lengths = {}, {}
            for stack in batch[0].inputs:
                ids = [example.inputs[stack] for example in rows]
                lengths[stack] = np.array([*map(len, ids)], np.int32)
                inputs[stack] = padded(ids, self._longest) if ids[0].ndim == 1 else np.stack(ids)
            # Slices of arrays of jax would be compiled for each shape.
            outputs = jax.device_get(self._outputs(parameters, inputs, lengths))
            for row, example in enumerate(batch):
                yield attended(outputs, row, example)


def padded(rows: Sequence[np.ndarray], longest: int | None = None) -> np.ndarray:
    """Pad ids to one of few lengths, the longest at most: `[B, T]`."""
    needed = max(map(len, rows))
    length = max(SHORTEST, 1 << (needed - 1).bit_length())
    length = length if longest is None else max(needed, min(length, longest))
    found = np.full((len(rows), length), PAD, np.int32)
    for row, ids in zip(found, rows, strict=True):
        row[: len(ids)] = ids
    return found


def attended(outputs: Mapping[str, Output], row: int, example: Example) -> Attended:
    """Return one row of the outputs of the stacks, without its padding.

    Raises:
        UsageError: no layer attends, or layers have different numbers of heads.
    """
    by_kind: dict[str, dict[int, np.ndarray]] = {}
    states, logits = {}, {}
    for stack, output in outputs.items():
        length = len(example.labels[stack])
        for layer, sublayers in enumerate(output.attention or (), start=1):
            for name, results in (sublayers or {}).items():
                if results and "weights" in results:
                    kind = CROSS if name == "cross_attention" else stack
                    keys = len(example.labels[ENCODER if kind == CROSS else stack])
                    weights = results["weights"][row, :, :length, :keys]
                    by_kind.setdefault(kind, {})[layer] = np.asarray(weights, np.float32)
        if output.logits is not None:
            logits[stack] = np.asarray(output.logits[row], np.float32)
        if len({*map(np.shape, output.hidden_states)}) == 1:
            layers = [state[row, :length] for state in output.hidden_states]
            states[stack] = np.stack(layers).astype(np.float32)
    if not by_kind:
        raise UsageError("this model has no layer that attends")
    maps = {}
    for kind, layers in by_kind.items():
        if len({*map(len, layers.values())}) > 1:
            raise UsageError("layers with different numbers of heads have no maps of one shape")
        queries = example.predicted if kind == CROSS else example.labels[kind]
        keys = example.labels[ENCODER if kind == CROSS else kind]
        weights = np.stack([*layers.values()])
        maps[kind] = AttentionMaps(kind, [*layers], weights, queries, keys)
    return Attended(maps, states, logits)
