"""A trained model as a function from sentences to sentences."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.decoding import (
    Answer,
    Queue,
    Rules,
    WithMemory,
    attending,
    beam_search,
    greedy,
    nothing_seen,
)
from attention.decoding.cached import Attending
from attention.modules.transformer import EncoderDecoder
from attention.modules.unrolled import unrolled
from attention.primitives import masks
from experiments.compilation import compiled
from experiments.data.batching import EncodedPair, pad_batch
from experiments.data.tokenizers import Tokenizers
from experiments.data.vocabulary import BOS, EOS
from experiments.training.sharding import by_rows

REPLACEMENT = "\ufffd"  # which stands where bytes could not be read
SHORTEST = 16  # positions: what is shorter is padded sooner than compiled for
TURNS = 1, 8, 64  # of each place, for which programs are compiled: who is absent costs little


class Hypothesis(NamedTuple):
    """A translation, and how it came about.

    Attributes:
        text: of the target language.
        score: its log-probability over the length penalty.
        tokens: what was said, with the end if it came in time.
        log_probs: of each of them.
        alignment: for each of them the place of the source token that was looked at most, from 0;
            empty for a model that looks at none.
    """

    text: str
    score: float
    tokens: list[str]
    log_probs: list[float]
    alignment: list[int]


class Translator:
    """Translates plain text in batches.

    Attributes:
        aligns: whether the model attends to the source.
    """

    def __init__(
        self,
        definition: nnx.GraphDef,
        tokenizers: Tokenizers,
        *,
        max_length: int,
        rules: Rules,
        beam: int,
        alpha: float,
        n_best: int = 1,
        aligns: bool = True,
    ) -> None:
        """Prepares translation for a model.

        Args:
            definition: an `EncoderDecoder` without its parameters.
            tokenizers: of both languages.
            max_length: the most tokens the model can read, the end included.
            rules: of an answer.
            beam: hypotheses that are followed; 1 is greedy.
            alpha: of the length penalty of `attention.decoding.beam_search`.
            n_best: how many hypotheses `details` has.
            aligns: whether the model attends to the source, as some recurrent ones do not.
        """
        self._tokenizers = tokenizers
        self._max_length = max_length
        self._rules = rules
        self.aligns = aligns

        def translate(
            parameters: nnx.State, source: Array, source_lengths: Array
        ) -> tuple[Array, Array]:
            model = nnx.merge(definition, parameters)
            decode = greedy if beam == 1 else partial(beam_search, beam=beam, alpha=alpha)
            asked, lengths = _by_turns(source), _by_turns(source_lengths)
            room, places = self._room_for(source.shape[-1]), len(source)
            answer = generate(model, asked, lengths, rules, decode, room=room, places=places)
            best = slice(None) if beam == 1 else (slice(None), 0)
            return _by_places(answer.tokens[best], places), _by_places(answer.lengths[best], places)

        def details(parameters: nnx.State, source: Array, source_lengths: Array) -> Answer:
            model = nnx.merge(definition, parameters)
            decode = partial(beam_search, beam=beam, alpha=alpha, n_best=n_best)
            room = rules.max_length
            return generate(model, source, source_lengths, rules, decode, room=room, aligns=aligns)

        def look(parameters: nnx.State, source: Array, target: Array) -> Array:
            model = nnx.merge(definition, parameters)
            memory = model.encode(source, mask=None)
            _, extras = model.decode(target, memory, memory_mask=None, returning=("weights",))
            return extras["cross"]["weights"]

        self._translate = by_rows(translate)
        self._details = compiled(details)
        self._look = compiled(look)

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence as a person types it.

        Raises:
            ValueError: an empty sentence, one too long for the model, an unknown word, or what was
                no text.
        """
        if REPLACEMENT in sentence:
            raise ValueError("the sentence has bytes that are no UTF-8")
        ids = self._tokenizers.source.read(sentence)
        if not ids:
            raise ValueError("the sentence is empty")
        if len(ids) + 1 > self._max_length:
            raise ValueError(
                f"the sentence has {len(ids)} tokens, and the model reads at most "
                f"{self._max_length - 1}"
            )
        return ids

    def __call__(
        self, parameters: nnx.State, sentences: Sequence[str], *, batch_size: int
    ) -> list[str]:
        """Translates each sentence.

        Args:
            parameters: of the model.
            sentences: plain text.
            batch_size: sentences that are translated at once.

        Raises:
            ValueError: as `encode`.
        """
        read = [self.encode(sentence) for sentence in sentences]
        said = self.translate_ids(parameters, read, batch_size=batch_size)
        return [self._text(ids.tolist()) for ids in said]

    def translate_ids(
        self, parameters: nnx.State, sources: Sequence[Sequence[int]], *, batch_size: int
    ) -> list[np.ndarray]:
        """Translates ids into ids: sentences of similar length take turns.

        The room for an answer is half as long again as the sources are padded to, since what
        decoding costs grows with it; who needs more is asked again with the longer sentences.

        Args:
            parameters: of the model.
            sources: each without its end.
            batch_size: sentences that are translated at once.

        Returns:
            What was said of each, with the end if it came in time.

        Raises:
            ValueError: a source that the model cannot read.
        """
        longest = max(map(len, sources), default=0)
        if longest >= self._max_length:
            raise ValueError(f"the model reads at most {self._max_length - 1} ids, got {longest}")
        answers: dict[int, np.ndarray] = {}
        for length in lengths_for(self._max_length):
            fits = [
                number
                for number, source in enumerate(sources)
                if number not in answers and len(source) < length
            ]
            # The last ones to be asked are short, so that no place stands empty for long.
            fits.sort(key=lambda number: -len(sources[number]))
            decided = self._room_for(length) == self._rules.max_length
            most = max(TURNS) * batch_size
            # All are asked for before the first is waited for, so no device stands still.
            parts = [fits[start : start + most] for start in range(0, len(fits), most)]
            asked = [
                self._translate_part(
                    parameters, [sources[number] for number in members], batch_size, length
                )
                for members in parts
            ]
            for members, said in zip(parts, asked, strict=True):
                tokens, lengths = (_by_turns(np.asarray(each)) for each in said)
                for number, ids, num_tokens in zip(members, tokens, lengths, strict=False):
                    if num_tokens or decided:
                        answers[number] = ids[:num_tokens]
        return [answers[number] for number in range(len(sources))]

    def _translate_part(
        self, parameters: nnx.State, sources: Sequence[Sequence[int]], places: int, length: int
    ) -> tuple[Array, Array]:
        """The best answers `[places, turns, *]` and their lengths, 0 for want of room."""
        turns = next(number for number in TURNS if number * places >= len(sources))
        pairs = [EncodedPair(source, ()) for source in sources]
        batch = pad_batch(pairs, turns * places, length)
        asked = _by_places(batch.source, places), _by_places(batch.source_lengths, places)
        return self._translate(parameters, *asked)

    def _room_for(self, length: int) -> int:
        """How many tokens an answer to sources so long may have, for the longest as many as any."""
        seldom_more = max(3 * length // 2, self._rules.min_length)
        most = self._rules.max_length
        return most if length == self._max_length else min(seldom_more, most)

    def details(self, parameters: nnx.State, sentence: str) -> tuple[list[str], list[Hypothesis]]:
        """The tokens of a sentence with their end, and its best translations, the best first.

        Raises:
            ValueError: as `encode`.
        """
        read = self.encode(sentence)
        length = min(length for length in lengths_for(self._max_length) if length > len(read))
        batch = pad_batch([EncodedPair(read, ())], 1, length)
        answer = self._details(parameters, batch.source, batch.source_lengths)
        found = [
            self._hypothesis(jax.tree.map(lambda leaf, at=at: np.asarray(leaf[0, at]), answer))
            for at in range(answer.scores.shape[1])
            if answer.lengths[0, at]
        ]
        return [self._tokenizers.source.token(number) for number in (*read, EOS)], found

    def _text(self, ids: list[int]) -> str:
        """What was said on one line, for a model that spells bytes can say a line feed."""
        return " ".join(self._tokenizers.target.decode(ids).splitlines())

    def _hypothesis(self, answer: Answer) -> Hypothesis:
        said = slice(int(answer.lengths))
        tokens = answer.tokens[said].tolist()
        return Hypothesis(
            text=self._text(tokens),
            score=float(answer.scores),
            tokens=[self._tokenizers.target.token(number) for number in tokens],
            log_probs=answer.log_probs[said].tolist(),
            alignment=[] if answer.observed is None else answer.observed[said].tolist(),
        )

    def cross_attention(
        self, parameters: nnx.State, source: str, target: str
    ) -> tuple[np.ndarray, list[str], list[str]]:
        """What the decoder looks at while it says a given translation.

        Returns:
            Weights `[layers, N, T, S]`, the S words it reads and the T words it says, both with
            their end.
        """
        read, said = self.encode(source), self._tokenizers.target.encode(target)
        weights = self._look(parameters, jnp.array([[*read, EOS]]), jnp.array([[BOS, *said]]))
        return (
            np.asarray(weights)[:, 0],
            [self._tokenizers.source.token(number) for number in (*read, EOS)],
            [self._tokenizers.target.token(number) for number in (*said, EOS)],
        )


def lengths_for(max_length: int) -> list[int]:
    """The source lengths to compile for: the longest, its half, and so on down to `SHORTEST`."""
    lengths = [max_length]
    while lengths[0] >= 2 * SHORTEST:
        lengths.insert(0, -(-lengths[0] // 2))
    return lengths


def generate(
    model: EncoderDecoder,
    source: Array,
    source_lengths: Array,
    rules: Rules,
    decode: Callable[..., Answer],
    *,
    room: int,
    places: int | None = None,
    aligns: bool = False,
) -> Answer:
    """Generates translations, token by token.

    Args:
        model: the model.
        source: `[B, S]` ids.
        source_lengths: `[B]`.
        rules: of an answer; one that needs more than `max_length` is cut.
        decode: `(step, state, start, rules) -> Answer`, as `attention.decoding.greedy`.
        room: the most tokens followed; a row that needs more has no answer.
        places: how many rows are followed at once, all of them by default. Of a row without a
            source there is no answer then.
        aligns: whether what is observed of each token is the source token that was looked at most,
            over all layers and heads together.
    """
    model = unrolled(model)
    returning = ("weights",) if aligns else ()

    def read(target: Array, known: WithMemory) -> tuple[Array, Array | None, WithMemory]:
        memory, lengths = known.memory
        features, extras, cache = model.decode(
            target,
            memory,
            memory_mask=masks.lengths(lengths),
            cache=known.state,
            returning=returning,
        )
        seen = _most_seen(extras) if aligns else None
        return model.logits(features), seen, known._replace(state=cache)

    @jax.jit  # so that it is traced once
    def prefill(requests: tuple[Array, Array]) -> Attending:
        source, lengths = requests
        memory = model.remember(model.encode(source, mask=masks.lengths(lengths)))
        known = WithMemory((memory, lengths), model.new_cache(lengths.shape, room))
        return nothing_seen(read, known, len(source))

    asked = source, source_lengths
    present = source_lengths > 0
    state = prefill(asked) if places is None else Queue(prefill, asked, places, present)
    begin = jnp.full(len(source), BOS, jnp.int32)
    step = attending(read)
    return decode(step, state, begin, rules, observe=lambda state: state.seen, room=room)


def _by_turns(arrays: Array) -> Array:
    """From `[places, turns, *]` to the order in which they are asked: `[turns * places, *]`."""
    return arrays.swapaxes(0, 1).reshape(-1, *arrays.shape[2:])


def _by_places(arrays: Array, places: int) -> Array:
    """From `[turns * places, *]` to `[places, turns, *]`."""
    return arrays.reshape(-1, places, *arrays.shape[1:]).swapaxes(0, 1)


def _most_seen(extras: dict[str, dict[str, Array]]) -> Array:
    """Of weights `[layers, B, N, 1, S]`, the largest of each row: `[B]`."""
    return jnp.argmax(jnp.mean(extras["cross"]["weights"], axis=(0, 2, 3)), axis=-1)
