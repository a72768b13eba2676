"""What a function may claim to do; nobody is judged by what they never claimed."""

CAPABILITIES = {
    "jit": "is traced by jax.jit; without it, it is called with NumPy arrays",
    "vmap": "is lifted by jax.vmap",
    "gradients": "reverse-mode derivatives",
    "jvp": "forward-mode derivatives",
    "second_derivatives": "forward over reverse mode",
    "mask": "mask= a bool array [..., T, S], True = may attend",
    "predicates": "mask= a mask of attention.masks, with positions= a pair of integer arrays",
    "scores": "score= a tuple of attention.scores",
    "scale": "scale= a number",
    "cross": "numbers of queries and keys that differ",
    "grouped": "fewer key/value heads than query heads",
    "value_width": "values of another width than keys",
    "leading_axes": "none or several axes in front, and not just one batch axis",
    "weights": 'returning=("weights",), [..., N, T, S]',
    "logsumexp": 'returning=("logsumexp",), [..., N, T]',
    "dropout": "dropout= an attention.Dropout",
    "dropout_by_position": "drops the same pairs as attention.attend, whatever the sizes",
    "bfloat16": "inputs in bfloat16",
    "float16": "inputs in float16",
    "float64": "inputs in float64, where jax has it enabled",
}
EVERYTHING = frozenset(CAPABILITIES)
