"""Recurrent networks: an encoder-decoder with attention, and a layer for hybrids."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.modules.context import DEFAULT_CONTEXT, CacheSpec, Context, Output, and_mask
from attention.modules.embeddings import Embedding
from attention.modules.layers import linear, make_table
from attention.modules.models import EncoderDecoder
from attention.modules.numbers import check_count, check_dtype, check_rate
from attention.primitives import masks
from attention.primitives.additive import additive_attention
from attention.primitives.attend import attend
from attention.primitives.cache import Constant, check_lengths
from attention.primitives.choice import one_of
from attention.primitives.masks import CuSeqlens, Lengths, Mask, Segments
from attention.primitives.numerics import wide

State = TypeVar("State")
Cell = Callable[..., nnx.RNNCellBase]
Attend = Callable[[Array], Array]  # state [..., F] -> context [..., C]

# Name in a config -> class of a cell as in flax: `cell(carry, inputs) -> (carry, output)`, where
# every leaf of the carry is `[..., F]` and the last leaf is the output. Users may add their own.
CELLS: dict[str, Cell] = {"gru": nnx.GRUCell, "lstm": nnx.OptimizedLSTMCell}


class RecurrentEncoder(nnx.Module):
    """One recurrent cell per direction (Bahdanau et al. 2015, section 3.2)."""

    def __init__(
        self, width: int, hidden: int, *, cell: Cell = nnx.GRUCell, **options: object
    ) -> None:
        """Make the cells, as in `CELLS`, for inputs of D and states of F numbers.

        The options are `dtype`, `param_dtype` and `rngs`, as in flax; so in all classes below.
        """
        self.forward = make_cell(cell, width, hidden, **options)
        self.backward = make_cell(cell, width, hidden, **options)
        self.hidden = hidden

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., S, D]` to annotations `[..., S, 2·F]`.

        At padding a cell keeps its state. So the last position contains the final state of the
        forward cell and the first position that of the backward cell, wherever the padding is.

        The `mask` of the context, such as `masks.lengths`, and its `lengths` exclude padding.

        Raises:
            ValueError: a mask that depends on the query; positions; score; lengths outside [0, S].
            TypeError: lengths that are not integers.
        """
        if context.score or context.positions is not None:
            raise ValueError("a recurrent encoder reads in order: no positions or score")
        valid = valid_tokens(inputs, context.lengths, context.mask)
        vectors = jnp.where(valid[..., None], inputs, 0)

        def run(cell: nnx.RNNCellBase, *, reverse: bool) -> Array:
            def step(carry: State, token: tuple[Array, Array]) -> tuple[State, Array]:
                vector, valid = token
                carry = where(valid, cell(carry, vector)[0], carry)
                return carry, jax.tree.leaves(carry)[-1]

            carry = initial_carry(cell, jnp.zeros((*valid.shape[:-1], self.hidden), inputs.dtype))
            return scan_tokens(step, carry, (vectors, valid), reverse=reverse)[1]

        outputs = run(self.forward, reverse=False), run(self.backward, reverse=True)
        features = jnp.concatenate(outputs, axis=-1)
        has_states = "hidden_states" in context.returning
        return Output(features, hidden_states=(inputs, features) if has_states else ())


def make_cell(
    cell: Cell, width: int, hidden: int, *, param_dtype: DTypeLike = jnp.float32, **options: object
) -> nnx.RNNCellBase:
    """Make a cell and name the axes of its parameters, as `linear` does.

    Parameters are drawn in float32 at least, since orthogonal matrices have no narrower
    initialiser, and cast to `param_dtype`. The last axis is "hidden", also that of all gates
    together. The first axis of a kernel is "embed" for the inputs and "recurrent" for the state,
    the layer "dense_h" of flax.
    """
    is_narrow = jnp.dtype(param_dtype).itemsize < 4
    made = cell(width, hidden, param_dtype=jnp.float32 if is_narrow else param_dtype, **options)
    made = jax.tree.map(lambda leaf: leaf.astype(param_dtype), made)
    for path, parameter in nnx.to_flat_state(nnx.state(made, nnx.Param)):
        first = "recurrent" if "dense_h" in path else "embed"
        parameter.set_metadata(axes=(first, "hidden")[-parameter.ndim :])
    return made


def initial_carry(cell: nnx.RNNCellBase, vector: Array) -> Any:  # noqa: ANN401 - any pytree
    """Return the carry of a cell in which every leaf is a vector `[..., F]`."""
    like = jax.eval_shape(lambda: cell.initialize_carry((1,), rngs=nnx.Rngs(0)))
    return jax.tree.map(lambda _: vector, like)


