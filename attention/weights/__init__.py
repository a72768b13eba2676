"""Checkpoints of other libraries and of this one, as safetensors; needs the extra `[weights]`.

`load(folder)` makes a model from a checkpoint in the layout of Hugging Face, `save(model, folder)`
writes it in the same layout, and `load_tokenizer(folder)` reads the tokenizer beside it. A new
architecture is a `Family` in `FAMILIES`: a config, a model, and a table of rules between parameters
and tensors, which is read in both directions.
"""

from attention.weights.checkpoint import FAMILIES, Source, load, save
from attention.weights.own import MODELS
from attention.weights.rules import Family, Layout, Rule, Settings
from attention.weights.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "FAMILIES",
    "MODELS",
    "Family",
    "Layout",
    "Rule",
    "Settings",
    "Source",
    "Tokenizer",
    "load",
    "load_tokenizer",
    "save",
]
