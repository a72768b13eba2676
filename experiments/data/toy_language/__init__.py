"""The toy translation language, English to French: hardly any word can be translated by itself."""

from experiments.data.toy_language.builder import ToyTranslation, corpus_name, prepare
from experiments.data.toy_language.phrase import Pair
from experiments.data.toy_language.splits import corpus, sample

__all__ = [
    "Pair",
    "ToyTranslation",
    "corpus",
    "corpus_name",
    "prepare",
    "sample",
]
