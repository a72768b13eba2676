"""The public function: validate, choose an implementation, call it; and explain the choice."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from math import prod
from typing import Any

import jax
from jax import Array
from jax.typing import ArrayLike

from attention.primitives import kernels
from attention.primitives.arguments import Arguments, check_arguments, explicit_mesh
from attention.primitives.cache import CacheView
from attention.primitives.choice import one_of
from attention.primitives.dot_product import attend_by_definition
from attention.primitives.dropout import Dropout
from attention.primitives.masks import Mask
from attention.primitives.pytree_dataclass import batch_shapes
from attention.primitives.scores import Score
from attention.primitives.sharding import per_shard
from attention.primitives.tiled import attend_in_tiles
from attention.primitives.vectorize import possible_shards

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


@dataclass(frozen=True)
class Implementation:
    """One way to compute attention, with the same meaning as all others.

    Attributes:
        name: what `attend(implementation=...)` takes.
        refusal: (arguments, platform) → why it cannot compute them there, in half a sentence; None
            if it can.
        run: (arguments, platform=platform) → "output", what `arguments.returning` names, and
            perhaps more.
        preference: (arguments, platform) → why it is the default for arguments that it can
            compute; None if another should be tried first. None = never the default.
    """

    name: str
    refusal: Callable[[Arguments, str], str | None]
    run: Callable[[Arguments, str], dict[str, Array]]
    preference: Callable[[Arguments, str], str | None] | None = None


@dataclass(frozen=True)
class Choice:
    """The implementation that computes some arguments on a platform, and why not others.

    Attributes:
        implementation: what was chosen.
        reason: why.
        refusals: name → why it was not chosen, of those that cannot compute the arguments or are
            chosen by name only.
    """

    implementation: Implementation
    reason: str
    refusals: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.implementation.name}: {self.reason}"]
        return "\n".join(lines + [f"not {name}: {why}" for name, why in self.refusals.items()])


def attend(
    query: Array,
    key: Array | CacheView,
    value: Array | None = None,
    *,
    mask: Mask | ArrayLike | None = None,
    is_causal: bool = False,
    bias: ArrayLike | None = None,
    score: Score | Collection[Score] | None = None,
    positions: tuple[ArrayLike, ArrayLike] | None = None,
    heads: ArrayLike | None = None,
    scale: float | Array | None = None,
    dropout: Dropout | None = None,
    returning: Collection[str] | None = None,
    precision: str | None = None,
    tile_sizes: tuple[int, int] | None = None,
    implementation: str | None = None,
) -> Array | tuple[Array, dict[str, Array]]:
    """Attention of every query head over the key/value head of its group, for a batch.

    Batch axes and heads may be sharded: results keep the sharding, and nothing is communicated. For
    Auto axes of a mesh, "tiled" must find the mesh when it is traced: by inputs that are sharded
    already, `jax.set_mesh` or `jax.lax.with_sharding_constraint`. With `in_shardings` of `jax.jit`
    alone, its keys and values are gathered.

    Args:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`; K divides N, and query head n reads key head n // G. Or the view that
            `Cache.extend` returns, which contains the values, the positions and the keys to mask.
        value: `[..., S, K, Hv]`.
        mask: which keys each query attends to: a mask of `attention.masks`, a predicate on
            positions; or a bool array (True = may attend) `[T, S]`, or with as many axes as the
            weights, `[..., N, T, S]`, where each size may be 1, indexed by query and key and not by
            `positions`. A padding array `[B, S]` is `array[:, None, None, :]`. A mask whose arrays
            have batch axes lets each example skip its own tiles; under `jax.vmap`, and on a mesh
            with Auto axes, all tiles are computed instead.
        is_causal: whether to mask keys after the query, as `mask & masks.causal()`.
        bias: added to the scaled products before score functions, as `scores.bias_array(bias)`.
        score: score functions of `attention.scores`, applied to the scaled products in this order,
            before the mask.
        positions: `(query_positions [..., T], key_positions [..., S])`, integers. Without them
            both count from 0, and a mask that compares them requires T = S.
        heads: `[N]`, the global number of each query head, for score functions and dropout, where
            the arrays are one shard of all heads (`jax.shard_map`); 0 to N - 1 by default. Arrays
            of score functions then contain all heads, not one shard; the entry of a number outside
            of an array is NaN.
        scale: factor of the products, one number; 1/√H by default.
        dropout: drops weights after the softmax.
        returning: names of what else to return, computed before dropout. It never changes the
            output.

            - "weights" `[..., N, T, S]`, "logsumexp" `[..., N, T]`;
            - "largest_score" `[..., N, T]`, without gradient; -inf for a fully masked query.
        precision: "default", "high" or "highest" (the default), of products of float32. Products of
            narrower inputs are computed in their dtype, on a CPU by tiles in float32; all are
            accumulated in float32.
        tile_sizes: queries and keys per tile of the "tiled" implementation.
        implementation: "reference", "tiled" or "tokamax" (first-order reverse mode only; needs
            `pip install attention[kernels]`), or one of its own: "tokamax:mosaic",
            "tokamax:triton", "tokamax:cudnn", "tokamax:xla_chunked" or "tokamax:xla". A name means
            that one, or an error with the reason. By default it is chosen for the arguments and
            the platform that the computation is lowered for, if this process has a device of that
            platform; `explain` reports it. An export (`jax.export`) for any other platform contains
            the choice for the default device.

    Returns:
        The output `[..., T, N, Hv]` in the query's dtype, or with `returning` a pair of it and a
        dict of the named results. A fully masked query has output 0, weights 0 and logsumexp -inf.
        A query that attends to NaN or infinity has output NaN and NaN gradients; no other has.

    Raises:
        ValueError: shapes that do not fit, in a sentence that names the axis and both sizes; an
            implementation that cannot compute this, with the reason and the alternatives.
        TypeError: a mask that is neither a predicate nor bool, inputs that are not floats.
    """
    given = dict(locals())
    del given["implementation"]
    arguments = check_arguments(**given)
    if explicit_mesh(arguments) is None:
        results = attend_by(arguments, implementation)
    else:
        results = per_shard(attend_by, arguments, implementation)
    output = results.pop("output")
    return (output, results) if returning else output


def explain(
    query: Array,
    key: Array | CacheView,
    value: Array | None = None,
    *,
    platform: str | None = None,
    **arguments: Any,  # noqa: ANN401 - those of attend
) -> Choice:
    """Return which implementation `attend` uses for these arguments, and why; print it to read it.

    Args:
        query: as in `attend`.
        key: as in `attend`.
        value: as in `attend`.
        **arguments: the other arguments of `attend`.
        platform: "cpu", "cuda" (or "gpu"), "rocm" or "tpu"; that of the default device by default.

    Raises:
        ValueError: an unknown argument or platform, and as `attend`.

    >>> import jax
    >>> from attention import explain
    >>> query = key = value = jax.numpy.ones((6, 2, 4))
    >>> print(explain(query, key, value, implementation="reference"))
    reference: asked for by name
    """
    name = arguments.pop("implementation", None)
    for argument in arguments:
        one_of("each argument of explain", argument, [*signature(attend).parameters][3:-1])
    platform = available_platforms()[0] if platform is None else platform
    platform = "cuda" if platform == "gpu" else platform
    one_of("platform", platform, PLATFORMS)
    return choose(check_arguments(query, key, value, **arguments), name, platform)


def available_platforms() -> tuple[str, ...]:
    """Return the platforms with devices in this process, that of the default device first."""
    default = jax.default_backend()
    found = [name for name in PLATFORMS[1:] if name == default or _has_devices(name)]
    return ("cpu", *found) if default == "cpu" else (*found, "cpu")


def _has_devices(platform: str) -> bool:
    try:
        return bool(jax.local_devices(backend=platform))
    except RuntimeError:
        return False


def choose(arguments: Arguments, name: str | None, platform: str) -> Choice:
    """Return the named implementation, or the first that prefers arguments it can compute.

    Raises:
        ValueError: an unknown name, or one that cannot compute this, with the reason and the
            alternatives.
    """
    if name is not None:
        chosen = next((one for one in IMPLEMENTATIONS if one.name == name), None)
        if chosen is None:
            one_of("implementation", name, [one.name for one in IMPLEMENTATIONS])
        if (why := chosen.refusal(arguments, platform)) is None:
            return Choice(chosen, "asked for by name", {})
        able = [one.name for one in IMPLEMENTATIONS if one.refusal(arguments, platform) is None]
        raise ValueError(
            f"implementation {name!r} cannot compute this: {why}; {', '.join(able)} could"
        )
    defaults = [one for one in IMPLEMENTATIONS if one.preference]
    refusals = {one.name: why for one in defaults if (why := one.refusal(arguments, platform))}
    for one in defaults:
        if one.name not in refusals and (reason := one.preference(arguments, platform)):
            refusals["tokamax"] = f"by name only: no committed page shows it faster on {platform}"
            return Choice(one, f"{reason} on {platform}", refusals)
    raise AssertionError("the reference takes everything")


def attend_by(arguments: Arguments, name: str | None) -> dict[str, Array]:
    """Return "output" and what `arguments.returning` names, computed by an implementation.

    For each platform with devices it is chosen anew, and that of the platform that the computation
    is lowered for is run.

    Raises:
        ValueError: a named implementation that cannot compute this on any of these platforms.
    """
    runs, error = {}, None
    for platform in available_platforms():
        try:
            runs[platform] = choose(arguments, name, platform).implementation.run
        except ValueError as refused:
            error = error or refused
    if not runs:
        raise error

    def named(results: dict[str, Array]) -> dict[str, Array]:
        return {name: results[name] for name in ("output", *arguments.returning)}

    if len(runs) == 1:
        ((platform, run),) = runs.items()
        return named(run(arguments, platform=platform))

    def on(platform: str, given: Arguments) -> dict[str, Array]:
        given = replace(given, scale=arguments.scale)  # not traced, unless it was before
        return named(runs[platform](given, platform=platform))

    by_platform = {platform: partial(on, platform) for platform in runs}
    return jax.lax.platform_dependent(arguments, **by_platform)


def _few_scores(arguments: Arguments) -> str | None:
    if arguments.tile_sizes is not None:
        return None
    *batch, num_queries, num_heads, _ = arguments.query.shape
    if num_queries == 1:
        return "one query has no more scores than keys"
    sizes = *batch, num_queries, num_heads, arguments.key.shape[-3]
    if all(isinstance(size, int) for size in sizes) and prod(sizes) <= FEW_SCORES:
        return "so few scores fit a cache as they are"
    return None


def _refusal_of_tiles(arguments: Arguments, platform: str) -> str | None:
    del platform
    if 0 in (*arguments.query.shape, *arguments.key.shape, *arguments.value.shape):
        return "there is nothing to cut into tiles"
    if not isinstance(arguments.query.shape[-3] + arguments.key.shape[-3], int):
        return "a symbolic length has no number of tiles"
    return None


def _preference_for_tiles(arguments: Arguments, platform: str) -> str | None:
    if _few_scores(arguments):
        return None
    if not batch_shapes(arguments.mask):
        return "linear in memory; it skips empty tiles"
    if possible_shards(arguments.query, arguments.key, arguments.value) > 1:
        return "linear in memory; all tiles are computed since the mesh may shard the batch"
    return "linear in memory; it skips empty tiles, but not under jax.vmap over its mask"


# Up to this many scores fit a cache of a core, 1 MiB.
FEW_SCORES = 2**18

IMPLEMENTATIONS = (
    Implementation("tiled", _refusal_of_tiles, attend_in_tiles, _preference_for_tiles),
    Implementation(
        "reference",
        lambda arguments, _: (
            None if arguments.tile_sizes is None else "it has no tiles, and tile_sizes was given"
        ),
        attend_by_definition,
        lambda arguments, platform: (
            _few_scores(arguments) or _refusal_of_tiles(arguments, platform)
        ),
    ),
    *(
        Implementation(
            name,
            partial(kernels.refusal, name=name),
            partial(kernels.attend_by_tokamax, name=name),
        )
        for name in kernels.PLATFORMS
    ),
)
