"""Configs of parallel text from files or TFDS."""

from ml_collections import ConfigDict


def configuration(name: str, *, joint: bool = True, **fields: object) -> ConfigDict:
    """Return the smallest `config.data` of a source, with its own fields."""
    return ConfigDict(
        {
            "name": name,
            "source": "en",
            "target": "de",
            "faults": "refuse",
            "longest": 5,
            "subwords": {"kind": "bpe", "size": 300, "joint": joint, "dropout": 0.0},
            **fields,
        }
    )
