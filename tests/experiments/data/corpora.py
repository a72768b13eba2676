"""The configuration of pairs of other people, wherever they stand."""

from ml_collections import ConfigDict


def configuration(name: str, *, joint: bool = True, **fields: object) -> ConfigDict:
    """The smallest `config.data` of a source, with the fields that it alone has."""
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
