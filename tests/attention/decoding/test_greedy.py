"""Greedy decoding on models whose every word is scripted, and on a small random one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import masks
from attention.decoding import Rules, greedy, recompute
from tests.attention.modules.inputs import LENGTHS, B, S, small_translator, tokens

V = 17
PAD, BOS, END = 0, 1, 2


def scripted(script, heard=None):
    """A step that says column i of the script at its i-th call, whatever it hears."""
    script = jnp.asarray(script, jnp.int32)

    def step(count, last):
        if heard is not None:
            jax.debug.callback(lambda words: heard.append(words.tolist()), last, ordered=True)
        return 5.0 * jax.nn.one_hot(script[:, count], V) - 7.0, count + 1

    return step


def say(script, max_length, heard=None, start=None):
    start = jnp.full(len(script), BOS, jnp.int32) if start is None else start
    said = greedy(
        scripted(script, heard),
        jnp.int32(0),
        start,
        Rules(END, PAD, max_length),
    ).tokens
    jax.effects_barrier()
    return said


def test_says_the_script_and_hears_itself_say_it():
    heard = []
    said = say([[5, 6, 7], [8, 9, 3]], 3, heard)
    np.testing.assert_array_equal(said, [[5, 6, 7], [8, 9, 3]])  # the start is no part of it
    assert heard == [[BOS, BOS], [5, 8], [6, 9]]


def test_a_row_that_has_ended_is_padded_while_the_others_go_on():
    said = say([[5, END, 6, 7], [8, 9, 3, END], [END, 4, END, 4]], 4)
    expected = [[5, END, PAD, PAD], [8, 9, 3, END], [END, PAD, PAD, PAD]]
    np.testing.assert_array_equal(said, expected)


def test_stops_when_every_row_has_ended():
    heard = []
    said = say([[5, END, 6, 6, 6, 6], [5, 6, END, 6, 6, 6]], 6, heard)
    assert len(heard) == 3
    np.testing.assert_array_equal(said[:, 3:], np.full((2, 3), PAD))


def test_stops_at_the_longest_and_then_nothing_ends_the_row():
    heard = []
    said = say([[5, 6, 7, END]], 3, heard)
    assert len(heard) == 3
    np.testing.assert_array_equal(said, [[5, 6, 7]])


def test_a_start_that_is_the_end_symbol_does_not_end_the_row():
    # Some vocabularies have one symbol for both.
    said = say([[5, END]], 2, start=jnp.array([END], jnp.int32))
    np.testing.assert_array_equal(said, [[5, END]])


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_says_integers_of_the_type_it_was_started_with(dtype):
    said = say([[5, END, 6]], 3, start=jnp.array([BOS], dtype))
    assert said.dtype == dtype
    np.testing.assert_array_equal(said, [[5, END, PAD]])


def test_of_two_equal_words_the_first_is_said():
    said = greedy(
        lambda state, last: (jnp.array([[0.0, 0.0, 0.0, 3.0, 3.0]]), state),
        (),
        jnp.array([BOS], jnp.int32),
        Rules(END, PAD, max_length=2),
    ).tokens
    np.testing.assert_array_equal(said, [[3, 3]])


def test_a_state_may_be_any_pytree_and_jit_works():
    def step(state, last):
        # Says the sum of what it heard: 1, 1 + 1, 1 + 1 + 2, ...; 24 is no word, so 0 is likeliest.
        total = state["total"] + last
        return jax.nn.one_hot(total, V), {"total": total, "calls": (state["calls"][0] + 1,)}

    @jax.jit
    def run(start):
        state = {"total": jnp.zeros_like(start), "calls": (jnp.int32(0),)}
        return greedy(step, state, start, Rules(end=16, pad=PAD, max_length=6)).tokens

    expected = [[1, 2, 4, 8, 16, PAD], [3, 6, 12, 0, 0, 0]]
    np.testing.assert_array_equal(run(jnp.array([1, 3], jnp.int32)), expected)


class TestTranslation:
    """A random model, sources of several lengths, and an end that comes at several steps."""

    SOURCE = tokens(B, S, seed=1)
    LONGEST = 6
    END = 10  # what this model says to some of these sources and not to others

    @staticmethod
    @functools.cache
    def model():
        return small_translator(seed=21, encoder_layers=1, decoder_layers=1, tie="none")

    def loop(self):
        """What argmax says of one prefix after the other, each from its start, without an end."""
        model, mask = self.model(), masks.lengths(LENGTHS)
        memory = model.encode(self.SOURCE, mask=mask)

        @jax.jit
        def likeliest(target):
            features, _ = model.decode(target, memory, memory_mask=mask)
            return model.logits(features)[:, -1].argmax(-1)

        prefix = np.full((B, 1), BOS, np.int32)
        for _ in range(self.LONGEST):
            prefix = np.append(prefix, np.int32(likeliest(prefix))[:, None], axis=1)
        return prefix[:, 1:]

    @classmethod
    @functools.cache
    def translate(cls):
        @jax.jit
        def run(source, lengths):
            model, mask = cls.model(), masks.lengths(lengths)
            memory = model.encode(source, mask=mask)

            def score(target, index):
                features, _ = model.decode(target, memory, memory_mask=mask)
                return model.logits(features[:, index])

            step, state = recompute(score, batch_size=len(source), max_length=cls.LONGEST)
            start = jnp.full(len(source), BOS, jnp.int32)
            return greedy(step, state, start, Rules(cls.END, PAD, cls.LONGEST)).tokens

        return run

    def test_greedy_is_a_loop_of_argmax(self):
        expected = self.loop()
        ends = [list(row).index(self.END) if self.END in row else None for row in expected]
        assert len(set(ends)) > 2 and None in ends  # or this would prove little
        for row, end in zip(expected, ends, strict=True):
            if end is not None:
                row[end + 1 :] = PAD
        np.testing.assert_array_equal(self.translate()(self.SOURCE, LENGTHS), expected)

    def test_a_batch_is_translated_as_each_alone(self):
        together = self.translate()(self.SOURCE, LENGTHS)
        for row in (slice(0, 1), slice(1, 2)):  # one without padding, one with
            length = LENGTHS[row][0]
            alone = self.translate()(self.SOURCE[row, :length], LENGTHS[row])
            np.testing.assert_array_equal(alone, together[row])


def test_nothing_to_say_is_refused():
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        say([[5]], 0)
