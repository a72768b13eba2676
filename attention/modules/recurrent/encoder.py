"""Bidirectional recurrent encoder, and functions of recurrent cells."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.modules.context import DEFAULT_CONTEXT, Context, Output
from attention.primitives.arguments import check_arguments
from attention.primitives.cache import check_lengths
from attention.primitives.masks import Lengths, Mask, leaves_of, to_array

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
