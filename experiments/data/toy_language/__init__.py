"""The toy translation language: English to French, made so that no word can be translated alone."""

from experiments.data.toy_language.builder import ToyTranslation, corpus_name, prepare
from experiments.data.toy_language.phrase import PHENOMENA, Pair
from experiments.data.toy_language.splits import Sizes, corpus, sample

__all__ = [
    "PHENOMENA",
    "Pair",
    "Sizes",
    "ToyTranslation",
    "corpus",
    "corpus_name",
    "prepare",
    "sample",
]
