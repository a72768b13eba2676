"""The toy language as a TFDS dataset, generated once and read by random access."""

import contextlib
import dataclasses
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds
from absl import logging

from experiments.data.toy_language.phrase import Pair
from experiments.data.toy_language.splits import ToySizes, corpus

_DESCRIPTION = """
A toy translation language, English to French, generated from a small grammar. Hardly any word can
be translated by itself: adjectives are reordered, determiners and participles agree over long
distances, articles elide and contract, object pronouns precede the verb, negation has two parts
around it, and the sense of polysemous words (bank, bat, key ...) depends on another word. Every
English sentence has exactly one translation, and every pair has its gold word alignment.
"""


@dataclasses.dataclass(eq=False)
class ToyConfig(tfds.core.BuilderConfig):
    """Seed and sizes of a corpus; its name, and so its directory, contains both."""

    seed: int = 0
    sizes: ToySizes = dataclasses.field(default_factory=ToySizes)


def corpus_name(seed: int, sizes: ToySizes) -> str:
    """Name of a corpus, which its seed and sizes decide."""
    return f"en_fr_seed{seed}_{'_'.join(map(str, dataclasses.astuple(sizes)))}"


class ToyTranslation(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """English to French, generated offline."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First version."}
    # TFDS needs a config in the class; `prepare` passes another one, with another name.
    BUILDER_CONFIGS: ClassVar[list[ToyConfig]] = [ToyConfig(name="en_fr")]

    def _info(self) -> tfds.core.DatasetInfo:
        """Return the features of an example."""
        return self.dataset_info_from_configs(
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(
                {
                    "en": tfds.features.Text(),
                    "fr": tfds.features.Text(),
                    # "0-0 1-2": indices of an English and a French word in `words.tokenize` of
                    # each side (Pharaoh format).
                    "alignment": tfds.features.Text(),
                }
            ),
            supervised_keys=("en", "fr"),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        """Return the five splits of one corpus; nothing is downloaded."""
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
                },
            )


def prepare(
    data_dir: str | Path, *, seed: int = 0, sizes: ToySizes | None = None
) -> ToyTranslation:
    """Generate the dataset into a directory, unless it exists.

    TFDS writes into a temporary directory and renames it at the end, so an interrupted preparation
    leaves no incomplete dataset, and several processes may prepare it at once.

    Args:
        data_dir: folder of datasets; each seed and each choice of sizes has its own directory.
        seed: equal seeds give equal bytes.
        sizes: number of pairs of each split.

    Returns:
        A builder that is ready for `as_data_source(split=...)`.
    """
    sizes = sizes or ToySizes()
    config = ToyConfig(name=corpus_name(seed, sizes), seed=seed, sizes=sizes)
    make = partial(
        ToyTranslation, config=config, data_dir=str(data_dir), file_format="array_record"
    )
    with _quietly():
        builder = make()
        try:
            builder.download_and_prepare()
        except OSError:
            if not Path(builder.data_dir).exists():
                raise
            builder = make()  # another process has generated it meanwhile
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
