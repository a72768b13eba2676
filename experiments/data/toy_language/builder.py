"""The toy language as a TFDS dataset, written once to disk and read at random from there."""

import contextlib
import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds
from absl import logging

from experiments.data.toy_language.phrase import Pair
from experiments.data.toy_language.splits import Sizes, corpus

_DESCRIPTION = """
A toy translation language, English to French, generated from a small grammar. Hardly a word can be
translated on its own: adjectives change sides, determiners and participles agree across distance,
articles elide and contract, pronouns move before the verb, negation wraps it, and polysemous words
(bank, bat, key ...) take their sense from another word of the sentence. Every English sentence has
exactly one translation, and every pair its gold word alignment.
"""


@dataclasses.dataclass(eq=False)
class ToyConfig(tfds.core.BuilderConfig):
    """Which corpus: its seed and sizes, which are also its name and so its directory."""

    seed: int = 0
    sizes: Sizes = dataclasses.field(default_factory=Sizes)


def corpus_name(seed: int, sizes: Sizes) -> str:
    """Name of a corpus, which its seed and sizes decide."""
    return f"en_fr_seed{seed}_{'_'.join(map(str, dataclasses.astuple(sizes)))}"


class ToyTranslation(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """English to French, generated offline."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First version."}
    # For whoever asks for the class alone; `prepare` names its own, which TFDS wants different.
    BUILDER_CONFIGS: ClassVar[list[ToyConfig]] = [ToyConfig(name="en_fr")]

    def _info(self) -> tfds.core.DatasetInfo:
        """What an example is made of."""
        return self.dataset_info_from_configs(
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(
                {
                    "en": tfds.features.Text(),
                    "fr": tfds.features.Text(),
                    # "0-0 1-2": places of an English and a French word in `words.tokenize` of
                    # each side, as the field writes word alignments since Pharaoh.
                    "alignment": tfds.features.Text(),
                    # Names of `PHENOMENA`, separated by spaces.
                    "phenomena": tfds.features.Text(),
                }
            ),
            supervised_keys=("en", "fr"),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        """Five splits of one corpus; nothing is downloaded."""
        del dl_manager
        pairs = corpus(self.builder_config.seed, self.builder_config.sizes)
        return {split: self._generate_examples(pairs[split]) for split in pairs}

    def _generate_examples(self, pairs: list[Pair]) -> Iterator[tuple[int, dict[str, Any]]]:
        for i, pair in enumerate(pairs):
            yield (
                i,
                {
                    "en": pair.en,
                    "fr": pair.fr,
                    "alignment": " ".join(f"{en}-{fr}" for en, fr in pair.alignment),
                    "phenomena": " ".join(pair.phenomena),
                },
            )


def prepare(data_dir: str | Path, *, seed: int = 0, sizes: Sizes | None = None) -> ToyTranslation:
    """Generates the language into a directory, unless it is there already.

    TFDS writes into a temporary directory and renames it at the end, so that what a killed
    preparation leaves is never taken for a dataset.

    Args:
        data_dir: Where datasets are kept; every seed and size has its own directory below it.
        seed: Same seed, same bytes.
        sizes: How many pairs each split has.

    Returns:
        A builder that is ready for `as_data_source(split=...)`.
    """
    sizes = sizes or Sizes()
    with _quietly():
        builder = ToyTranslation(
            config=ToyConfig(name=corpus_name(seed, sizes), seed=seed, sizes=sizes),
            data_dir=str(data_dir),
            file_format="array_record",
        )
        builder.download_and_prepare()
    return builder


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without TFDS's announcements, and its warning of a configuration that its class lacks."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
