"""Configs as `ml_collections.ConfigDict`, whose fields are flags."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from ml_collections import ConfigDict, config_dict

from experiments.config.build import as_tree


def as_config_dict(part: Any) -> ConfigDict:  # noqa: ANN401 - any dataclass
    """Return the fields of a part, or of a whole config, as a ConfigDict.

    A field whose value is None takes a value of the type of the field; a part that is None is left
    out.
    """
    hints, tree = get_type_hints(type(part)), as_tree(part)
    fields = {}
    for name, value in tree.items():
        own = getattr(part, name)
        if dataclasses.is_dataclass(own):
            fields[name] = as_config_dict(own)
        elif isinstance(value, Mapping):
            fields[name] = ConfigDict(dict(value))
        elif value is None and get_origin(hints[name]) in (Union, types.UnionType):
            kind = next(kind for kind in get_args(hints[name]) if kind is not type(None))
            fields[name] = config_dict.placeholder(kind)
        else:
            fields[name] = value
    return ConfigDict(fields)