def where(condition: Array, new: State, old: State) -> State:
    """Select between states with leaves `[..., F]` by a condition `[...]`."""
    return jax.tree.map(lambda *each: jnp.where(condition[..., None], *each), new, old)


def scan_tokens(
    step: Callable[[State, Any], tuple[State, Any]],
    carry: State,
    tokens: tuple[Array, ...],
    *,
    reverse: bool = False,
) -> tuple[State, Any]:
    """Apply `jax.lax.scan` along the axis T of all arrays; the last of the tokens is `[..., T]`."""
    axis = tokens[-1].ndim - 1
    tokens = [jnp.moveaxis(array, axis, 0) for array in tokens]
    carry, outputs = jax.lax.scan(step, carry, tokens, reverse=reverse)
    return carry, jax.tree.map(lambda array: jnp.moveaxis(array, 0, axis), outputs)


def valid_tokens(
    inputs: Array, lengths: ArrayLike | None, mask: Mask | Array | None = None
) -> Array:
    """Return which of the inputs `[..., T, D]` are no padding, bool `[..., T]`.

    Raises a ValueError for a mask that is not `masks.lengths` or an expression of such masks.
    """
    *batch, num_tokens, _ = inputs.shape
    if lengths is not None:
        check_lengths(lengths, num_tokens)
        mask = and_mask(masks.lengths(lengths), mask)
    if mask is None:
        return jnp.ones((*batch, num_tokens), bool)
    leaves = masks.leaves_of(mask) if isinstance(mask, Mask) else (mask,)
    if not all(isinstance(leaf, Lengths) for leaf in leaves):
        raise ValueError("a mask of a recurrent layer can only hide padding, as masks.lengths does")
    return jnp.broadcast_to(masks.to_array(mask, 1, num_tokens)[..., 0, :], (*batch, num_tokens))


Result = Array | tuple[Array, dict[str, Array]]


class AdditiveAttention(nnx.Module):
    """Scores vᵀ tanh(W s + U h) (Bahdanau et al. 2015, appendix A.1.2)."""

    def __init__(self, hidden: int, encoder_width: int, **options: Any) -> None:  # noqa: ANN401 - of several types
        """Make W, U and v for a decoder state of F and an encoder output of E numbers."""
        self.query = linear({"embed": hidden}, {"hidden": hidden}, use_bias=False, **options)
        self.key = linear({"embed": encoder_width}, {"hidden": hidden}, **options)
        options.pop("dtype", None)  # of the computation
        self.vector = make_table((1, hidden), ("heads", "hidden"), **options)

    def precompute(self, encoder_output: Array) -> tuple[Array, Array]:
        """Return keys U h `[..., S, F]` and values h `[..., S, E]`, the same in every step."""
        return self.key(encoder_output), encoder_output

    def __call__(self, state: Array, precomputed: tuple[Array, Array], **options: object) -> Result:
        """Compute the context `[..., T, N, E]` of a state s `[..., F]`, with T = N = 1.

        The options mask, positions and returning, and the result are those of `attention.attend`.
        """
        query, (key, value) = self.query(state), precomputed
        arrays = query[..., None, None, :], key[..., None, :], value[..., None, :]
        return additive_attention(*arrays, self.vector[...], **options)


class MultiplicativeAttention(nnx.Module):
    """Scores sᵀ W h (Luong et al. 2015, equation 8, "general"); see `AdditiveAttention`."""

    def __init__(self, hidden: int, encoder_width: int, **options: object) -> None:
        """Make W."""
        sizes = {"embed": hidden}, {"hidden": encoder_width}
        self.query = linear(*sizes, use_bias=False, **options)

    def precompute(self, encoder_output: Array) -> Array:
        """Return the encoder output, which is both keys and values."""
        return encoder_output

    def __call__(self, state: Array, precomputed: Array, **options: object) -> Result:
        """Compute the context of a state."""
        query, keys = self.query(state)[..., None, None, :], precomputed[..., None, :]
        return attend(query, keys, keys, scale=1.0, **options)


