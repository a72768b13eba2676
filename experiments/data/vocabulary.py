"""Words and their numbers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from experiments.errors import UsageError, nearest

PAD, BOS, EOS = 0, 1, 2
SPECIALS = ("<pad>", "<bos>", "<eos>")


@dataclass(frozen=True)
class Vocabulary:
    """A list of words, whose ids are their indices; padding, begin and end come first."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that the list can be read back."""
        if self.words[:3] != SPECIALS:
            raise ValueError(f"a vocabulary starts with {SPECIALS}, got {self.words[:3]}")
        if len(set(self.words)) != len(self.words):
            raise ValueError("a vocabulary names each word once")

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]]) -> "Vocabulary":
        """Make a vocabulary of all words of tokenized sentences, the most frequent first.

        Raises:
            UsageError: a word that is spelled as a special one.
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        if taken := [word for word in SPECIALS if word in counts]:
            raise UsageError(
                f"the word or class {taken[0]!r} of the data is a special token of the "
                "vocabulary: rename it"
            )
        return cls((*SPECIALS, *sorted(counts, key=lambda word: (-counts[word], word))))

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each word but the special ones."""
        return dict(zip(self.words[3:], range(3, len(self.words)), strict=True))

    @cached_property
    def _in_small_letters(self) -> dict[str, str]:
        """Word by its lower-case spelling; the most frequent one if there are several."""
        return {word.lower(): word for word in reversed(self.words[3:])}

    def respell(self, word: str) -> str:
        """Return a word in the case in which it is known; an unknown one as it is."""
        return word if word in self.ids else self._in_small_letters.get(word.lower(), word)

    def __len__(self) -> int:
        """Number of words, the three special ones included."""
        return len(self.words)

    def encode(self, sentence: Sequence[str], kind: str = "word") -> list[int]:
        """Return the ids of the words, without begin and end.

        Args:
            sentence: the words.
            kind: what they are called in an error.

        Raises:
            ValueError: a word that is not in the vocabulary, with the nearest that is.
        """
        try:
            return [self.ids[word] for word in sentence]
        except KeyError as error:
            (word,) = error.args
            hint = nearest(word, self.ids, quote=True)
            raise ValueError(f"the {kind} {word!r} is not in the vocabulary{hint}") from None

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the words of ids up to the first end; padding and begin are left out."""
        words = []
        for number in ids:
            if number == EOS:
                break
            if number not in (PAD, BOS):
                words.append(self.words[number])
        return words

    def as_text(self) -> str:
        """Return one word on each line."""
        return "\n".join(self.words) + "\n"

    @classmethod
    def from_text(cls, text: str) -> "Vocabulary":
        """Read the text that `as_text` returned."""
        return cls(tuple(text.removesuffix("\n").split("\n")))
