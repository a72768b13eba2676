"""Capabilities that an attention function may claim; rows that need others are not checked."""

CAPABILITIES = {
    "jit": "can be traced by jax.jit; without it, it is called with NumPy arrays",
    "vmap": "can be transformed by jax.vmap",
    "gradients": "reverse-mode derivatives",
    "jvp": "forward-mode derivatives",
    "second_derivatives": "forward over reverse mode",
    "mask": "mask= a bool array [..., T, S], True = may attend",
    "predicates": "mask= a mask of attention.masks, and positions= a pair of integer arrays",
    "scores": "score= a tuple of attention.scores",
    "closures": "masks and scores made by from_function that close over traced arrays",
    "scale": "scale= a number",
    "cross": "different numbers of queries and keys",
    "grouped": "fewer key/value heads than query heads",
    "value_width": "values of another width than keys",
    "leading_axes": "no batch axis, or several batch axes",
    "weights": 'returning=("weights",), [..., N, T, S]',
    "logsumexp": 'returning=("logsumexp",), [..., N, T]',
    "dropout": "dropout= an attention.Dropout",
    "dropout_by_position": "drops the same pairs as attention.attend, for all sizes and positions",
    "sharding": "keeps shardings of batch and heads under jax.jit, without communication",
    "bfloat16": "inputs in bfloat16",
    "float16": "inputs in float16",
    "float64": "inputs in float64, where jax has it enabled",
}
EVERYTHING = frozenset(CAPABILITIES)