class BahdanauStep(nnx.Module):
    """Attention from the state before the step; the cell reads the context.

    Bahdanau et al. 2015, section 3.1, with the concatenation of state, token and context as
    features in place of their maxout layer; with a fixed context the decoder of Cho et al. 2014.

    Attributes:
        features_width: of the features.
    """

    def __init__(
        self, width: int, hidden: int, context_width: int, *, cell: Cell, **options: object
    ) -> None:
        """Make the cell, for tokens of D, states of F and contexts of C numbers."""
        self.cell = make_cell(cell, width + context_width, hidden, **options)
        self.features_width = hidden + width + context_width

    def start(self, state: Array) -> Any:  # noqa: ANN401 - any pytree
        """Return the first carry, of which every leaf is the initial state `[..., F]`."""
        return initial_carry(self.cell, state)

    def __call__(self, carry: State, token: Array, attend: Attend) -> tuple[State, Array]:
        """Read one token `[..., D]`; return the new carry and features `[..., features_width]`."""
        inputs = jnp.concatenate([token, attend(jax.tree.leaves(carry)[-1])], axis=-1)
        carry, state = self.cell(carry, inputs)
        return carry, jnp.concatenate([state, inputs], axis=-1)


class LuongStep(nnx.Module):
    """Attention from the state after the step; the features are fed to the next step.

    Luong et al. 2015, equation 5 and section 3.3 ("input feeding"); see `BahdanauStep`.
    """

    def __init__(
        self, width: int, hidden: int, context_width: int, *, cell: Cell, **options: object
    ) -> None:
        """Make the cell, and the layer that joins state and context."""
        self.cell = make_cell(cell, width + hidden, hidden, **options)
        sizes = {"embed": context_width + hidden}, {"hidden": hidden}
        self.join = linear(*sizes, use_bias=False, **options)
        self.features_width = hidden

    def start(self, state: Array) -> Any:  # noqa: ANN401 - any pytree
        """Return the carry of the cell and the features before the first step, which are 0."""
        return initial_carry(self.cell, state), jnp.zeros_like(state)

    def __call__(self, carry: State, token: Array, attend: Attend) -> tuple[State, Array]:
        """Read one token; the carry contains the features of the step before."""
        carry, input_feed = carry
        carry, state = self.cell(carry, jnp.concatenate([token, input_feed], axis=-1))
        features = jnp.tanh(self.join(jnp.concatenate([attend(state), state], axis=-1)))
        return (carry, features), features


# Name in a config -> class of the attention, or None, and of the step. Users may add their own.
ATTENTIONS: dict[str, tuple[Callable[..., nnx.Module] | None, Callable[..., nnx.Module]]] = {
    "additive": (AdditiveAttention, BahdanauStep),
    "multiplicative": (MultiplicativeAttention, LuongStep),
    "none": (None, BahdanauStep),
}


class RecurrentCache(NamedTuple):
    """State of a decoder between steps; its size does not depend on the number of tokens.

    Attributes:
        carry: of the step, leaves `[..., F]`.
        lengths: int32 `[...]`, number of tokens read.
        encoder_output: what the attention has precomputed of it, and its positions `[..., S]`.
    """

    carry: Any
    lengths: Array
    encoder_output: Constant


