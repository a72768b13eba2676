"""The toy translation language, English to French: hardly any word can be translated by itself."""

from experiments.data.toy_language.builder import ToyTranslation, corpus_name, prepare
from experiments.data.toy_language.phrase import Pair
from experiments.data.toy_language.splits import Sizes, corpus, sample

__all__ = [
    "Pair",
    "Sizes",
    "ToyTranslation",
    "corpus",
    "corpus_name",
    "prepare",
    "sample",
]
