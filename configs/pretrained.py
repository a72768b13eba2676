"""A released model continues or translates each line of standard input.

The folder contains a checkpoint in the layout of Hugging Face (GPT-2, Llama, Mistral, Qwen 2, BART,
Marian or T5) with config.json, safetensors and tokenizer.json, and may contain
generation_config.json. Released Marian folders have SentencePiece files in place of a
tokenizer.json: convert them first.

command    echo "Once upon a time" | python run.py --mode=predict --weights=FOLDER
           (fields are those of configs/pretrained.py)
hardware   what the checkpoint needs: its size, and as much again for the cache of a long text
time       that of loading, and one compilation per padded length of the prompts
score      that of the checkpoint: logits agree with Transformers to 1e-5 (tests/attention/weights)
"""

from ml_collections import ConfigDict

from experiments.config.build import as_tree
from experiments.config.parts import PretrainedPart


def get_config(form: str = "") -> ConfigDict:
    """How to generate; its tiny form is the same."""
    del form
    config = ConfigDict()
    config.task = "pretrained"
    config.decoding = as_tree(PretrainedPart())
    return config
