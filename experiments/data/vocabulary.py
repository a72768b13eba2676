"""Words and their numbers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

PAD, BOS, EOS = 0, 1, 2
SPECIALS = ("<pad>", "<bos>", "<eos>")


@dataclass(frozen=True)
class Vocabulary:
    """A list of words; a word's id is its place. The first three stand for padding, begin, end."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuses lists that could not be read back."""
        if self.words[:3] != SPECIALS:
            raise ValueError(f"a vocabulary starts with {SPECIALS}, got {self.words[:3]}")
        if len(set(self.words)) != len(self.words):
            raise ValueError("a vocabulary names each word once")

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]]) -> "Vocabulary":
        """All words of some tokenized sentences, the most frequent first."""
        counts = Counter(word for sentence in sentences for word in sentence)
        return cls((*SPECIALS, *sorted(counts, key=lambda word: (-counts[word], word))))

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each word."""
        return {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        """The number of words, the three special ones included."""
        return len(self.words)

    def encode(self, sentence: Sequence[str]) -> list[int]:
        """The ids of the words, without begin and end.

        Raises:
            ValueError: a word that is not in the vocabulary, with the nearest that is.
        """
        for word in sentence:
            if word not in self.ids or word in SPECIALS:
                near = get_close_matches(word, self.words[3:], n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"the word {word!r} is not in the vocabulary{hint}")
        return [self.ids[word] for word in sentence]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words of ids up to the first end; padding and begin are left out."""
        words = []
        for number in ids:
            if number == EOS:
                break
            if number not in (PAD, BOS):
                words.append(self.words[number])
        return words

    def as_text(self) -> str:
        """One word a line."""
        return "\n".join(self.words) + "\n"

    @classmethod
    def from_text(cls, text: str) -> "Vocabulary":
        """Reads what `as_text` wrote."""
        return cls(tuple(text.splitlines()))
