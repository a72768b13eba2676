"""Linear functions with a transpose of their own."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Tree = Any
Leaf = Any  # an array, or what stands for one while a function is transposed
Parameter = Any
Flat = Callable[..., list[Array]]


def linear_call(
    function: Callable[[Tree, Tree], Tree],
    transposed: Callable[[Tree, Tree], Tree],
    known: Tree,
    moving: Tree,
    like: Tree,
) -> Tree:
    """`function(known, moving)`, which is linear in `moving`; reverse mode uses `transposed`.

    Unlike `jax.custom_derivatives.linear_call`, it can be mapped, and has a derivative by `known`:
    that of `function`.

    Args:
        function: of (known, moving).
        transposed: of (known, cotangents of the results), to cotangents of `moving`.
        known: a tree of arrays.
        moving: a tree of arrays.
        like: a tree of arrays or of shapes and dtypes, which are those of the results.
    """
    known_leaves, known_tree = jax.tree.flatten(known)
    moving_leaves, moving_tree = jax.tree.flatten(moving)
    like_leaves, like_tree = jax.tree.flatten(like)
    count = len(known_leaves)

    def flat(call: Callable[[Tree, Tree], Tree], tree: Tree, *leaves: Array) -> list[Array]:
        known = jax.tree.unflatten(known_tree, leaves[:count])
        return jax.tree.leaves(call(known, jax.tree.unflatten(tree, leaves[count:])))

    found = _linear.bind(
        *known_leaves,
        *moving_leaves,
        function=partial(flat, function, moving_tree),
        transposed=partial(flat, transposed, like_tree),
        count=count,
        shapes=tuple((leaf.shape, leaf.dtype) for leaf in like_leaves),
    )
    return jax.tree.unflatten(like_tree, found)


def _run(*leaves: Array, function: Flat, **_: Parameter) -> list[Array]:
    return function(*leaves)


def _differentiate(
    primals: Sequence[Array], tangents: Sequence[Leaf], *, count: int, **params: Parameter
) -> tuple[list[Array], list[Array]]:
    call = partial(_linear.bind, count=count, **params)
    tangents = [
        ad.instantiate_zeros(tangent) if n >= count else tangent
        for n, tangent in enumerate(tangents)
    ]
    live = [n for n in range(count) if type(tangents[n]) is not ad.Zero]
    along = call(*primals[:count], *tangents[count:])
    if not live:
        return call(*primals), along

    def by_known(*changed: Array) -> list[Array]:
        leaves = list(primals)
        for n, leaf in zip(live, changed, strict=True):
            leaves[n] = leaf
        return params["function"](*leaves)

    given = tuple(primals[n] for n in live)
    found, more = jax.jvp(by_known, given, tuple(tangents[n] for n in live))
    return found, [one + other for one, other in zip(along, more, strict=True)]


def _transpose(
    cotangents: Sequence[Leaf],
    *leaves: Leaf,
    function: Flat,
    transposed: Flat,
    count: int,
    shapes: tuple[tuple[tuple[int, ...], Any], ...],
) -> list[Array | None]:
    moving = leaves[count:]
    given = [
        ad.instantiate_zeros(cotangent) if type(cotangent) is ad.Zero else cotangent
        for cotangent in cotangents
    ]
    avals = [leaf.aval if ad.is_undefined_primal(leaf) else jax.typeof(leaf) for leaf in moving]
    found = _linear.bind(
        *leaves[:count],
        *given,
        function=transposed,
        transposed=function,
        count=count,
        shapes=tuple((aval.shape, aval.dtype) for aval in avals),
    )
    asked = map(ad.is_undefined_primal, moving)
    found = (cotangent if wanted else None for cotangent, wanted in zip(found, asked, strict=True))
    return [None] * count + list(found)


def _batch(
    leaves: Sequence[Array],
    axes: Sequence[int | None],
    *,
    function: Flat,
    transposed: Flat,
    count: int,
    shapes: tuple[tuple[tuple[int, ...], Any], ...],
) -> tuple[list[Array], list[int]]:
    size = next(x.shape[axis] for x, axis in zip(leaves, axes, strict=True) if axis is not None)
    known_axes = tuple(axes[:count])
    moving = [
        batching.bdim_at_front(leaf, axis, size)
        for leaf, axis in zip(leaves[count:], axes[count:], strict=True)
    ]
    found = _linear.bind(
        *leaves[:count],
        *moving,
        function=jax.vmap(function, in_axes=(*known_axes, *[0] * len(moving))),
        transposed=jax.vmap(transposed, in_axes=(*known_axes, *[0] * len(shapes))),
        count=count,
        shapes=tuple(((size, *shape), dtype) for shape, dtype in shapes),
    )
    return found, [0] * len(found)


_linear = Primitive("linear_call_with_transpose")
_linear.multiple_results = True
_linear.def_impl(_run)
_linear.def_abstract_eval(
    lambda *leaves, shapes, **_: [jax.core.ShapedArray(*shape) for shape in shapes]
)
mlir.register_lowering(_linear, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_jvps[_linear] = _differentiate
ad.primitive_transposes[_linear] = _transpose
batching.primitive_batchers[_linear] = _batch
