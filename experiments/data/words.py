"""Words: a sentence as a list of tokens, and back."""


def tokenize(text: str) -> list[str]:
    """Splits a sentence at spaces and after apostrophes: "l'Afrique" is "l'", "Afrique"."""
    # An elided word keeps its apostrophe and stands before the next word without a space.
    return text.replace("'", "' ").split()


def detokenize(tokens: list[str]) -> str:
    """Joins tokens to a sentence: the inverse of `tokenize`."""
    return " ".join(tokens).replace("' ", "'")