class RecurrentDecoder(nnx.Module):
    """A recurrent cell whose initial state is a summary of the source."""

    def __init__(
        self, summary: Callable[[Array], Array], attention: nnx.Module | None, step: nnx.Module
    ) -> None:
        """Assemble a decoder.

        Args:
            summary: maps the final states `[..., E]` of both directions of a `RecurrentEncoder` to
                the initial state `[..., F]`, before its tanh.
            attention: such as `AdditiveAttention`; without one the initial state is the context of
                every state (Cho et al. 2014).
            step: such as `BahdanauStep`.
        """
        self.summary, self.attention, self.step = summary, attention, step

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map inputs `[..., T, D]` to features `[..., T, features_width]`.

        The context has an encoder output `[..., S, E]`, or a cache, which contains it. After its
        `lengths` the state stays as it is.

        Raises:
            ValueError: a mask, score or positions; neither encoder output nor cache, or both;
                lengths outside [0, T]; results of a decoder without attention.
            TypeError: lengths that are not integers.
        """
        if context.score or not (context.mask is context.positions is None):
            raise ValueError("a recurrent decoder reads in order: no mask, positions or score")
        names = tuple(name for name in context.returning if name != "hidden_states")
        if names and self.attention is None:
            raise ValueError(f"a decoder without attention cannot return {', '.join(names)}")
        context.check_source()
        *batch, num_tokens, _ = inputs.shape
        cache = context.cache
        if cache is None:
            given = {"encoder_output": context.encoder_output}
            given["encoder_positions"] = context.encoder_positions
            cache = self.new_cache(CacheSpec(batch=tuple(batch), size=num_tokens, **given))
        precomputed, key_positions = cache.encoder_output.value

        def step(
            carry: State, token: tuple[Array, Array, Array]
        ) -> tuple[State, tuple[Array, dict[str, Array]]]:
            vector, position, valid = token
            options = {"mask": context.encoder_mask, "returning": names}
            options["positions"] = position[..., None], key_positions
            results = {}

            def attend(state: Array) -> Array:
                if self.attention is None:
                    return precomputed.astype(state.dtype)
                result = self.attention(state, precomputed, **options)
                attended, returned = result if names else (result, {})
                results.update(returned)
                return jnp.squeeze(attended, (-3, -2))

            after, features = self.step(carry, vector, attend)
            return where(valid, after, carry), (features, results)

        valid, axis = valid_tokens(inputs, context.lengths), len(batch)
        positions = jnp.add.outer(cache.lengths, jnp.arange(num_tokens, dtype=jnp.int32))
        carry, (features, results) = scan_tokens(step, cache.carry, (inputs, positions, valid))
        results = jax.tree.map(  # [..., T, N, 1, *] -> [..., N, T, *]
            lambda array: jnp.swapaxes(jnp.squeeze(array, axis + 2), axis, axis + 1), results
        )
        lengths = cache.lengths + jnp.sum(valid, axis=-1, dtype=jnp.int32)
        return Output(
            features,
            attention=({"cross_attention": results} if names else {},),
            hidden_states=(inputs, features) if "hidden_states" in context.returning else (),
            cache=context.cache and cache._replace(carry=carry, lengths=lengths),
        )

    def new_cache(self, spec: CacheSpec) -> RecurrentCache:
        """Return the state before the first token; the size of `spec` has no effect.

        The summary is computed from the final state of each direction of a `RecurrentEncoder`,
        which the last and the first position contain.

        Raises:
            ValueError: no encoder output.
        """
        encoder_output, positions = spec.encoder_output, spec.encoder_positions
        if not hasattr(encoder_output, "dtype"):
            raise ValueError("a recurrent decoder needs an encoder output or a cache of one")
        *batch, num_keys, width = encoder_output.shape
        final = encoder_output[..., -1, : width // 2], encoder_output[..., 0, width // 2 :]
        precomputed = summary = jnp.tanh(self.summary(jnp.concatenate(final, axis=-1)))
        if self.attention is not None:
            precomputed = self.attention.precompute(encoder_output)
        if spec.dtype is not None:
            precomputed = jax.tree.map(lambda array: array.astype(spec.dtype), precomputed)
        positions = jnp.arange(num_keys, dtype=jnp.int32) if positions is None else positions
        positions = jnp.broadcast_to(positions, (*batch, num_keys))
        lengths = jnp.zeros(batch, jnp.int32)
        return RecurrentCache(self.step.start(summary), lengths, Constant((precomputed, positions)))


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """Sizes and choices of a recurrent encoder-decoder with one layer on each side.

    Attributes:
        embedding_width: D, of the embeddings.
        hidden: F, of the state of each cell.
        cell: name in `CELLS`: "gru" (Cho et al. 2014) or "lstm" (Hochreiter and Schmidhuber 1997).
        attention: name in `ATTENTIONS`: "additive" (Bahdanau et al. 2015), "multiplicative" (Luong
            et al. 2015, "general" scores and input feeding) or "none" (Cho et al. 2014).
        max_length: of a sequence in the data; the model reads any number of tokens.
        dropout: rate on the embeddings.
        dtype: of the computation; that of the parameters if None.
        param_dtype: of the parameters.
    """

    embedding_width: int = 256
    hidden: int = 512
    cell: str = "gru"
    attention: str = "additive"
    max_length: int = 128
    dropout: float = 0.0
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = "float32"

    def __post_init__(self) -> None:
        """Raise a ValueError if a number is out of range or a name is not registered."""
        for name in ("embedding_width", "hidden", "max_length"):
            check_count(name, getattr(self, name), at_least=1)
        check_rate("dropout", self.dropout)
        check_dtype("dtype", self.dtype)
        check_dtype("param_dtype", self.param_dtype)
        one_of("cell", self.cell, tuple(CELLS))
        one_of("attention", self.attention, tuple(ATTENTIONS))


class RecurrentEncoderDecoder(EncoderDecoder):
    """An `EncoderDecoder` of a bidirectional recurrent encoder and a recurrent decoder."""

    def __init__(
        self,
        config: RecurrentConfig,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        rngs: nnx.Rngs,
    ) -> None:
        """Make the model of a config; layers of one's own make an `EncoderDecoder`."""
        sizes = {"source_vocab_size": source_vocab_size, "target_vocab_size": target_vocab_size}
        self._check_given(config, rngs, {}, **sizes)
        width, hidden, cell = config.embedding_width, config.hidden, CELLS[config.cell]
        make_attention, make_step = ATTENTIONS[config.attention]
        options = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
        limits = {"max_length": config.max_length, "dropout": config.dropout}
        made = {"source_embedding": Embedding(source_vocab_size, width, **limits, **options)}
        made["encoder"] = RecurrentEncoder(width, hidden, cell=cell, **options)
        made["target_embedding"] = Embedding(target_vocab_size, width, **limits, **options)
        summary = linear({"embed": 2 * hidden}, {"hidden": hidden}, **options)
        attention = make_attention and make_attention(hidden, 2 * hidden, **options)
        context_width = 2 * hidden if attention else hidden
        step = make_step(width, hidden, context_width, cell=cell, **options)
        sizes = {"embed": step.features_width}, {"vocab": target_vocab_size}
        made["decoder"] = RecurrentDecoder(summary, attention, step)
        made["output"] = linear(*sizes, **options)
        super().__init__(**made)
        self.config = config


