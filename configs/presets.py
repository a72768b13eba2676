"""Models of the literature, for --mode=describe; they are not trained.

command    python run.py --mode=describe --config=configs/presets.py:llama3_8b
           with --config.model.num_kv_heads=1, for example, for a change of a field, and with
           --config.mesh.fsdp=64 --config.mesh.tensor=8 for what each of 512 devices needs
hardware   any: no parameter is allocated
time       seconds
score      numbers of parameters as published: equal for GPT-2 small, Llama-3 8B, and BERT base
           with its pooler; 0.2 % fewer for GPT-3; 2.9 % fewer for Transformer base
"""

from typing import Any

from ml_collections import ConfigDict

from experiments.config.build import as_config_dict
from experiments.config.train import MeshPart
from experiments.errors import UsageError, nearest


def gpt2_small() -> ConfigDict:
    """GPT-2 small: 124M in the name of the checkpoint, 117M in the paper."""
    return ConfigDict(
        {
            "task": "preset",
            "vocab_size": 50_257,
            "model": _gpt(width=768, num_heads=12, layers=12, max_length=1024),
            "batch": {"tokens": 512 * 1024},  # Radford et al. 2019, section 2.3
            "published": {
                "parameters": 124_439_808,
                "source": "the released checkpoint of Radford et al. 2019",
                "absent": {},
            },
        }
    )


def gpt3_175b() -> ConfigDict:
    """GPT-3. The paper rounds; sparse attention in its layers changes no number of parameters."""
    return ConfigDict(
        {
            "task": "preset",
            "vocab_size": 50_257,
            "model": _gpt(width=12_288, num_heads=96, layers=96, max_length=2048),
            "batch": {"tokens": 1536 * 2048},  # Brown et al. 2020, table 2.1: 3.2 million
            "published": {
                "parameters": 175_000_000_000,
                "source": "Brown et al. 2020, table 2.1, to the billion",
                "absent": {},
            },
        }
    )


def llama3_8b() -> ConfigDict:
    """Llama-3 8B, with the context of 8,192 tokens of its first release."""
    return ConfigDict(
        {
            "task": "preset",
            "vocab_size": 128_256,
            "model": {
                "width": 4096,
                "num_heads": 32,
                "num_kv_heads": 8,
                "head_width": 128,
                "hidden": 14_336,
                "activation": "silu",
                "gated": True,
                "norm": "rms",
                "norm_placement": "pre",
                "norm_epsilon": 1e-5,
                "positions": "rotary",
                "rotary": {"base": 500_000.0},
                "max_length": 8192,
                "decoder_layers": 32,
                "tie": "none",
                "use_bias": False,
                "embedding_scale": 1.0,
            },
            "batch": {"tokens": 512 * 8192},  # as 405B begins, Dubey et al. 2024, 3.4.1
            "published": {
                "parameters": 8_030_261_248,
                "source": "the released checkpoint of Dubey et al. 2024, table 3",
                "absent": {},
            },
        }
    )


def bert_base() -> ConfigDict:
    """BERT base, uncased, without the heads of pre-training.

    The model has no pooler, the layer over the first token that feeds a classifier.
    """
    return ConfigDict(
        {
            "task": "preset",
            "vocab_size": 30_522,
            "model": {
                "width": 768,
                "num_heads": 12,
                "num_kv_heads": 12,
                "head_width": 64,
                "hidden": 3072,
                "activation": "gelu_exact",
                "norm": "layer",
                "norm_placement": "post",
                "norm_epsilon": 1e-12,
                "positions": "learned",
                "max_length": 512,
                "num_token_types": 2,
                "encoder_layers": 12,
                "tie": "output",
                "use_bias": True,
                "embedding_scale": 1.0,
                "embedding_norm": True,
                "kernel_init": "normal_0.02",
                "embedding_init": "normal_0.02",
                "dropout": 0.1,
                "attention_dropout": 0.1,
            },
            "batch": {"tokens": 256 * 512},  # Devlin et al. 2019, appendix A.2
            "published": {
                "parameters": 109_482_240,
                "source": "the released checkpoint of Devlin et al. 2019",
                "absent": {"pooler": 768 * 768 + 768},
            },
        }
    )


def transformer_base() -> ConfigDict:
    """The base model of Attention Is All You Need.

    About 37,000 tokens (section 5.1) in one table for source, target and output (section 3.4), and
    the sizes of section 3 make 63.1 million parameters; the paper reports 65 million. It names no
    longest sequence: 512 is ours, and changes no parameter.
    """
    return ConfigDict(
        {
            "task": "preset",
            "vocab_size": 37_000,
            "model": {
                "width": 512,
                "num_heads": 8,
                "num_kv_heads": 8,
                "head_width": 64,
                "hidden": 2048,
                "activation": "relu",
                "norm": "layer",
                "norm_placement": "post",
                "positions": "sinusoidal",
                "max_length": 512,
                "encoder_layers": 6,
                "decoder_layers": 6,
                "tie": "all",
                "use_bias": True,
                "dropout": 0.1,
            },
            "batch": {"tokens": 48 * 512},  # section 5.1: 25,000 tokens on either side
            "published": {
                "parameters": 65_000_000,
                "source": "Vaswani et al. 2017, table 3, to the million",
                "absent": {},
            },
        }
    )


def _gpt(*, width: int, num_heads: int, layers: int, max_length: int) -> dict[str, Any]:
    """Return the fields of GPT-2 and GPT-3 (Radford et al. 2019, 2.3; Brown et al. 2020, 2.1)."""
    return {
        "width": width,
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_width": width // num_heads,
        "hidden": 4 * width,
        "activation": "gelu",
        "norm": "layer",
        "norm_placement": "pre",
        "norm_epsilon": 1e-5,
        "positions": "learned",
        "max_length": max_length,
        "decoder_layers": layers,
        "tie": "output",
        "use_bias": True,
        "embedding_scale": 1.0,
        "kernel_init": "normal_0.02",
        "embedding_init": "normal_0.02",
    }


PRESETS = {
    preset.__name__: preset
    for preset in (gpt2_small, gpt3_175b, llama3_8b, bert_base, transformer_base)
}


def get_config(name: str = "") -> ConfigDict:
    """Return the model with the name after the colon of `configs/presets.py:NAME`.

    Raises:
        UsageError: an unknown name.
    """
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise UsageError(f"the preset must be one of {known}, got {name!r}{nearest(name, PRESETS)}")
    config = PRESETS[name]()
    config.batch.microbatches = 1
    config.mesh = as_config_dict(MeshPart())
    config.train = ConfigDict({"dtype": "float32"})
    return config
