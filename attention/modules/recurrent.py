"""Recurrent networks: an encoder-decoder with attention, and a layer for hybrids."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.modules.context import DEFAULT_CONTEXT, CacheSpec, Context, Output
from attention.modules.embeddings import Embedding
from attention.modules.layers import linear
from attention.modules.models import EncoderDecoder
from attention.primitives.additive import additive_attention
from attention.primitives.arguments import check_arguments
from attention.primitives.attend import attend
from attention.primitives.cache import Constant, check_lengths
from attention.primitives.choice import one_of
from attention.primitives.masks import CuSeqlens, Lengths, Mask, Segments, leaves_of, to_array
from attention.primitives.numerics import wide

# Name in a config -> class of a cell as in flax: `cell(carry, inputs) -> (carry, output)`, where
# every leaf of the carry is `[..., F]` and the last leaf is the output. Users may add their own.
CELLS: dict[str, Callable[..., nnx.RNNCellBase]] = {
    "gru": nnx.GRUCell,
    "lstm": nnx.OptimizedLSTMCell,
}

State = TypeVar("State")


class RecurrentEncoder(nnx.Module):
    """One recurrent cell per direction (Bahdanau et al. 2015, section 3.2)."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        cell: Callable[..., nnx.RNNCellBase] = nnx.GRUCell,
        rngs: nnx.Rngs,
        **dtypes: DTypeLike | None,
    ) -> None:
        """Make the cells of both directions.

        Args:
            width: D, of the inputs.
            hidden: F, of the state of each cell.
            cell: class of the cells, as in `CELLS`.
            rngs: source of the initial parameters.
            dtypes: `dtype` and `param_dtype`, as in flax.
        """
        self.forward = named_cell(cell, width, hidden, rngs=rngs, **dtypes)
        self.backward = named_cell(cell, width, hidden, rngs=rngs, **dtypes)
        self.hidden = hidden

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., S, D]` to annotations `[..., S, 2·F]`.

        At padding a cell keeps its state. So the last position contains the final state of the
        forward cell and the first position that of the backward cell, wherever the padding is.

        Args:
            inputs: `[..., S, D]`.
            context: its `mask` excludes padding, as `masks.lengths`; without it, its `lengths`.

        Raises:
            ValueError: a mask that depends on the query.
        """
        valid = visible_keys(context.mask, inputs.shape[:-2], inputs.shape[-2])
        if valid is None:
            valid = valid_tokens(context.lengths, inputs.shape[:-2], inputs.shape[-2])
        vectors = inputs if valid is None else jnp.where(valid[..., None], inputs, 0)
        forward = self._scan(self.forward, vectors, valid, reverse=False)
        backward = self._scan(self.backward, vectors, valid, reverse=True)
        features = jnp.concatenate([forward, backward], axis=-1)
        has_states = "hidden_states" in context.returning
        return Output(features, hidden_states=(inputs, features) if has_states else ())

    def _scan(
        self, cell: nnx.RNNCellBase, inputs: Array, valid: Array | None, *, reverse: bool
    ) -> Array:
        def step(carry: State, token: tuple[Array, Array | None]) -> tuple[State, Array]:
            vector, valid = token
            after, _ = cell(carry, vector)
            carry = select_rows(valid, after, carry)
            return carry, cell_output(carry)

        carry = initial_carry(cell, jnp.zeros((*inputs.shape[:-2], self.hidden), inputs.dtype))
        tokens = time_first(inputs, -2), time_first(valid, -1)
        _, outputs = jax.lax.scan(step, carry, tokens, reverse=reverse)
        return jnp.moveaxis(outputs, 0, -2)


def named_cell(
    cell: Callable[..., nnx.RNNCellBase],
    width: int,
    hidden: int,
    *,
    param_dtype: DTypeLike = jnp.float32,
    **options: object,
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
    like = jax.eval_shape(lambda: cell.initialize_carry((1,), nnx.Rngs(0)))
    return jax.tree.map(lambda _: vector, like)


def cell_output(carry: Any) -> Array:  # noqa: ANN401 - any pytree
    """Return the output `[..., F]` that a cell gave with a carry: its last leaf."""
    return jax.tree.leaves(carry)[-1]


def select_rows(valid: Array | None, after: State, before: State) -> State:
    """Return the state `after` in valid rows `[...]` and the state `before` in the others."""
    if valid is None:
        return after

    def select(after: Array, before: Array) -> Array:
        rows = valid.reshape(*valid.shape, *[1] * (after.ndim - valid.ndim))
        return jnp.where(rows, after, before)

    return jax.tree.map(select, after, before)


def valid_tokens(lengths: ArrayLike | None, batch: Sequence[int], size: int) -> Array | None:
    """Return which of T tokens are valid, bool `[..., T]`; None if lengths are None.

    Raises:
        TypeError: lengths that are not integers.
        ValueError: lengths outside [0, T].
    """
    if lengths is None:
        return None
    check_lengths(lengths, size)
    lengths = jnp.broadcast_to(jnp.asarray(lengths), tuple(batch))
    return jnp.subtract.outer(lengths, jnp.arange(size, dtype=lengths.dtype)) > 0


def time_first(array: Array | None, axis: int) -> Array | None:
    """Move the time axis to the front, for `jax.lax.scan`."""
    return None if array is None else jnp.moveaxis(array, axis, 0)


def visible_keys(mask: Mask | None, batch: Sequence[int], num_keys: int) -> Array | None:
    """Return the keys that are visible to every query: bool `[..., S]`, or None for all.

    For readers without queries, such as a recurrent cell.

    Args:
        mask: `masks.lengths`, or an expression of such masks.
        batch: the batch axes.
        num_keys: S.

    Raises:
        ValueError: any other mask.
    """
    if mask is None:
        return None
    if not isinstance(mask, Mask) or not all(isinstance(leaf, Lengths) for leaf in leaves_of(mask)):
        raise ValueError(
            "this mask depends on the position of the query; here it can only hide padding, the "
            "same for all queries, as masks.lengths does"
        )
    tokens = jnp.zeros((*batch, num_keys, 1, 1))
    arguments = check_arguments(tokens[..., :1, :, :], tokens, tokens, mask=mask)
    allowed = to_array(mask, arguments.query_positions, arguments.key_positions)
    return jnp.broadcast_to(allowed[..., 0, :], (*batch, num_keys))


Result = Array | tuple[Array, dict[str, Array]]


class AdditiveAttention(nnx.Module):
    """Scores vᵀ tanh(W s + U h) (Bahdanau et al. 2015, appendix A.1.2).

    Attributes:
        context_width: C, of the contexts.
    """

    def __init__(
        self, hidden: int, encoder_width: int, *, rngs: nnx.Rngs, **dtypes: DTypeLike | None
    ) -> None:
        """Make W, U and v.

        Args:
            hidden: F, of the decoder state.
            encoder_width: E, of the encoder output.
            rngs: source of the initial parameters.
            dtypes: `dtype` and `param_dtype`, as in flax.
        """
        units = {"hidden": hidden}
        self.query = linear({"embed": hidden}, units, use_bias=False, rngs=rngs, **dtypes)
        self.key = linear({"embed": encoder_width}, units, rngs=rngs, **dtypes)
        initial = jax.nn.initializers.normal(hidden**-0.5)
        vector = initial(rngs.params(), (1, hidden), dtypes.get("param_dtype", jnp.float32))
        self.vector = nnx.Param(vector, axes=("heads", "hidden"))
        self.context_width = encoder_width

    def precompute(self, encoder_output: Array, summary: Array) -> tuple[Array, Array]:
        """Return arrays that are the same in every step: keys `[..., S, F]` and values.

        Args:
            encoder_output: `[..., S, E]`.
            summary: `[..., F]`, of the source.
        """
        del summary
        return self.key(encoder_output), encoder_output

    def __call__(self, state: Array, precomputed: tuple[Array, Array], **options: object) -> Result:
        """Compute the context `[..., T, N, C]` of a state, with T = N = 1.

        Args:
            state: `[..., F]`.
            precomputed: result of `precompute`.
            options: mask, positions and returning, as in `attention.attend`.

        Returns:
            As `attention.attend`.
        """
        query, key, value = _with_head(self.query(state), *precomputed)
        return additive_attention(query, key, value, self.vector[...], **options)


class MultiplicativeAttention(nnx.Module):
    """Scores sᵀ W h (Luong et al. 2015, equation 8, "general")."""

    def __init__(
        self, hidden: int, encoder_width: int, *, rngs: nnx.Rngs, **dtypes: DTypeLike | None
    ) -> None:
        """Make W; see `AdditiveAttention`."""
        self.query = linear(
            {"embed": hidden}, {"hidden": encoder_width}, use_bias=False, rngs=rngs, **dtypes
        )
        self.context_width = encoder_width

    def precompute(self, encoder_output: Array, summary: Array) -> Array:
        """Return the encoder output, which is both keys and values."""
        del summary
        return encoder_output

    def __call__(self, state: Array, precomputed: Array, **options: object) -> Result:
        """Compute the context of a state; see `AdditiveAttention`."""
        query, key, value = _with_head(self.query(state), precomputed, precomputed)
        return attend(query, key, value, scale=1.0, **options)


class NoAttention(nnx.Module):
    """The context of every state is the summary of the source (Cho et al. 2014)."""

    def __init__(
        self, hidden: int, encoder_width: int, *, rngs: nnx.Rngs, **dtypes: DTypeLike | None
    ) -> None:
        """Make no parameters; see `AdditiveAttention`."""
        del encoder_width, rngs, dtypes
        self.context_width = hidden

    def precompute(self, encoder_output: Array, summary: Array) -> Array:
        """Return the summary."""
        del encoder_output
        return summary

    def __call__(self, state: Array, precomputed: Array, **options: object) -> Result:
        """Return the summary, which depends neither on the state nor on the mask.

        Raises:
            ValueError: `returning` is not empty.
        """
        if options.get("returning"):
            names = ", ".join(options["returning"])
            raise ValueError(f"a decoder without attention cannot return {names}")
        return precomputed[..., None, None, :].astype(state.dtype)


def _with_head(query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Add axes T = 1 of the query and N = K = 1 of all."""
    return query[..., None, None, :], key[..., None, :], value[..., None, :]


Cell = Callable[..., nnx.RNNCellBase]
Attend = Callable[[Array], Array]  # state [..., F] -> context [..., C]
Carry = TypeVar("Carry")


class BahdanauStep(nnx.Module):
    """Attention from the state before the step; the cell reads the context.

    Bahdanau et al. 2015, section 3.1, with the concatenation of state, embedding and context as
    features in place of their maxout layer; with a fixed context the decoder of Cho et al. 2014.

    Attributes:
        input_feed_width: of the array that one step passes to the next beside the carry.
        features_width: of the features.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        context_width: int,
        *,
        cell: Cell,
        rngs: nnx.Rngs,
        **dtypes: DTypeLike | None,
    ) -> None:
        """Make the cell.

        Args:
            width: D, of the inputs.
            hidden: F, of the state.
            context_width: C, of the contexts.
            cell: class of the cell, as in `CELLS`.
            rngs: source of the initial parameters.
            dtypes: `dtype` and `param_dtype`, as in flax.
        """
        self.cell = named_cell(cell, width + context_width, hidden, rngs=rngs, **dtypes)
        self.input_feed_width, self.features_width = 0, hidden + width + context_width

    def __call__(
        self, carry: Carry, input_feed: Array, inputs: Array, attend: Attend
    ) -> tuple[Carry, Array, Array]:
        """Read one token.

        Args:
            carry: of the cell.
            input_feed: `[..., input_feed_width]`, from the step before.
            inputs: `[..., D]`, the token.
            attend: function from a state to its context.

        Returns:
            New carry, new input feed, features `[..., features_width]`.
        """
        cell_inputs = jnp.concatenate([inputs, attend(cell_output(carry))], axis=-1)
        carry, output = self.cell(carry, cell_inputs)
        return carry, input_feed, jnp.concatenate([output, cell_inputs], axis=-1)


class LuongStep(nnx.Module):
    """Attention from the state after the step; the features are fed to the next step.

    Luong et al. 2015, equation 5 and section 3.3 ("input feeding").
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        context_width: int,
        *,
        cell: Cell,
        rngs: nnx.Rngs,
        **dtypes: DTypeLike | None,
    ) -> None:
        """Make the cell, and the layer that joins state and context; see `BahdanauStep`."""
        self.cell = named_cell(cell, width + hidden, hidden, rngs=rngs, **dtypes)
        self.join = linear(
            {"embed": context_width + hidden},
            {"hidden": hidden},
            use_bias=False,
            rngs=rngs,
            **dtypes,
        )
        self.input_feed_width = self.features_width = hidden

    def __call__(
        self, carry: Carry, input_feed: Array, inputs: Array, attend: Attend
    ) -> tuple[Carry, Array, Array]:
        """Read one token, as `BahdanauStep`; the new input feed equals the features."""
        carry, output = self.cell(carry, jnp.concatenate([inputs, input_feed], axis=-1))
        features = jnp.tanh(self.join(jnp.concatenate([attend(output), output], axis=-1)))
        return carry, features, features


class RecurrentCache(NamedTuple):
    """State of a decoder between steps; its size does not depend on the number of tokens.

    Attributes:
        carry: of the cell, leaves `[..., F]`.
        input_feed: `[..., input_feed_width]`, as in `LuongStep`.
        lengths: int32 `[...]`, number of tokens read.
        encoder_output: what the attention has precomputed of it, and its positions `[..., S]`.
    """

    carry: Any
    input_feed: Array
    lengths: Array
    encoder_output: Constant


class RecurrentDecoder(nnx.Module):
    """A recurrent cell whose initial state is a summary of the source."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        encoder_width: int,
        attention: Callable[..., nnx.Module] = AdditiveAttention,
        step: Callable[..., nnx.Module] = BahdanauStep,
        cell: Callable[..., nnx.RNNCellBase] = nnx.GRUCell,
        rngs: nnx.Rngs,
        **dtypes: DTypeLike | None,
    ) -> None:
        """Make the layer of the initial state, the attention and the step.

        Args:
            width: D, of the inputs.
            hidden: F, of the state.
            encoder_width: E, of the encoder output: both directions of `RecurrentEncoder`.
            attention: class with the interface of `AdditiveAttention`.
            step: class with the interface of `BahdanauStep`.
            cell: class of the cell, as in `CELLS`.
            rngs: source of the initial parameters.
            dtypes: `dtype` and `param_dtype`, as in flax.
        """
        self.summary = linear({"embed": encoder_width}, {"hidden": hidden}, rngs=rngs, **dtypes)
        self.attention = attention(hidden, encoder_width, rngs=rngs, **dtypes)
        context_width = self.attention.context_width
        self.step = step(width, hidden, context_width, cell=cell, rngs=rngs, **dtypes)
        self.features_width = self.step.features_width
        self.hidden = hidden

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map inputs `[..., T, D]` to features `[..., T, features_width]`.

        Args:
            inputs: `[..., T, D]`.
            context: with an encoder output `[..., S, E]`, or a cache, which contains it. After its
                `lengths` the state stays as it is.

        Returns:
            Features, `({"cross_attention": {name: array}},)` for the results in
            `context.returning`, and the new cache if one was given.

        Raises:
            ValueError: a mask; neither encoder output nor cache, or both; a cache of another model;
                lengths outside [0, T].
            TypeError: lengths that are not integers.
        """
        if context.mask is not None:
            raise ValueError(
                "a recurrent decoder cannot mask target tokens: its state depends on them"
            )
        context.check_source()
        *batch, num_tokens, _ = inputs.shape
        state = context.cache
        if state is None:
            state = self._initial_state(context.encoder_output, context.encoder_positions)
        expected = (*batch, self.hidden)
        shapes = {leaf.shape for leaf in jax.tree.leaves(getattr(state, "carry", ()))}
        if shapes != {expected}:
            raise ValueError(
                f"this decoder needs a RecurrentCache with a carry of shape {expected}"
            )
        names = tuple(name for name in context.returning if name != "hidden_states")
        constant = state.encoder_output
        precomputed, key_positions = constant.value

        def step(
            state: RecurrentCache, token: tuple[Array, Array | None]
        ) -> tuple[RecurrentCache, tuple[Array, dict[str, Array]]]:
            vector, valid = token
            results = {}

            def attend(query: Array) -> Array:
                result = self.attention(
                    query,
                    precomputed,
                    mask=context.encoder_mask,
                    positions=(state.lengths[..., None], key_positions),
                    returning=names,
                )
                attended, found = result if names else (result, {})
                results.update(found)
                return jnp.squeeze(attended, (-3, -2))

            carry, input_feed, features = self.step(state.carry, state.input_feed, vector, attend)
            after = RecurrentCache(carry, input_feed, state.lengths + 1, None)
            return select_rows(valid, after, state), (features, results)

        valid = valid_tokens(context.lengths, batch, num_tokens)
        tokens = time_first(inputs, -2), time_first(valid, -1)
        state = state._replace(encoder_output=None)  # not a carry of the loop
        state, (features, results) = jax.lax.scan(step, state, tokens)
        features = jnp.moveaxis(features, 0, -2)
        axis = len(batch) + 1  # of T, after the batch axes and N
        results = jax.tree.map(lambda x: jnp.moveaxis(jnp.squeeze(x, axis + 1), 0, axis), results)
        has_states = "hidden_states" in context.returning
        return Output(
            features,
            attention=({"cross_attention": results} if names else {},),
            hidden_states=(inputs, features) if has_states else (),
            cache=context.cache and state._replace(encoder_output=constant),
        )

    def new_cache(self, spec: CacheSpec) -> RecurrentCache:
        """Return the state before the first token; the size of `spec` has no effect.

        Raises:
            ValueError: no encoder output.
        """
        state = self._initial_state(spec.encoder_output, spec.encoder_positions)
        precomputed, positions = state.encoder_output.value
        if spec.dtype is not None:
            precomputed = jax.tree.map(lambda array: array.astype(spec.dtype), precomputed)
        positions = jnp.broadcast_to(positions, spec.encoder_output.shape[:-1])
        return state._replace(encoder_output=Constant((precomputed, positions)))

    def _initial_state(
        self, encoder_output: Array | None, encoder_positions: Array | None
    ) -> RecurrentCache:
        """Return the state before the first token.

        The summary is computed from the final state of each direction of a `RecurrentEncoder`,
        which the last and the first position contain.
        """
        if encoder_output is None:
            raise ValueError("a recurrent decoder needs an encoder output or a cache of one")
        *batch, num_keys, width = encoder_output.shape
        final = encoder_output[..., -1, : width // 2], encoder_output[..., 0, width // 2 :]
        summary = jnp.tanh(self.summary(jnp.concatenate(final, axis=-1)))
        precomputed = self.attention.precompute(encoder_output, summary)
        if encoder_positions is None:
            encoder_positions = jnp.arange(num_keys, dtype=jnp.int32)
        return RecurrentCache(
            carry=initial_carry(self.step.cell, summary),
            input_feed=jnp.zeros((*batch, self.step.input_feed_width), summary.dtype),
            lengths=jnp.zeros(batch, jnp.int32),
            encoder_output=Constant((precomputed, encoder_positions)),
        )


# Name in a config -> (class of the attention, class of the step). Users may add their own.
ATTENTIONS: dict[str, tuple[Callable[..., nnx.Module], Callable[..., nnx.Module]]] = {
    "additive": (AdditiveAttention, BahdanauStep),
    "multiplicative": (MultiplicativeAttention, LuongStep),
    "none": (NoAttention, BahdanauStep),
}


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """Sizes and choices of a recurrent encoder-decoder with one layer on each side.

    Attributes:
        embedding_width: D, of the embeddings.
        hidden: F, of the state of each cell.
        cell: name in `CELLS`: "gru" (Cho et al. 2014) or "lstm" (Hochreiter and Schmidhuber 1997).
        attention: name in `ATTENTIONS`: "additive" (Bahdanau et al. 2015), "multiplicative" (Luong
            et al. 2015, "general" scores and input feeding) or "none" (Cho et al. 2014).
        max_length: of a sequence.
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
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")
        one_of("cell", self.cell, tuple(CELLS))
        one_of("attention", self.attention, tuple(ATTENTIONS))


class RecurrentEncoderDecoder(EncoderDecoder):
    """An `EncoderDecoder` of a bidirectional recurrent encoder and a recurrent decoder.

    The state does not know which target tokens it contains, so `decode` accepts no mask of them.
    """

    @classmethod
    def from_config(
        cls,
        config: RecurrentConfig,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        rngs: nnx.Rngs,
    ) -> "RecurrentEncoderDecoder":
        """Make the model of a config."""
        width, hidden = config.embedding_width, config.hidden
        attention, step = ATTENTIONS[config.attention]
        shared = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
        cell = {"cell": CELLS[config.cell]}
        limits = {"max_length": config.max_length, "dropout": config.dropout}
        source_embedding = Embedding(source_vocab_size, width, **limits, **shared)
        encoder = RecurrentEncoder(width, hidden, **cell, **shared)
        target_embedding = Embedding(target_vocab_size, width, **limits, **shared)
        parts = {"encoder_width": 2 * hidden, "attention": attention, "step": step}
        decoder = RecurrentDecoder(width, hidden, **parts, **cell, **shared)
        sizes = {"embed": decoder.features_width}, {"vocab": target_vocab_size}
        output = linear(*sizes, **shared)
        return cls(source_embedding, encoder, target_embedding, decoder, output=output)


class RecurrentLayer(nnx.Module):
    """Minimal gated recurrent unit: h[t] = (1 - z[t]) h[t-1] + z[t] V x[t], z[t] = sigmoid(W x[t]).

    Feng et al. 2024, "Were RNNs All We Needed?", section 3.1, with a linear output layer. Neither
    gate nor candidate depends on h, so a full pass is one `jax.lax.associative_scan` over T. The
    layer is causal, also in an encoder. The state is computed in float32 at least.
    """

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        rngs: nnx.Rngs,
        **dtypes: DTypeLike | None,
    ) -> None:
        """Make the layers of gate, candidate and output.

        Args:
            width: D, of inputs and outputs.
            hidden: F, of the state; D if None.
            rngs: source of the initial parameters.
            dtypes: `dtype` and `param_dtype`, as in flax.
        """
        self.hidden = width if hidden is None else hidden
        sizes = {"embed": width}, {"hidden": self.hidden}
        self.gate = linear(*sizes, rngs=rngs, **dtypes)
        self.candidate = linear(*sizes, rngs=rngs, **dtypes)
        self.output = linear(*sizes[::-1], rngs=rngs, **dtypes)

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`.

        Args:
            inputs: `[..., T, D]`.
            context: after its `lengths` the state stays as it is; where `masks.segments` or
                `masks.cu_seqlens` in its `mask` begin a sequence, the state starts anew; `cache`
                is the state of `new_cache`. No other mask has an effect, so without `lengths`
                padding must follow the valid tokens.

        Raises:
            ValueError: lengths outside [0, T]; a cache of another layer.
            TypeError: lengths that are not integers.
        """
        *batch, num_tokens, _ = inputs.shape
        valid = valid_tokens(context.lengths, batch, num_tokens)
        if valid is not None:
            inputs = jnp.where(valid[..., None], inputs, 0)
        narrow = self.gate(inputs)
        gate, candidate = wide(narrow, self.candidate(inputs))
        update = jax.nn.sigmoid(gate)
        keep, new = 1 - update, update * candidate
        for starts in _starts(context, num_tokens):
            keep = jnp.where(starts[..., None], 0, keep)
        if valid is not None:
            keep, new = jnp.where(valid[..., None], keep, 1), jnp.where(valid[..., None], new, 0)
        kept, states = jax.lax.associative_scan(_compose, (keep, new), axis=inputs.ndim - 2)
        cache = context.cache
        if cache is not None:
            expected = (*batch, self.hidden)
            if getattr(cache, "shape", None) != expected:
                raise ValueError(f"this recurrent layer needs a cache of shape {expected}")
            states = states + kept * cache.astype(kept.dtype)[..., None, :]
            cache = states[..., -1, :].astype(cache.dtype)
        return Output(self.output(states.astype(narrow.dtype)), cache=cache)

    def new_cache(self, spec: CacheSpec) -> Array:
        """Return the state before the first token, 0 `[..., F]`, in float32 at least by default."""
        dtype = spec.dtype or self.gate.dtype or self.gate.kernel.dtype
        state = jnp.zeros((*spec.batch, self.hidden), dtype)
        return state if spec.dtype else wide(state)[0]


def _compose(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Compose two maps h -> keep · h + new."""
    return first[0] * second[0], second[0] * first[1] + second[1]


def _starts(context: Context, num_tokens: int) -> Iterator[Array]:
    """Yield where a packed sequence begins, bool `[..., T]`, for each mask of packed rows."""
    positions = context.positions
    positions = jnp.arange(num_tokens, dtype=jnp.int32) if positions is None else positions
    mask = context.mask
    for leaf in leaves_of(mask) if isinstance(mask, Mask) else ():
        if isinstance(leaf, Segments):
            starts = jnp.diff(leaf.query_segments, axis=-1, prepend=0) != 0
            batch = jnp.broadcast_shapes(starts.shape[:-1], positions.shape[:-1])
            starts = jnp.broadcast_to(starts, (*batch, starts.shape[-1]))
            at = jnp.broadcast_to(positions, (*batch, positions.shape[-1]))
            yield jnp.take_along_axis(starts, at, axis=-1, mode="clip")
        elif isinstance(leaf, CuSeqlens):
            yield (positions[..., :, None] == leaf.query_offsets[..., None, :]).any(axis=-1)
