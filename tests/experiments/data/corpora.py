"""Data of a config with a few fields changed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from experiments.config.build import as_tree, build
from experiments.data.source import store_text
from experiments.data.tokenizers import SentencePair, Text, Tokenizers
from experiments.registry import DATASETS


def data_part(name: str, tree: dict[str, Any]) -> Any:
    """Build the config of a dataset."""
    return build(DATASETS[name].config, tree, "data.")


def changed(part: Any, changes: dict[str, Any]) -> Any:
    """Return a part with other values of some fields, such as "sizes.train"."""
    tree = ConfigDict(as_tree(part))
    tree.update_from_flattened_dict(changes)
    return build(type(part), tree.to_dict(), "data.")


def load_split(config: Any, split: str, cache: Path | None) -> list[SentencePair]:
    """List the examples of a split, before anything is stored."""
    return [*DATASETS[config.name].source.load(config, split, cache)]


def learn(text: Text, config: Any, pairs: Sequence[SentencePair], cache: Path) -> Tokenizers:
    """Learn the tokens of pairs, after they are stored."""
    return text.learn(config, store_text(cache, lambda: pairs), cache)
