"""The toy language, English to French: generated once, and stored by TFDS.

Hardly any word can be translated by itself: adjectives are reordered, determiners and participles
agree over long distances, articles elide and contract, object pronouns precede the verb, negation
has two parts around it, and the sense of polysemous words (bank, bat, key ...) depends on another
word. Every English sentence has exactly one translation, and every pair has its word alignment.
"""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds
from absl import logging

from experiments.config.data import RandomData
from experiments.data.source import Source
from experiments.data.tokenizers import WORDS, SentencePair, Words
from experiments.data.toy_language.corpus import ToySizes, corpus
from experiments.registry import dataset


@dataclass(eq=False)
class ToyConfig(tfds.core.BuilderConfig):
    """Seed and sizes of a corpus."""

    seed: int = 0
    sizes: ToySizes = field(default_factory=ToySizes)


class ToyTranslation(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """English to French, generated offline."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First version."}
    # TFDS needs a config in the class; `prepare` passes another one, with another name.
    BUILDER_CONFIGS: ClassVar[list[ToyConfig]] = [ToyConfig(name="en_fr")]

    def _info(self) -> tfds.core.DatasetInfo:
        """Return the features of an example; the alignment is as in `SentencePair.links`."""
        text = tfds.features.Text
        return self.dataset_info_from_configs(
            description=__doc__,
            features=tfds.features.FeaturesDict({"en": text(), "fr": text(), "alignment": text()}),
            supervised_keys=("en", "fr"),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        """Return the five splits of one corpus; nothing is downloaded."""
        del dl_manager
        pairs = corpus(self.builder_config.seed, self.builder_config.sizes)
        return {split: self._generate_examples(pairs[split]) for split in pairs}

    def _generate_examples(self, pairs: list[SentencePair]) -> Iterator[tuple[int, dict[str, str]]]:
        for i, pair in enumerate(pairs):
            yield i, dict(zip(("en", "fr", "alignment"), pair, strict=True))


def corpus_name(seed: int, sizes: ToySizes) -> str:
    """Name of a corpus, and so of its directory, which its seed and sizes decide."""
    return f"en_fr_seed{seed}_{'_'.join(map(str, astuple(sizes)))}"


def prepare(data_dir: Path, seed: int, sizes: ToySizes) -> ToyTranslation:
    """Generate a corpus into a directory, unless it exists; return a builder that can read it.

    TFDS writes into a temporary directory and renames it at the end, so an interrupted preparation
    leaves no incomplete dataset, and several processes may prepare it at once.
    """
    config = ToyConfig(name=corpus_name(seed, sizes), seed=seed, sizes=sizes)
    options = {"config": config, "data_dir": str(data_dir), "file_format": "array_record"}
    with _quietly():
        builder = ToyTranslation(**options)
        try:
            builder.download_and_prepare()
        except OSError:
            if not Path(builder.data_dir).exists():
                raise
            builder = ToyTranslation(**options)  # another process has generated it meanwhile
    return builder


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress messages of TFDS, and its warning about a config that the class does not list."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)


def load_pairs(seed: int, sizes: ToySizes, split: str, cache: Path) -> list[SentencePair]:
    """Return a split of a toy language, which is generated the first time."""
    examples = prepare(cache / "data", seed, sizes).as_data_source(split=split)
    return [
        SentencePair(*(example[side].decode() for side in ("en", "fr", "alignment")))
        for example in examples.__getitems__(range(len(examples)))
    ]


SOURCE = Source(
    lambda config, split, cache: load_pairs(config.seed, config.sizes, split, cache),
    tests=("test", "compositional", "longer"),
    text=Words(WORDS),
    has_phenomena=True,
    name=lambda config: f"{corpus_name(config.seed, config.sizes)} {ToyTranslation.VERSION}",
)


@dataset(source=SOURCE, contains=("text", "pairs"))
@dataclass(frozen=True, kw_only=True)
class ToyData(RandomData):
    """The toy language, English and French."""

    name: str = "toy"
    sizes: ToySizes = field(default_factory=ToySizes)
