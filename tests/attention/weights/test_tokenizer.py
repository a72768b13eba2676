"""The tokenizer beside a checkpoint."""

import pytest

pytest.importorskip("safetensors", reason="needs the extra attention[weights]")
pytest.importorskip("tokenizers", reason="needs the extra attention[weights]")

from attention import weights
from attention.decoding import generate
from tests.attention.weights.checkpoints import FOLDER, model_of

TEXT = "the encoder reads attention"


def test_decode_inverts_encode():
    tokenizer = weights.load_tokenizer(FOLDER / "gpt2")
    ids = tokenizer.encode(TEXT)
    assert all(0 <= each < tokenizer.vocab_size for each in ids)
    assert len(ids) < len(TEXT)
    assert tokenizer.decode(ids) == TEXT


def test_special_tokens_are_left_out_of_texts():
    tokenizer = weights.load_tokenizer(FOLDER / "gpt2")
    end = tokenizer.id_of("<|endoftext|>")
    ids = [*tokenizer.encode(TEXT), end]
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.decode(ids, special_tokens=True) == f"{TEXT}<|endoftext|>"


def test_generate_continues_a_text():
    tokenizer = weights.load_tokenizer(FOLDER / "gpt2")
    output = generate(model_of("gpt2"), ["the head", "one"], max_tokens=5, tokenizer=tokenizer)
    assert output.text == [tokenizer.decode(row) for row in output.tokens]


def test_mistakes(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"contains no tokenizer.json"):
        weights.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json is not a tokenizer of Hugging Face"):
        weights.load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="has no token '<unknown>'"):
        weights.load_tokenizer(FOLDER / "gpt2").id_of("<unknown>")
