"""`dot_product_attention` beside that of jax.nn, and in the attention modules of flax.

The cases are those of other libraries, written anew: `tests/nn_test.py` of jax,
`tests/nnx/nn/attention_test.py` and `tests/linen/linen_attention_test.py` of flax,
`tokamax/_src/ops/attention/test_base.py` and `api_test.py` of tokamax.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from attention import Dropout, attend, dot_product_attention, masks
from tests.attention.primitives.inputs import DIMS, draw, equations_of, jitted

B, T, S, N, K, H = DIMS["BTSNKH"]
QUERY, KEY, VALUE, COTANGENT = draw((B, T, N, H), (B, S, K, H), (B, S, K, H), (B, T, N, H))
BIAS, ROWS = draw((1, N, T, S), (T, S), seed=1)
CHECKERS = (np.arange(T)[:, None] + np.arange(S)) % 2 == 0
LENGTHS = {
    "query_seq_lengths": np.array([3, 5], np.int32),
    "key_value_seq_lengths": np.array([7, 2], np.int32),
}


def close(actual, expected, tolerance=2e-6):
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(
            np.float32(ours), np.float32(theirs), atol=tolerance, rtol=tolerance
        ),
        actual,
        expected,
    )


def with_gradients(function, cotangent=COTANGENT):
    """Return a compiled function of arrays that returns output and gradients."""

    def run(*arrays):
        output, pullback = jax.vjp(function, *arrays)
        return output, pullback(jnp.asarray(cotangent, output.dtype))

    return jitted(run)


# Arguments of jax.nn; "bias" has a gradient.
CASES = {
    "none": {},
    "scale": {"scale": 0.7},
    "bias": {"bias": BIAS},
    "bias of all heads": {"bias": ROWS},
    "causal": {"is_causal": True},
    "lengths": LENGTHS,
    "mask": {"mask": CHECKERS[None, None]},
    "causal, lengths": {"is_causal": True} | LENGTHS,
    "window": {"local_window_size": (3, 0)},
    "window of one number": {"local_window_size": 1},
    "window, causal": {"local_window_size": (3, 2), "is_causal": True},
    "lengths of queries": {"query_seq_lengths": LENGTHS["query_seq_lengths"]},
}


@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients_equal_those_of_jax(name):
    options = dict(CASES[name])
    bias = [options.pop("bias")] if "bias" in options else []
    arrays = (QUERY, KEY, VALUE, *bias)
    ours, theirs = (
        with_gradients(partial(function, **options))(*arrays)
        for function in (dot_product_attention, jax.nn.dot_product_attention)
    )
    close(ours, theirs, 5e-6)


def test_layout_and_dtypes():
    inputs = [jnp.asarray(array, "bfloat16") for array in (QUERY, KEY, VALUE)]
    options = {"is_causal": True, "return_residual": True}
    ours = jitted(partial(dot_product_attention, **options))(*inputs)
    with jax.numpy_dtype_promotion("standard"):  # required by jax.nn
        theirs = jitted(partial(jax.nn.dot_product_attention, **options))(*inputs)
    assert [x.dtype for x in ours] == [x.dtype for x in theirs]
    assert [x.shape for x in ours] == [x.shape for x in theirs] == [(B, T, N, H), (B, T, N)]
    close(ours, theirs, 2e-2)
    with jax.numpy_dtype_promotion("standard"):
        mixed = partial(dot_product_attention, inputs[0], KEY, VALUE, is_causal=True)
        narrow, wide = mixed(dtype="bfloat16"), mixed()
    assert (narrow.dtype, wide.dtype) == ("bfloat16", "float32")
    close(narrow, ours[0])


def test_other_batch_axes():
    """No axis or two of them have the results of one; `vmap` too."""
    mask, bias = draw((B, N, T, S), (1, N, T, S))
    lengths = LENGTHS["key_value_seq_lengths"]

    def ours(query, key, value, mask, lengths):
        options = {"is_causal": True, "key_value_seq_lengths": lengths, "return_residual": True}
        return dot_product_attention(query, key, value, bias, mask > -1, **options)

    @jitted
    def run(*arrays):
        one, two = ours(*arrays), ours(*(array[:, None] for array in arrays))
        mapped = jax.vmap(ours)(*arrays)
        last = ours(*(array[1] for array in arrays[:-1]), arrays[-1][1:])
        return one, jax.tree.map(lambda x: x[:, 0], two), mapped, last

    one, *same, last = run(QUERY, KEY, VALUE, mask, lengths)
    for other in same:
        close(other, one)
    close(last, tuple(x[1] for x in one))


SHAPES = [(B, N, T, S), (B, N, T, 1), (B, N, 1, S), (B, 1, T, S), (1, N, T, S), (N, T, S)]
SHAPES += [(B, 1, T, 1), (1, N, T, 1), (B, 1, 1, S), (1, N, 1, S), (1, 1, T, S), (T, S), (S,)]


def test_shapes_of_a_bias_and_a_mask():
    """One program for all shapes, with gradients of each bias."""
    arrays = draw(*SHAPES)

    def run(function):
        def outputs(arrays):
            return sum(function(QUERY, KEY, VALUE, bias=array) for array in arrays)

        def with_masks():
            return [function(QUERY, KEY, VALUE, mask=array > -1.5) for array in arrays]

        return with_gradients(outputs)(arrays), jitted(with_masks)()

    (biased, masked), (of_bias, of_masks) = (
        run(dot_product_attention),
        run(jax.nn.dot_product_attention),
    )
    close(biased, of_bias, 2e-5)
    for array, ours, theirs in zip(arrays, masked, of_masks, strict=True):
        visible = np.broadcast_to(array > -1.5, (B, N, T, S)).any(-1)  # fully masked queries differ
        close(ours, np.where(np.moveaxis(visible, 1, 2)[..., None], theirs, 0))


def test_fully_masked_query_gives_zero():
    """jax.nn gives the mean of the values, and NaN for a bias of -inf."""
    none = np.zeros(B, np.int32)
    infinite = np.zeros((1, N, T, S), np.float32)
    infinite[:, 1, 2] = -np.inf

    def run(function):
        def both(query, key, value):
            padded = function(query, key, value, key_value_seq_lengths=none, return_residual=True)
            return *padded, function(query, key, value, bias=infinite)

        return jitted(both)(QUERY, KEY, VALUE)

    output, residual, biased = run(dot_product_attention)
    assert not output.any() and (residual == -np.inf).all()
    assert not biased[:, 2, 1].any() and np.isfinite(biased).all()
    mean, large, nan = run(jax.nn.dot_product_attention)
    close(mean, np.broadcast_to(VALUE.mean(1, keepdims=True).repeat(N // K, 2), QUERY.shape))
    assert (large < -1e38).all() and np.isnan(nan[:, 2, 1]).all()


def test_gradient_of_the_residual():
    """That of jax.nn is 0 without a warning."""

    def residual(function, query):
        return function(query, KEY, VALUE, return_residual=True)[1].sum()

    def logsumexp(query):
        return attend(query, KEY, VALUE, returning=("logsumexp",))[1]["logsumexp"].sum()

    ours, theirs = (
        partial(residual, x) for x in (dot_product_attention, jax.nn.dot_product_attention)
    )
    ours, theirs, expected = (jitted(jax.grad(x))(QUERY) for x in (ours, theirs, logsumexp))
    close(ours, expected, 1e-5)
    assert not theirs.any()


def test_memory_is_linear_in_the_length():
    long = jax.ShapeDtypeStruct((1, 1024, 1, 2), jnp.float32)
    options = {"is_causal": True, "local_window_size": (700, 3)}

    def run(x, lengths):
        return dot_product_attention(x, x, x, key_value_seq_lengths=lengths, **options)

    program = jax.make_jaxpr(run)(long, jax.ShapeDtypeStruct((1,), jnp.int32))
    sizes = [x.aval.size for one in equations_of(program.jaxpr) for x in one.outvars]
    assert max(sizes) < 1024 * 1024 / 2


def test_float64_with_a_mask_of_keys(float64):
    inputs = (np.zeros(shape) for shape in ((T, N, H), (S, K, H), (S, K, H)))
    with jax.debug_infs(True):
        output = dot_product_attention(*inputs, mask=np.arange(S) <= S // 2)
    assert output.dtype == np.float64 and not output.any()


REFUSED = {
    "implementation": ({"implementation": "flash"}, ValueError, "xla, cudnn, got 'flash'"),
    "float mask": ({"mask": ROWS}, TypeError, "mask must be bool.* bias=array"),
    "mask of another length": ({"mask": CHECKERS[:, :-1]}, ValueError, r"to \(2, 6, 5, 7\), got"),
    "lengths of other examples": (
        {"query_seq_lengths": np.ones(3, np.int32)},
        ValueError,
        r"query_seq_lengths \[\.\.\.\] must broadcast to \(2,\), got shape \(3,\)",
    ),
    "window to the left of itself": ({"local_window_size": (2, -1)}, ValueError, "0 or more"),
    "dropout without a key": ({"dropout_rate": 0.1}, ValueError, "needs dropout_rng"),
    "products of one's own": ({"qk_attn_weights_einsum": jnp.einsum}, ValueError, "must be None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    options, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        dot_product_attention(**{"query": QUERY, "key": KEY, "value": VALUE} | options)


def test_cudnn_is_the_adapter_of_tokamax(monkeypatch):
    named = []

    def recorded(*arrays, implementation, **options):
        named.append(implementation)
        return attend(*arrays, **options)

    monkeypatch.setitem(dot_product_attention.__globals__, "attend", recorded)
    for name in (None, "xla", "cudnn"):
        jax.eval_shape(partial(dot_product_attention, implementation=name), QUERY, KEY, VALUE)
    assert named == [None, None, "tokamax:cudnn"]


def test_dropout_is_that_of_attend():
    """All examples drop the same weights, unless `broadcast_dropout=False`; heads never do."""
    rng = jax.random.key(3)
    options = {"dropout_rng": rng, "dropout_rate": 0.5, "is_causal": True}
    drop = partial(dot_product_attention, QUERY, KEY, VALUE, **options)
    positions = np.arange(T), np.arange(S)
    expected = partial(attend, QUERY, KEY, VALUE, mask=masks.causal(), positions=positions)
    run = jitted(lambda rng: expected(dropout=Dropout(rng, 0.5)))
    close(drop(), run(rng))
    close(drop(broadcast_dropout=False), run(jax.random.split(rng, B)))
    close(drop(deterministic=True), expected())


# Attention modules of flax.

FEATURES = {"num_heads": 3, "qkv_features": 15, "out_features": 11}
INPUTS, MEMORY = draw((B, T, 7), (B, S, 7), seed=2)
CAUSAL_MASK = nnx.make_causal_mask(INPUTS[..., 0])  # float32, as flax makes it
MODULES = {
    "self-attention": ({}, (INPUTS,), {}),
    "float mask": ({}, (INPUTS,), {"mask": CAUSAL_MASK}),
    "bool mask of memory": ({}, (INPUTS, MEMORY), {"mask": CHECKERS[None, None].repeat(B, 0)}),
    "bfloat16": ({"dtype": jnp.bfloat16, "precision": jax.lax.Precision.HIGH}, (INPUTS,), {}),
    "no batch": ({"normalize_qk": True}, (INPUTS[0],), {"mask": CAUSAL_MASK[0]}),
    "spatial axes": ({"dropout_rate": 0.5}, (INPUTS[None],), {"deterministic": True}),
}


def nnx_module(attention_fn=nnx.dot_product_attention, **options):
    options = {"in_features": 7, "decode": False} | FEATURES | options
    return nnx.MultiHeadAttention(attention_fn=attention_fn, rngs=nnx.Rngs(0), **options)


def of_nnx(options, **call):
    """Functions of parameters and inputs for their attention and ours, and the parameters."""
    modules = [nnx_module(**options), nnx_module(dot_product_attention, **options)]
    (_, parameters, rest), _ = splits = [nnx.split(one, nnx.Param, ...) for one in modules]
    functions = [
        lambda parameters, *inputs, graph=graph: nnx.merge(graph, parameters, rest)(*inputs, **call)
        for graph, *_ in splits
    ]
    return functions, parameters


def of_linen(options, **call):
    """Functions of parameters and inputs for their attention and ours, and the parameters."""
    module = linen.MultiHeadDotProductAttention(**FEATURES, **options)
    parameters = jax.jit(partial(module.init, deterministic=True))(jax.random.key(0), INPUTS)
    ours = module.clone(attention_fn=dot_product_attention)
    return [partial(one.apply, **call) for one in (module, ours)], parameters


@pytest.mark.parametrize("library", [of_nnx, of_linen])
@pytest.mark.parametrize("name", MODULES)
def test_module_of_flax_with_our_attention(library, name):
    options, inputs, call = MODULES[name]
    functions, parameters = library(options, **call)
    (cotangent,) = draw((*inputs[0].shape[:-1], 11))
    with jax.numpy_dtype_promotion("standard"):  # required by jax.nn
        theirs, ours = (with_gradients(one, cotangent)(parameters, *inputs) for one in functions)
    assert ours[0].dtype == theirs[0].dtype
    close(*jax.tree.map(np.float32, (ours, theirs)), 2e-2 if "dtype" in options else 1e-5)


def test_sown_weights():
    functions, parameters = of_linen({}, sow_weights=True, mutable=["intermediates"])
    theirs, ours = (jitted(one)(parameters, INPUTS) for one in functions)
    assert ours[1]["intermediates"]["attention_weights"][0].shape == (B, 3, T, T)
    close(ours, theirs)
    modules = [nnx_module(), nnx_module(dot_product_attention)]
    call = partial(nnx.MultiHeadAttention.__call__, sow_weights=True, is_causal=True)
    theirs, ours = (nnx.capture(call, nnx.Intermediate)(one, INPUTS) for one in modules)
    close(*(nnx.to_pure_dict(one[1]) for one in (ours, theirs)))
    assert not nnx.capture(modules[1], nnx.Intermediate)(INPUTS)[1]


@pytest.mark.parametrize("num_kv_heads", [3, 1])
def test_causal_pass_and_decoding_of_nnx(num_kv_heads):
    """Grouped queries too; the mask of a cache is float32 in flax."""
    module = nnx_module(dot_product_attention, num_kv_heads=num_kv_heads)
    module.init_cache(INPUTS.shape)
    graph, state = nnx.split(module)
    whole = jitted(lambda state: nnx.merge(graph, state)(INPUTS, is_causal=True))(state)

    @jitted
    def step(state, token):
        module = nnx.merge(graph, state)
        return module(token, decode=True), nnx.state(module)

    outputs = []
    for t in range(T):
        output, state = step(state, INPUTS[:, t : t + 1])
        outputs.append(output)
    close(np.concatenate(outputs, axis=1), whole)
    close(whole, nnx_module(num_kv_heads=num_kv_heads)(INPUTS, is_causal=True))


def test_causal_pass_and_decoding_of_linen():
    (theirs, _), parameters = of_linen({})
    whole = theirs(parameters, INPUTS, mask=CAUSAL_MASK)
    options = {"attention_fn": dot_product_attention, "decode": True}
    module = linen.MultiHeadDotProductAttention(**FEATURES, **options)
    cache = jax.tree.map(jnp.zeros_like, module.init(jax.random.key(0), INPUTS)["cache"])
    step = jitted(partial(module.apply, mutable=["cache"]))
    for t in range(T):
        output, updated = step(parameters | {"cache": cache}, INPUTS[:, t : t + 1])
        cache = updated["cache"]
        close(output, whole[:, t : t + 1])


def test_dropout_in_modules():
    """Explicit keys decide what is dropped, and `deterministic=True` switches it off."""
    options = {"dropout_rate": 0.5}
    (_, ours), parameters = of_linen(options)
    run = jitted(lambda rng: ours(parameters, INPUTS, dropout_rng=rng, deterministic=False))
    one, other = jax.random.split(jax.random.key(1))
    assert (run(one) == run(one)).all() and (run(one) != run(other)).any()
    close(ours(parameters, INPUTS, deterministic=True), of_linen({})[0][0](parameters, INPUTS))
    module = nnx_module(dot_product_attention, **options)
    outputs = [module(INPUTS, rngs=nnx.Rngs(seed), deterministic=False) for seed in (0, 0, 1)]
    assert (outputs[0] == outputs[1]).all() and (outputs[0] != outputs[2]).any()
    close(module(INPUTS, deterministic=True), nnx_module()(INPUTS))
