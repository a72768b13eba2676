"""Gaps in a text, for a model that learns by filling them."""

from typing import NamedTuple

import numpy as np

# Devlin et al. 2019, section 3.1.
CHOSEN, TO_MASK, TO_RANDOM = 0.15, 0.8, 0.1


class Masked(NamedTuple):
    """A text with gaps.

    Attributes:
        inputs: `[...]` ids, as the model reads them.
        chosen: `[...]` bool, where it shall say what stood there.
    """

    inputs: np.ndarray
    chosen: np.ndarray


def mask_tokens(
    tokens: np.ndarray, *, words: range, mask_token: int, seed: int, index: int
) -> Masked:
    """Chooses 15 % of the words, to be predicted (Devlin et al. 2019, section 3.1).

    Of the chosen ones 80 % are replaced by the mask token, 10 % by any word, perhaps their own,
    and 10 % stay as they are. Each word is chosen on its own, so a short sentence may have no gap.

    Args:
        tokens: `[...]` ids.
        words: the ids that are words; nothing else, padding and other special ones, is chosen.
        mask_token: the id of a gap.
        seed: of the training.
        index: of the batch: equal (seed, index) make equal gaps in equal tokens.

    Raises:
        ValueError: a mask token that is a word.
    """
    if mask_token in words:
        raise ValueError(
            f"mask_token={mask_token} is one of the words {words.start} to {words.stop - 1}"
        )
    random = np.random.default_rng((seed, index))
    is_word = (words.start <= tokens) & (tokens < words.stop)
    chosen = is_word & (random.random(tokens.shape) < CHOSEN)
    fate = random.random(tokens.shape)
    others = random.integers(words.start, words.stop, tokens.shape, dtype=tokens.dtype)
    replaced = np.where(fate < TO_MASK, tokens.dtype.type(mask_token), others)
    changed = chosen & (fate < TO_MASK + TO_RANDOM)
    return Masked(np.where(changed, replaced, tokens), chosen)
