"""From pairs of id sequences to padded batches of few shapes."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import grain.python as grain
import numpy as np

from experiments.data.epoch import Epoch
from experiments.data.vocabulary import BOS, EOS, PAD
from experiments.errors import UsageError


class EncodedPair(NamedTuple):
    """A source and a target sentence as ids, without begin and end."""

    source: Sequence[int]
    target: Sequence[int]

    @property
    def length(self) -> int:
        """The positions that the longer side needs, its end included."""
        return max(len(self.source), len(self.target)) + 1


class Batch(NamedTuple):
    """Padded sentences. A batch with too few of them is filled up with rows of padding.

    Attributes:
        source: `[B, S]` ids, ended by `EOS`.
        source_lengths: `[B]`, how many are not padding.
        target_inputs: `[B, T]` ids, begun by `BOS`: what the decoder has seen.
        target_labels: `[B, T]` ids, ended by `EOS`: what it shall say next.
    """

    source: np.ndarray
    source_lengths: np.ndarray
    target_inputs: np.ndarray
    target_labels: np.ndarray


def pad_batch(pairs: Sequence[EncodedPair], size: int, length: int) -> Batch:
    """Makes a batch of `size` rows of `length` positions."""
    source, inputs, labels = (np.full((size, length), PAD, np.int32) for _ in range(3))
    for row, pair in enumerate(pairs):
        source[row, : len(pair.source) + 1] = [*pair.source, EOS]
        inputs[row, : len(pair.target) + 1] = [BOS, *pair.target]
        labels[row, : len(pair.target) + 1] = [*pair.target, EOS]
    return Batch(source, np.sum(source != PAD, axis=1, dtype=np.int32), inputs, labels)


AnyBatch = TypeVar("AnyBatch", covariant=True)


class Batches(Protocol[AnyBatch]):
    """Data that a plan divides into batches of the lengths and places that the plan says."""

    @property
    def epoch(self) -> Epoch:
        """How much all of the data once is."""

    def plan(self, random: np.random.Generator | None = None) -> list[tuple[int, np.ndarray]]:
        """All of the data once, as batches of (length, places); shuffled if `random`."""

    def batch(self, length: int, members: Sequence[int]) -> AnyBatch:
        """The batch of an entry of the plan."""


class Buckets:
    """Pairs of similar length together, so that little is padding and few shapes are compiled."""

    def __init__(self, pairs: Sequence[EncodedPair], lengths: Sequence[int], tokens: int) -> None:
        """Sorts the pairs into buckets.

        Args:
            pairs: the data.
            lengths: the longest pair that each bucket takes, its end included.
            tokens: positions of a batch, on either side.

        Raises:
            UsageError: no pair, one longer than every bucket, or a bucket longer than a batch.
        """
        if not pairs:
            raise UsageError("there is no pair to put into a bucket")
        lengths, needed = sorted({*lengths}), [pair.length for pair in pairs]
        if max(needed) > lengths[-1]:
            raise UsageError(
                f"a sentence pair needs {max(needed)} positions, and the longest bucket has "
                f"{lengths[-1]}: raise model.max_length, the longest of them"
            )
        if lengths[-1] > tokens:
            raise UsageError(
                f"a batch of {tokens} tokens has no room for a sentence of {lengths[-1]}: raise "
                "batch.tokens"
            )
        self.pairs = pairs
        self.tokens = tokens
        self._needed = np.array(needed)
        bucket = np.searchsorted(lengths, needed)
        self._members = {
            length: np.flatnonzero(bucket == place) for place, length in enumerate(lengths)
        }
        room = 2 * sum(length * (tokens // length) for length, _ in self.plan())
        self.padding = 1 - sum(len(pair.source) + len(pair.target) + 2 for pair in pairs) / room
        """The share of all positions, of both sides, that no sentence takes."""

    @property
    def epoch(self) -> Epoch:
        """How much it is; the tokens are those that a decoder says, ends included."""
        tokens = sum(len(pair.target) + 1 for pair in self.pairs)
        return Epoch(len(self.plan()), examples=len(self.pairs), tokens=tokens)

    def plan(self, random: np.random.Generator | None = None) -> list[tuple[int, np.ndarray]]:
        """Every pair once, as batches of (length, indices): shuffled if `random`, else sorted."""
        batches = []
        for length, members in self._members.items():
            size = self.tokens // length
            if random is None:  # who translates a batch waits for its longest answer
                members = members[np.argsort(self._needed[members], kind="stable")]
            else:
                members = random.permutation(members)
            batches += [(length, members[i : i + size]) for i in range(0, len(members), size)]
        order = range(len(batches)) if random is None else random.permutation(len(batches))
        return [batches[i] for i in order]

    def batch(self, length: int, members: Sequence[int]) -> Batch:
        """The padded batch of an entry of the plan."""
        return pad_batch([self.pairs[i] for i in members], self.tokens // length, length)


class Epochs(Generic[AnyBatch]):
    """Random access to the batches of one epoch after the other, each shuffled anew.

    Batch i follows from (seed, i) alone, which is what makes a run resume exactly.
    """

    def __init__(self, buckets: Batches[AnyBatch], *, num_batches: int, seed: int) -> None:
        """Makes a sequence of `num_batches` batches."""
        self._buckets = buckets
        self._num_batches = num_batches
        self._seed = seed
        self._plan = functools.lru_cache(maxsize=2)(self._plan_epoch)
        self.epoch = buckets.epoch

    def _plan_epoch(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        return self._buckets.plan(np.random.default_rng((self._seed, epoch)))

    def __len__(self) -> int:
        """The number of batches of all epochs together."""
        return self._num_batches

    def __getitem__(self, index: int) -> AnyBatch:
        """The batch of one training step."""
        epoch, place = divmod(index, self.epoch.steps)
        return self._buckets.batch(*self._plan(epoch)[place])


class FreshEpochs(Generic[AnyBatch]):
    """One epoch after the other, each of data that is made anew for it.

    A batch follows from (seed, epoch, place in the epoch) alone. Epochs may differ in how many they
    have, so the state says the epoch and the place: none that is over is made again to go on.
    """

    def __init__(
        self, make: Callable[[np.random.Generator], Batches[AnyBatch]], *, seed: int
    ) -> None:
        """Makes an iterator without end.

        Args:
            make: the data of an epoch, drawn from the generator of that epoch.
            seed: of all epochs.
        """
        self._make = make
        self._seed = seed
        self._epoch = functools.lru_cache(maxsize=1)(self._make_epoch)
        self._state = {"epoch": 0, "place": 0}

    def _make_epoch(self, epoch: int) -> tuple[Batches[AnyBatch], list[tuple[int, np.ndarray]]]:
        random = np.random.default_rng((self._seed, epoch))
        batches = self._make(random)
        return batches, batches.plan(random)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> AnyBatch:
        """The batch of the next training step."""
        epoch, place = self._state["epoch"], self._state["place"]
        batches, plan = self._epoch(epoch)
        last = place + 1 == len(plan)
        self.set_state({"epoch": epoch + last, "place": 0 if last else place + 1})
        return batches.batch(*plan[place])

    def get_state(self) -> dict[str, int]:
        """Where it stands, as JSON has it."""
        return self._state

    def set_state(self, state: dict[str, int]) -> None:
        """Goes to where another stood."""
        self._state = state


def training_batches(
    buckets: Batches[AnyBatch], *, num_batches: int, seed: int
) -> grain.DatasetIterator[AnyBatch]:
    """Shuffled batches, from an iterator whose state is saved with a checkpoint."""
    return resumable(Epochs(buckets, num_batches=num_batches, seed=seed))


def resumable(batches: Sequence[AnyBatch]) -> grain.DatasetIterator[AnyBatch]:
    """Batches in their order, from an iterator whose state is saved with a checkpoint.

    Args:
        batches: the batch of each step, by `len` and `[step]`.
    """
    options = grain.ReadOptions(num_threads=0)
    return iter(grain.MapDataset.source(batches).to_iter_dataset(options))


def evaluation_batches(
    buckets: Batches[AnyBatch],
) -> Iterator[tuple[np.ndarray, AnyBatch]]:
    """All of the data once, in a fixed order, as (places, batch)."""
    for length, members in buckets.plan():
        yield members, buckets.batch(length, members)