class RecurrentLayer(nnx.Module):
    """Minimal gated recurrent unit: h[t] = (1 - z[t]) h[t-1] + z[t] V x[t], z[t] = sigmoid(W x[t]).

    Feng et al. 2024, "Were RNNs All We Needed?", section 3.1, with a linear output layer. Neither
    gate nor candidate depends on h, so a full pass is one `jax.lax.associative_scan` over T. The
    layer is causal, also in an encoder. The state is computed in float32 at least.
    """

    def __init__(self, width: int, *, hidden: int | None = None, **options: object) -> None:
        """Make the layers for inputs and outputs of D and a state of F numbers, D if None."""
        self.hidden = width if hidden is None else hidden
        sizes = {"embed": width}, {"hidden": self.hidden}
        self.gate = linear(*sizes, **options)
        self.candidate = linear(*sizes, **options)
        self.output = linear(*sizes[::-1], **options)

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`.

        After the `lengths` of the context the state stays as it is; where `masks.segments` or
        `masks.cu_seqlens` in its `mask` begin a sequence, the state starts anew. No other mask has
        an effect, so without `lengths` padding must follow the valid tokens.

        Raises:
            ValueError: lengths outside [0, T].
            TypeError: lengths that are not integers.
        """
        valid = valid_tokens(inputs, context.lengths)[..., None]
        inputs = jnp.where(valid, inputs, 0)
        narrow = self.gate(inputs)
        gate, candidate = wide(narrow, self.candidate(inputs))
        update = jax.nn.sigmoid(gate)
        keep, new = 1 - update, update * candidate
        for starts in _starts(context, inputs.shape[-2]):
            keep = jnp.where(starts[..., None], 0, keep)
        keep, new = jnp.where(valid, keep, 1), jnp.where(valid, new, 0)

        def compose(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
            """Compose two maps h -> keep · h + new."""
            return one[0] * other[0], other[0] * one[1] + other[1]

        kept, states = jax.lax.associative_scan(compose, (keep, new), axis=inputs.ndim - 2)
        cache = context.cache
        if cache is not None:
            states = states + kept * cache.astype(kept.dtype)[..., None, :]
            cache = states[..., -1, :].astype(cache.dtype)
        return Output(self.output(states.astype(narrow.dtype)), cache=cache)

    def new_cache(self, spec: CacheSpec) -> Array:
        """Return the state before the first token, 0 `[..., F]`, in float32 at least by default."""
        dtype = spec.dtype or self.gate.dtype or self.gate.kernel.dtype
        state = jnp.zeros((*spec.batch, self.hidden), dtype)
        return state if spec.dtype else wide(state)[0]


def _starts(context: Context, num_tokens: int) -> Iterator[Array]:
    """Yield where a packed sequence begins, bool `[..., T]`, for each mask of packed rows."""
    positions = context.positions
    positions = jnp.arange(num_tokens, dtype=jnp.int32) if positions is None else positions
    for leaf in masks.leaves_of(context.mask) if isinstance(context.mask, Mask) else ():
        if isinstance(leaf, Segments):
            starts = jnp.diff(leaf.query_segments, axis=-1, prepend=0) != 0
            batch = jnp.broadcast_shapes(starts.shape[:-1], positions.shape[:-1])
            starts = jnp.broadcast_to(starts, (*batch, starts.shape[-1]))
            at = jnp.broadcast_to(positions, (*batch, positions.shape[-1]))
            yield jnp.take_along_axis(starts, at, axis=-1, mode="clip")
        elif isinstance(leaf, CuSeqlens):
            yield (positions[..., :, None] == leaf.query_offsets[..., None, :]).any(axis=-1)
