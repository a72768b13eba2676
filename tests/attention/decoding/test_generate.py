"""`generate` and `stream` with scripted models, for arrays, lists of ids and text."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import (
    GNMT,
    AllowedTokens,
    Beam,
    Greedy,
    Prefix,
    RepetitionPenalty,
    Sample,
    StoppingCriteria,
    decode,
    generate,
    stream,
)
from tests.attention.decoding.markov import BOS, END, PAD, PromptedModel, SourceModel, random_table
from tests.attention.primitives.inputs import changed

V, Q = 6, 23
TABLE = random_table(5, V, seed=1)
TABLE[..., END] -= 0.7  # for longer answers
PROMPTED = PromptedModel(jax.device_put(TABLE[0]), vocab_size=V)
SOURCED = SourceModel(jax.device_put(TABLE), vocab_size=V, input_vocab_size=10)
RANDOM, RNG = np.random.default_rng(0), jax.random.key(7)
PROMPTS = [RANDOM.integers(3, V, length).tolist() for length in RANDOM.integers(1, 30, Q)]
PROMPTS[5] = [4]
LENGTHS = np.array([len(ids) for ids in PROMPTS], np.int32)
# The padding is outside the vocabulary.
INPUTS = np.array([ids + [9] * (30 - len(ids)) for ids in PROMPTS], np.int32)
STRATEGIES = {
    "greedy": Greedy(),
    "sample": Sample(temperature=0.9, top_k=2),
    "beam": Beam(3, 2, GNMT(0.6)),
    "wide": Beam(3, None, GNMT(0.6), keep_width=True),
}
MODELS = {"prompted": (PROMPTED, None), "sourced": (SOURCED, BOS)}
ONE_BUCKET = {"buckets": (32,)}  # compiles half as many programs


def options(name, model):
    _, start = MODELS[model]
    return {
        "strategy": STRATEGIES[name],
        "max_tokens": 12,
        "stop": (END, (3, 4, 3)),
        "min_tokens": 2,
        "start": start,
        "rng": RNG,
        "logit_processors": (RepetitionPenalty(1.2),),
    }


@functools.cache
def reference(name, model):
    """Decode one row after the other with the loop alone, and observe the tokens of each step."""
    given = options(name, model)
    model, _ = MODELS[model]
    rngs = [jax.random.fold_in(given["rng"], row) for row in range(Q)]

    @jax.jit
    def one(inputs, length, rng):
        state, first = model.prefill(inputs, length, max_tokens=12)
        history = (inputs, length) if first is not None else None
        first = jnp.full(1, BOS, jnp.int32) if first is None else first
        return decode(
            lambda state, tokens: model.step(state, tokens),
            state,
            first,
            given["strategy"],
            StoppingCriteria(12, given["stop"], 2),
            logit_processors=given["logit_processors"],
            history=history,
            rng=rng[None],
            observe=lambda result: result.attention,
        )

    rows = [one(INPUTS[row : row + 1], LENGTHS[row : row + 1], rngs[row]) for row in range(Q)]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows)


def assert_same(found, expected):
    """Compare outputs that may have different numbers of steps."""
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)
    longest = int(np.max(expected.lengths))
    assert found.tokens.shape[-1] >= longest
    for name, behind in (("tokens", PAD), ("log_probs", 0)):
        ours, theirs = np.asarray(getattr(found, name)), np.asarray(getattr(expected, name))
        np.testing.assert_allclose(ours[..., :longest], theirs[..., :longest], rtol=1e-6)
        assert (ours[..., longest:] == behind).all()


@pytest.mark.parametrize(
    ("name", "model", "slots"),
    [
        ("greedy", "prompted", None),
        ("sample", "sourced", 4),
        ("beam", "prompted", 4),
        ("wide", "sourced", 4),
    ],
)
def test_lists_equal_single_rows(name, model, slots):
    """Translations of at most 4 tokens are decoded again if they have more than 6."""
    given = options(name, model) | {"slots": slots}
    given |= {} if slots is None else {"buckets": (4, 32)}
    assert_same(generate(MODELS[model][0], PROMPTS, **given), reference(name, model))
    assert name != "sample" or len(np.unique(reference(name, model).lengths)) > 3


@pytest.mark.parametrize(("traced", "slots"), [(True, None), (False, 4)])
def test_arrays_equal_single_rows(traced, slots):
    given = options("wide", "sourced") | {"slots": slots}

    def run(model, inputs, lengths):
        return generate(model, inputs, lengths=lengths, **given)

    found = (jax.jit(run) if traced else run)(SOURCED, INPUTS, LENGTHS)
    assert_same(found, reference("wide", "sourced"))
    assert found.tokens.shape == (Q, 12)


def counting(traced):
    """Return a processor that notes the shape of each history that is traced."""

    def process(logits, history):
        traced.append(history.tokens.shape)
        return logits

    return (process,)


def test_one_program_per_bucket():
    traced, sizes = [], [*range(1, 8), *range(17, 27), *range(33, 37)]
    prompts = [[3] * length for length in sizes]
    given = {"max_tokens": 5, "stop": END, "logit_processors": counting(traced)}
    generate(PROMPTED, prompts, **given)
    assert {*traced} == {(8, 16 + 5), (16, 32 + 5), (4, 64 + 5)}
    traced.clear()
    generate(PROMPTED, prompts[-2::-1], **given)
    assert not traced


def test_buckets_are_as_long_as_the_inputs_of_the_model_at_most():
    """Prompts of 17 to 20 tokens share the bucket of 20, all that 25 positions leave."""
    traced = []
    model, given = PromptedModel(PROMPTED.table, positions=25), {"max_tokens": 5, "stop": END}
    counted = given | {"logit_processors": counting(traced)}
    for prompt in ([3] * 17, [4] * 20):
        expected = generate(PROMPTED, [prompt], **given).tokens[0]
        np.testing.assert_array_equal(generate(model, [prompt], **counted).tokens[0], expected)
        np.testing.assert_array_equal([*stream(model, prompt, **counted)], expected)
    assert {*traced} == {(1, 25)} and len(traced) <= 4
    with pytest.raises(ValueError, match="the model has 25 positions"):
        generate(model, [[3], [3] * 21], **given)


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_a_step_is_traced_once(name):
    """For the shapes of its results and for the loop: models take long to trace."""
    traced = []

    def step(state, tokens):
        traced.append(tokens.shape)
        return jnp.zeros((2, V)), state + 1

    start = jnp.array([1, 1])
    decode(step, jnp.zeros(2), start, STRATEGIES[name], StoppingCriteria(3, END))
    assert traced == [(2,)]


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_nan_logits_reach_no_other_row_in_slots(name):
    """Row 1 reads a table of NaN."""
    broken = SourceModel(jax.device_put(changed(TABLE, 1, np.nan)))
    sources = [[row] for row in (1, 2, 3, 4, 7)]  # rows of the table, modulo 5; 0 is not reached
    given = options(name, "sourced") | {"slots": 2}
    found = generate(broken, sources, **given)
    expected = generate(SOURCED, sources, **given)
    assert np.isnan(found.scores[0]).any()
    longest = min(found.tokens.shape[-1], expected.tokens.shape[-1])
    for ours, theirs in ((found.tokens, expected.tokens), (found.log_probs, expected.log_probs)):
        np.testing.assert_array_equal(ours[1:, ..., :longest], theirs[1:, ..., :longest])


@pytest.mark.parametrize("model", MODELS)
def test_history_has_the_prompt_or_the_start_in_front(model):
    lengths = []

    def remember(history):
        jax.debug.callback(
            lambda tokens, length: lengths.append((tokens.tolist(), length.tolist())), *history
        )
        return jnp.ones((1, V), bool)

    given = options("greedy", model) | {"logit_processors": (AllowedTokens(remember),)}
    found = generate(MODELS[model][0], [PROMPTS[0]], **given)
    jax.effects_barrier()
    front = PROMPTS[0] if model == "prompted" else [BOS]
    answer = found.tokens[0].tolist()
    for index, (tokens, length) in enumerate(sorted(lengths, key=lambda one: one[1])):
        assert tokens[0][: length[0]] == [*front, *answer[:index]]


@pytest.mark.parametrize("form", ["lists", "arrays"])
def test_prefix_of_each_row(form):
    prefix = [[4, 5], [], [3]]
    if form == "arrays":
        prefix = Prefix(jnp.array([[4, 5], [0, 0], [3, 0]]), jnp.array([2, 0, 1]))
    given = options("beam", "sourced")
    found = generate(SOURCED, PROMPTS[:3], **given, prefix=prefix)
    np.testing.assert_array_equal(found.tokens[0, :, :2], [[4, 5]] * 2)
    np.testing.assert_array_equal(found.tokens[2, :, 0], [3, 3])
    np.testing.assert_array_equal(found.log_probs[0, :, :2], np.zeros((2, 2)))
    free = generate(SOURCED, PROMPTS[1:2], **given)
    np.testing.assert_allclose(found.scores[1], free.scores[0], rtol=1e-6)


class Letters:
    """A tokenizer: "d" is 3, "e" is 4 and so on; 5 is half a character."""

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids):
        text = "".join(chr(ord("a") + number) for number in ids)
        return text.replace("ff", "\N{LATIN SMALL LETTER SHARP S}").replace("f", "\ufffd")


def test_text():
    found = generate(PROMPTED, ["def", "e"], max_tokens=9, stop=("c", "ed"), tokenizer=Letters())
    ids = generate(PROMPTED, [[3, 4, 5], [4]], max_tokens=9, stop=(2, (4, 3)))
    np.testing.assert_array_equal(found.tokens, ids.tokens)
    for text, tokens, length in zip(found.text, ids.tokens, ids.lengths, strict=True):
        answer = tokens[:length].tolist()
        end = 2 if answer[-2:] == [4, 3] else int(answer[-1] == 2)
        assert text == Letters().decode(answer[: length - end])
    best = generate(PROMPTED, ["def"], max_tokens=3, strategy=Beam(2, 2), tokenizer=Letters())
    assert len(best.text) == 1 and len(best.text[0]) == 2


class Syllables:
    """A tokenizer with two encodings of "ab": the token 5, and the tokens 3 and 4."""

    TEXTS = ("<pad>", "<start>", ".", "a", "b", "ab")

    def encode(self, text):
        ids = []
        while text:
            ids.append(max(range(V), key=lambda i: text.startswith(self.TEXTS[i]) * (i + 1)))
            text = text[len(self.TEXTS[ids[-1]]) :]
        return ids

    def decode(self, ids):
        return "".join(self.TEXTS[number] for number in ids)


def find_stop(ids, strings, min_tokens=0):
    """Return where the text has the first stop string that is not complete before min_tokens."""
    text, early = Syllables().decode(ids), Syllables().decode(ids[: max(0, min_tokens - 1)])
    places = [text.find(each, max(0, len(early) + 1 - len(each))) for each in strings]
    return min((place for place in places if place >= 0), default=None)


@pytest.mark.parametrize(("stop", "min_tokens"), [("ab", 0), ("ba", 0), ((".", "bb"), 5)])
def test_answers_end_with_the_first_token_that_completes_a_stop_string(stop, min_tokens):
    """ "ab" begins in one token and ends in the next, or is a part of one token."""
    strings = [stop] if isinstance(stop, str) else stop
    given = {"max_tokens": 12, "stop": stop, "tokenizer": Syllables(), "min_tokens": min_tokens}
    given |= ONE_BUCKET
    found = generate(PROMPTED, PROMPTS, **given, observe=lambda result: result.attention)
    streamed = zip(*stream(PROMPTED, PROMPTS, **given), strict=True)
    assert ["".join(pieces) for pieces in streamed] == found.text
    free = generate(PROMPTED, PROMPTS, max_tokens=12, **ONE_BUCKET)
    for row, (answer, length) in enumerate(zip(found.tokens, found.lengths, strict=True)):
        at = find_stop(answer[:length], strings, min_tokens)
        assert length == 12 or at is not None
        assert find_stop(answer[: length - 1], strings, min_tokens) is None
        assert found.text[row] == Syllables().decode(answer[:length])[:at]
        assert min_tokens or (answer[:length] == free.tokens[row, :length]).all()
        for leaf in (answer - PAD, found.log_probs[row], found.observed[row]):
            assert not leaf[length:].any()
        np.testing.assert_allclose(found.scores[row], found.log_probs[row].sum(), rtol=1e-6)
    assert (found.lengths < 12).sum() > Q // 3


def test_answers_of_beams_are_cut_at_stop_strings():
    given = {"max_tokens": 9, "stop": "ab", "tokenizer": Syllables(), **ONE_BUCKET}
    found = generate(PROMPTED, PROMPTS, strategy=Beam(3, 2), **given)
    for row, best in enumerate(found.tokens):
        for rank, answer in enumerate(best):
            length = found.lengths[row, rank]
            assert find_stop(answer[: length - 1], ["ab"]) is None
            at = find_stop(answer[:length], ["ab"])
            assert found.text[row][rank] == Syllables().decode(answer[:length])[:at]
    assert (found.lengths < 9).any()


@pytest.mark.parametrize(("name", "model"), [("greedy", "prompted"), ("sample", "sourced")])
def test_stream_yields_the_tokens_of_generate(name, model):
    given = options(name, model)
    found = np.stack([*stream(MODELS[model][0], INPUTS, lengths=LENGTHS, **given)], axis=1)
    expected = reference(name, model)
    assert found.shape == (Q, expected.lengths.max())
    np.testing.assert_array_equal(found, expected.tokens[:, : found.shape[1]])


@pytest.mark.parametrize("prefix", [None, [[4, 5]]])
def test_stream_of_one_prompt(prefix):
    given = {"max_tokens": 9, "stop": (2, (4, 3)), "prefix": prefix}
    expected = generate(PROMPTED, [[3, 4, 5]], **given, tokenizer=Letters())
    tokens = [*stream(PROMPTED, [3, 4, 5], **given)]
    assert tokens == expected.tokens[0, : expected.lengths[0]].tolist()
    pieces = [*stream(PROMPTED, "def", **given, tokenizer=Letters())]
    assert "".join(pieces) == expected.text[0]
    assert len(pieces) == len(tokens)
    assert prefix is None or tokens[:2] == [4, 5]


def test_stream_yields_a_token_before_it_is_read():
    read, traced = [], []

    def processor(logits, history):
        traced.append(None)
        jax.debug.callback(lambda length: read.append(length.tolist()), history.length)
        return logits

    for _ in range(2):
        read.clear()
        tokens = stream(PROMPTED, [[3], [4, 5]], max_tokens=4, logit_processors=(processor,))
        next(tokens)
        jax.effects_barrier()
        assert read == [[1, 2]]
        next(tokens)
        jax.effects_barrier()
        assert read == [[1, 2], [2, 3]]
    assert len(traced) == 1


SOURCE = {"model": SOURCED, "start": BOS}
ARRAY = np.ones((2, 3), int)
MISTAKES = {
    "a model with prefill and step, got ArrayImpl": {"model": jnp.ones(3)},
    "strategy needs an instance, .* got 'sample'": {"strategy": "sample"},
    "start must be integers, got float": SOURCE | {"start": 1.7},
    "an encoder-decoder needs start=": SOURCE | {"start": None},
    r"inputs\[1\] has no tokens": {"inputs": [[3], []]},
    "inputs needs lists of integer ids: 'float'": {"inputs": [[3.5]]},
    "an input has 9 tokens": {"inputs": [[3] * 9], "buckets": (4, 8)},
    "lengths need shape": {"inputs": ARRAY, "lengths": np.array([3])},
    "lengths are for arrays": {"lengths": np.array([1])},
    "a prefix needs 1 to max_tokens 5 tokens, got 6": {"prefix": [[3] * 6]},
    r"rng needs .* one for each of 1 rows, got \(2,\)": {"rng": jax.random.split(RNG, 2)},
    "inputs is one string: pass a list": {"inputs": "abc", "tokenizer": Letters()},
    "the longest bucket 0": {"buckets": ()},
    "slots must be at least 1, got 0": {"slots": 0},
    "hidden_states are no result of attention": {"returning": ["hidden_states"]},
    r"<lambda>.* maps \(1, 6\) logits to \(1, 3\)": {
        "logit_processors": [lambda logits, history: logits[..., :3]]
    },
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_refused(words):
    given = {"model": PROMPTED, "inputs": [[3]], "max_tokens": 5} | MISTAKES[words]
    with pytest.raises((TypeError, ValueError), match=words):
        generate(given.pop("model"), given.pop("inputs"), **given)


@pytest.mark.parametrize(
    ("strategy", "n_best"), [(Greedy(), ()), (Beam(2), ()), (Beam(3, 2), (2,))]
)
def test_no_inputs_keep_the_axis_of_the_n_best(strategy, n_best):
    given = {"strategy": strategy, "max_tokens": 5, "stop": "b", "tokenizer": Syllables()}
    found = generate(PROMPTED, [], **given, observe=lambda result: result.logits)
    shapes = [leaf.shape for leaf in found[:5]]
    row = 0, *n_best
    assert shapes == [(*row, 0), row, row, (*row, 0), (*row, 0, V)] and found.text == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"inputs": [[3], [4, 6]]}, r"inputs\[1\] has token 6, and the vocabulary has 6 tokens"),
        ({"inputs": jnp.array([[3, 6]]), "lengths": jnp.array([2])}, r"inputs\[0\] has token 6"),
        ({"prefix": Prefix(jnp.array([[3, 9]]), jnp.array([2]))}, r"prefix\[0\] has token 9"),
        ({"stop": jnp.array([[END, 2], [3, 6]])}, r"stop\[1\] has token 6"),
        ({"stop": np.array(-1)}, r"stop\[0\] has token -1"),
        ({"model": SOURCED, "start": 6}, r"start\[0\] has token 6"),
        ({"model": SOURCED, "start": BOS, "inputs": [[10]]}, r"has token 10, .* has 10 tok"),
    ],
)
@pytest.mark.parametrize("call", [generate, stream])
def test_tokens_outside_the_vocabulary(call, given, words):
    given = {"model": PROMPTED, "inputs": [[3]], "max_tokens": 5} | given
    with pytest.raises(ValueError, match=words):
        call(given.pop("model"), given.pop("inputs"), **given)


def exclude_all_of_the_fourth(logits, history):
    return jnp.where((history.length == 3)[..., None], -jnp.inf, logits)


@pytest.mark.parametrize("name", STRATEGIES)
def test_row_without_a_possible_token_has_no_answer(name):
    """The fourth token of prompt and answer is impossible; the last prompt is longer."""
    given = {"strategy": STRATEGIES[name], "max_tokens": 6, "rng": jax.random.key(0)}
    given["logit_processors"] = (exclude_all_of_the_fourth,)
    slots = 1 if name in ("greedy", "beam") else None
    found = generate(PROMPTED, [[3], [3, 4, 5], [3, 4, 5, 3, 4]], **given, slots=slots)
    lengths = found.lengths.reshape(3, -1)
    assert (lengths[:2] == 0).all() and (lengths[2] == 6).any()
    scores = found.scores.reshape(3, -1)
    assert (scores[:2] == -np.inf).all() and np.isfinite(scores[2]).any()
    assert (found.tokens[:2] == PAD).all() and (found.log_probs[:2] == 0).all()
    assert name != "beam" or (lengths[2] == 6).all()


def test_stream_ends_where_no_token_is_possible():
    given = {"max_tokens": 6, "logit_processors": (exclude_all_of_the_fourth,)}
    tokens = [*stream(PROMPTED, [3], **given)]
    assert len(tokens) == 3 and tokens[-1] == PAD
    before = generate(PROMPTED, [[3]], max_tokens=2, tokenizer=Letters()).text[0]
    assert "".join(stream(PROMPTED, [3], **given, tokenizer=Letters())) == before


def test_stream_refuses_beams():
    with pytest.raises(ValueError, match="one hypothesis per row, not beams"):
        stream(PROMPTED, [3], max_tokens=5, strategy=Beam(2))
