"""Tokenizers beside checkpoints."""

import os
from collections.abc import Iterable
from pathlib import Path

import tokenizers


class Tokenizer:
    """An adapter for `attention.decoding.generate`: `encode` and `decode`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Wrap a tokenizer of the package `tokenizers`."""
        self.tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of ids, including added tokens."""
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, with the special tokens that the tokenizer adds or without."""
        return self.tokenizer.encode(text, add_special_tokens=special_tokens).ids

    def decode(self, ids: Iterable[int], *, special_tokens: bool = False) -> str:
        """Return the text of ids, with the special tokens among them or without."""
        return self.tokenizer.decode(list(map(int, ids)), skip_special_tokens=not special_tokens)


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer of a folder with a tokenizer.json.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file that is damaged.
    """
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} contains no tokenizer.json")
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:
        raise ValueError(f"{path} is not a tokenizer of Hugging Face: {error}") from None
