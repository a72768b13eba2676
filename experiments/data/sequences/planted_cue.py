"""Planted cue: one source word decides the target word, and all others are noise.

Explanations of a model that has learned the task must rank the cue first, the control of methods
that attribute an output to inputs (Adebayo et al. 2018; Bastings et al. 2022). The link of a pair
is that of the cue.
"""

from pathlib import Path

from experiments.config.data import PlantedCueData
from experiments.data.pairs import SentencePair
from experiments.data.sequences.draw import generator, sequences
from experiments.data.source import Source
from experiments.data.tokenizers import Words


def load(config: PlantedCueData, split: str, cache: Path) -> list[SentencePair]:
    """Draw a split: a cue such as "c3" at a random place among words such as "w17"."""
    del cache
    random = generator(config.seed, split)
    noise = sequences(
        random,
        getattr(config.sizes, split),
        shortest=config.shortest - 1,
        longest=config.longest - 1,
        symbols=config.words,
    )
    pairs = []
    for line in noise:
        place, cue = int(random.integers(len(line) + 1)), int(random.integers(config.cues))
        words = [f"w{word}" for word in line]
        words.insert(place, f"c{cue}")
        pairs.append(SentencePair(" ".join(words), f"t{cue}", f"{place}-0"))
    return pairs


SOURCE = Source(load, text=Words(), has_cue=True)
