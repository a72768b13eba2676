"""Models of the literature, for --mode=describe; they are not trained.

command    python run.py --mode=describe --config=configs/presets.py:llama3_8b
           with --config.model.num_kv_heads=1, for example, for a change of a field
hardware   any: no parameter is allocated
time       seconds
score      numbers of parameters as published: equal for GPT-2 small, Llama-3 8B, and BERT base
           with its pooler; 0.2 % fewer for GPT-3; 3 % fewer for Transformer base
"""

from typing import Any

from ml_collections import ConfigDict

from experiments.errors import UsageError, nearest


def _preset(
    vocab_size: int, published: tuple[int, str], *, absent: int = 0, **model: object
) -> dict[str, Any]:
    """Return a preset.

    Args:
        vocab_size: V.
        published: number of parameters, and where.
        absent: parameters of a pooler, which the model lacks.
        model: fields of `TransformerConfig`.
    """
    heads = {"num_kv_heads": model["num_heads"], "head_width": model["width"] // model["num_heads"]}
    return {
        "vocab_size": vocab_size,
        "published": {
            "parameters": published[0],
            "source": published[1],
            "absent": {"pooler": absent} if absent else {},
        },
        "model": {**heads, **model},
    }


# Radford et al. 2019, 2.3; Brown et al. 2020, 2.1.
_GPT = {
    "activation": "gelu",
    "norm_placement": "pre",
    "norm_epsilon": 1e-5,
    "positions": "learned",
    "tie": "output",
    "embedding_scale": 1.0,
    "kernel_init": "normal_0.02",
    "embedding_init": "normal_0.02",
}
PRESETS = {
    # 124M in the name of the checkpoint, 117M in the paper.
    "gpt2_small": _preset(
        50_257,
        (124_439_808, "the released checkpoint of Radford et al. 2019"),
        **_GPT,
        **{"width": 768, "num_heads": 12, "hidden": 3072, "decoder_layers": 12, "max_length": 1024},
    ),
    # The paper rounds; sparse attention in its layers changes no number of parameters.
    "gpt3_175b": _preset(
        50_257,
        (175_000_000_000, "Brown et al. 2020, table 2.1, to the billion"),
        **_GPT,
        **{"width": 12_288, "num_heads": 96, "hidden": 49_152, "decoder_layers": 96},
        max_length=2048,
    ),
    # With the context of 8,192 tokens of its first release.
    "llama3_8b": _preset(
        128_256,
        (8_030_261_248, "the released checkpoint of Dubey et al. 2024, table 3"),
        **{"width": 4096, "num_heads": 32, "num_kv_heads": 8, "hidden": 14_336},
        **{"decoder_layers": 32, "max_length": 8192, "activation": "silu", "gated": True},
        **{"norm": "rms", "norm_placement": "pre", "norm_epsilon": 1e-5, "use_bias": False},
        **{"positions": "rotary", "rotary": {"base": 500_000.0}, "tie": "none"},
        embedding_scale=1.0,
    ),
    # Uncased, without the heads of pre-training, and without the pooler that feeds a classifier.
    "bert_base": _preset(
        30_522,
        (109_482_240, "the released checkpoint of Devlin et al. 2019"),
        absent=768 * 768 + 768,
        **{"width": 768, "num_heads": 12, "hidden": 3072, "encoder_layers": 12, "max_length": 512},
        **{"activation": "gelu_exact", "norm_placement": "post", "norm_epsilon": 1e-12},
        **{"positions": "learned", "num_token_types": 2, "tie": "output", "embedding_scale": 1.0},
        **{"embedding_norm": True, "kernel_init": "normal_0.02", "embedding_init": "normal_0.02"},
        **{"dropout": 0.1, "attention_dropout": 0.1},
    ),
    # About 37,000 tokens (section 5.1) in one table (section 3.4) and the sizes of section 3 make
    # 63.1 million parameters; the paper reports 65 million. It names no longest sequence.
    "transformer_base": _preset(
        37_000,
        (65_000_000, "Vaswani et al. 2017, table 3, to the million"),
        **{"width": 512, "num_heads": 8, "hidden": 2048, "encoder_layers": 6, "decoder_layers": 6},
        **{"norm_placement": "post", "positions": "sinusoidal", "max_length": 512, "tie": "all"},
        dropout=0.1,
    ),
}


def get_config(name: str = "") -> ConfigDict:
    """Return the model with the name after the colon of `configs/presets.py:NAME`.

    Raises:
        UsageError: an unknown name.
    """
    if name not in PRESETS:
        known, hint = ", ".join(PRESETS), nearest(name, PRESETS)
        raise UsageError(f"the preset must be one of {known}, got {name!r}{hint}")
    return ConfigDict({"task": "preset", **PRESETS[name]})
