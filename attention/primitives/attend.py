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

    `refusal(arguments, platform)` is the reason why it cannot compute them there, or None. `run`
    returns "output", what `arguments.returning` names, and perhaps more.
    """

    name: str
    refusal: Callable[[Arguments, str], str | None]
    run: Callable[[Arguments, str], dict[str, Array]]


@dataclass(frozen=True)
class Choice:
    """The implementation that computes some arguments on a platform, and why.

    `refusals`: name → why not, of those that cannot compute them or are chosen by name only.
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
) -> Any:  # noqa: ANN401 - a union would need a check at each call
    """Attention of every query head over the key/value head of its group, for a batch.

    Batch axes and heads may be sharded: results keep the sharding, and nothing is communicated. On
    Auto axes of a mesh, "tiled" gathers keys and values unless it is traced with sharded inputs,
    `jax.set_mesh` or `jax.lax.with_sharding_constraint`: `in_shardings` of `jax.jit` come later.

    Args:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`; K divides N, and query head n reads key head n // G. Or the view that
            `Cache.extend` returns, which contains the values, the positions and the keys to mask.
        value: `[..., S, K, Hv]`.
        mask: which keys each query attends to: a predicate on positions of `attention.masks`; or a
            bool array (True = may attend), indexed by query and key and not by `positions`:
            `[T, S]`, or `[..., N, T, S]` with as many axes as the weights, where each size may be
            1. A padding array `[B, S]` is `array[:, None, None, :]`. With batch axes, each example
            skips its own tiles, but none under `jax.vmap` or on a mesh with Auto axes.
        is_causal: whether to mask keys after the query, as `mask & masks.causal()`.
        bias: `[T, S]` or `[..., N, T, S]`, indexed by query and key, added to the scaled
            products before score functions.
        score: score functions of `attention.scores`, applied to the scaled products in this order,
            before the mask.
        positions: `(query_positions [..., T], key_positions [..., S])`, integers. Without them
            both count from 0, and a mask that compares them requires T = S.
        heads: `[N]`, the global number of each query head, where the arrays are one shard of all
            heads (`jax.shard_map`); 0 to N - 1 by default. Dropout uses them, and score functions,
            whose arrays then contain all heads; outside of an array, their entry is NaN.
        scale: factor of the products, one number; 1/√H by default.
        dropout: drops weights after the softmax.
        returning: names of what else to return, computed before dropout: "weights"
            `[..., N, T, S]`, "logsumexp" `[..., N, T]`, "largest_score" `[..., N, T]`, which has no
            gradient and is -inf for a fully masked query. It never changes the output.
        precision: "default", "high" or "highest" (the default), of products of float32. Products of
            narrower inputs are computed in their dtype, on a CPU by tiles in float32; all are
            accumulated in float32.
        tile_sizes: queries and keys per tile of the "tiled" implementation.
        implementation: "reference", "tiled", "tokamax" (first-order reverse mode only; needs
            `pip install "attention-jax[kernels]"`), or one of its: "tokamax:mosaic",
            "tokamax:triton", "tokamax:cudnn", "tokamax:xla_chunked", "tokamax:xla". A name means
            that one, or an error with the reason. By default it is chosen for the arguments and the
            platform that the computation is lowered for; for platforms without a device in this
            process (`jax.export`), as for the default device. `explain_attend` reports it.

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


def explain_attend(
    query: Array,
    key: Array | CacheView,
    value: Array | None = None,
    *,
    platform: str | None = None,
    **arguments: Any,  # noqa: ANN401 - those of attend
) -> Choice:
    """Return which implementation `attend` uses for these arguments, and why; print it to read it.

    Arguments are those of `attend`. `platform` is "cpu", "cuda" (or "gpu"), "rocm" or "tpu"; that
    of the default device by default.

    Raises:
        ValueError: an unknown argument or platform, and as `attend`.

    >>> import jax
    >>> from attention import explain_attend
    >>> query = key = value = jax.numpy.ones((6, 2, 4))
    >>> print(explain_attend(query, key, value, implementation="reference"))
    reference: asked for by name
    """
    name = arguments.pop("implementation", None)
    for argument in arguments:
        one_of("each argument of explain_attend", argument, [*signature(attend).parameters][3:-1])
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
    """Return the named implementation, or the default for these arguments."""
    known = {one.name: one for one in IMPLEMENTATIONS}
    if name is None:
        name, reason = _default(arguments)
        other = "reference" if name == "tiled" else "tiled"
        why = known[other].refusal(arguments, platform)
        refusals = {} if why is None else {other: why}
        refusals["tokamax"] = f"chosen by name only; no page of docs/ has its times on {platform}"
        return Choice(known[name], f"{reason} on {platform}", refusals)
    if name not in known:
        one_of("implementation", name, [*known])
    if (why := known[name].refusal(arguments, platform)) is None:
        return Choice(known[name], "asked for by name", {})
    able = [one.name for one in IMPLEMENTATIONS if one.refusal(arguments, platform) is None]
    raise ValueError(f"implementation {name!r} cannot compute this: {why}; {', '.join(able)} could")


def _default(arguments: Arguments) -> tuple[str, str]:
    """Return the name of the implementation that is used by default, and the reason."""
    *batch, num_queries, num_heads, _ = arguments.query.shape
    if arguments.tile_sizes is None and num_queries == 1:
        return "reference", "one query has no more scores than keys"
    sizes = *batch, num_queries, num_heads, arguments.key.shape[-3]
    is_known = all(isinstance(size, int) for size in sizes)  # not symbolic
    if arguments.tile_sizes is None and is_known and prod(sizes) <= FEW_SCORES:
        return "reference", "so few scores fit a cache as they are"
    if why := _nothing_to_tile(arguments):
        return "reference", why
    if not batch_shapes(arguments.mask):
        return "tiled", "linear in memory; it skips empty tiles"
    if possible_shards(arguments.query, arguments.key, arguments.value) > 1:
        return "tiled", "linear in memory; all tiles are computed: the mesh may shard the batch"
    return "tiled", "linear in memory; it skips empty tiles, but not under jax.vmap over its mask"


def _nothing_to_tile(arguments: Arguments, platform: str | None = None) -> str | None:
    """Return why the arguments cannot be computed in tiles, on any platform."""
    if 0 in (*arguments.query.shape, *arguments.key.shape, *arguments.value.shape):
        return "there is nothing to cut into tiles"
    if not isinstance(arguments.query.shape[-3] + arguments.key.shape[-3], int):
        return "a symbolic length has no number of tiles"
    return None


def _tiles_given(arguments: Arguments, platform: str) -> str | None:
    """Return why the reference cannot compute the arguments."""
    return None if arguments.tile_sizes is None else "it has no tiles, and tile_sizes was given"


def attend_by(arguments: Arguments, name: str | None) -> dict[str, Array]:
    """Return "output" and what `arguments.returning` names, computed by an implementation.

    It is chosen for each platform with devices; that of the platform that is lowered for is run.
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


# Up to this many scores fit a cache of a core, 1 MiB.
FEW_SCORES = 2**18

IMPLEMENTATIONS = (
    Implementation("tiled", _nothing_to_tile, attend_in_tiles),
    Implementation("reference", _tiles_given, attend_by_definition),
    *(
        Implementation(
            name, partial(kernels.refusal, name=name), partial(kernels.attend_by_tokamax, name=name)
        )
        for name in kernels.PLATFORMS
    ),
)
