"""Sentence pairs as the batches that a configuration of a translation asks for."""

from collections.abc import Iterable, Sequence

import grain.python as grain

from experiments.config import Config
from experiments.data.batching import (
    Batch,
    Buckets,
    EncodedPair,
    FreshEpochs,
    evaluation_batches,
    training_batches,
)
from experiments.data.epoch import Epoch
from experiments.data.packing import PackedPairs, PairedRows
from experiments.data.pairs import SentencePair
from experiments.data.sequences.faults import tell_left_out
from experiments.data.subword_dropout import PairDropout
from experiments.data.tokenizers import Tokenizers
from experiments.errors import UsageError


class PairBatches:
    """Turns sentence pairs into ids, and these into batches to learn from or to be measured by."""

    def __init__(self, config: Config, tokenizers: Tokenizers) -> None:
        """Reads nothing yet.

        Args:
            config: of a translation.
            tokenizers: of both languages.
        """
        self._config = config
        self._tokenizers = tokenizers

    def encode(self, split: str, pairs: list[SentencePair]) -> list[EncodedPair]:
        """The sentences of a split as ids.

        Raises:
            UsageError: sentences that the model has no room for, the longest of which is named.
        """
        encoded = [self._tokenizers.encode(pair) for pair in pairs]
        longest = max(range(len(pairs)), key=lambda number: encoded[number].length)
        if encoded[longest].length > self._config.model.max_length:
            source = pairs[longest].source
            sentence = source if len(source) <= 40 else f"{source[:40]}…"
            may_drop = split == "train" and hasattr(self._config.data, "faults")
            raise UsageError(
                f"the {split} split needs {encoded[longest].length} positions, for {sentence!r}: "
                f"raise model.max_length={self._config.model.max_length}"
                + (", or leave such pairs out by data.faults=drop" if may_drop else "")
            )
        return encoded

    def fitting(self, pairs: list[SentencePair]) -> list[SentencePair]:
        """The training pairs that there is room for; where others may be dropped, they are counted.

        Raises:
            UsageError: none is left.
        """
        if getattr(self._config.data, "faults", "refuse") != "drop":
            return pairs
        kept = [pair for pair in pairs if self._tokenizers.encode(pair).length <= self._longest]
        told = f"more than {self._longest} subwords"
        if len(kept) < len(pairs):
            tell_left_out("train", len(pairs) - len(kept), len(pairs), told)
        if not kept:
            raise UsageError(f"no pair of the train split is left: all have {told}")
        return kept

    def training(
        self, pairs: Sequence[SentencePair], encoded: Sequence[EncodedPair]
    ) -> grain.DatasetIterator[Batch | PackedPairs] | FreshEpochs[Batch | PackedPairs]:
        """Shuffled batches: of packed rows where `batch.row_length` asks for them.

        With `text.dropout` each epoch is segmented anew.

        Args:
            pairs: the sentences.
            encoded: the same as ids.

        Raises:
            UsageError: a pair that is longer than a row.
        """
        seed, text = self._config.seed, self._config.text
        dropout = text.dropout if text else 0.0
        batches = self._shuffled(encoded)
        told = ", before any merge of subwords is left out" if dropout else ""
        print(f"{batches.padding:.1%} of the positions in training batches are padding{told}")
        if not dropout:
            return training_batches(batches, num_batches=self._config.train.steps, seed=seed)
        segment = PairDropout(self._tokenizers, dropout, self._longest)
        return FreshEpochs(
            lambda random: self._shuffled(segment(pairs, encoded, random)), seed=seed
        )

    def epoch(self, pairs: list[SentencePair]) -> Epoch:
        """How much the training pairs are, before any merge of subwords is left out."""
        return self._shuffled(self.encode("train", pairs)).epoch

    def evaluation(self, pairs: Sequence[EncodedPair]) -> list[Batch]:
        """Sentences as batches of few lengths: compiling costs more than a little padding."""
        buckets = self._buckets(pairs, [max(self._config.batch.bucket_lengths)])
        return [batch for _, batch in evaluation_batches(buckets)]

    @property
    def _longest(self) -> int:
        """The positions that a pair may take where something is learned from it."""
        return self._config.batch.row_length or self._config.model.max_length

    def _shuffled(self, pairs: Sequence[EncodedPair]) -> Buckets | PairedRows:
        batch = self._config.batch
        if batch.row_length:
            return PairedRows(pairs, length=batch.row_length, tokens=batch.tokens)
        return self._buckets(pairs, batch.bucket_lengths)

    def _buckets(self, pairs: Sequence[EncodedPair], lengths: Iterable[int]) -> Buckets:
        """Sentences as batches of these lengths, and of the longest that the model takes."""
        lengths = {*lengths, self._config.model.max_length}
        return Buckets(pairs, sorted(lengths), self._config.batch.tokens)
