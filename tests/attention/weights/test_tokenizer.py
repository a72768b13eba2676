"""The tokenizer beside a checkpoint."""

import pytest

pytest.importorskip("attention.weights", reason="needs the extra attention[weights]")

import tokenizers

from attention import weights
from attention.decoding import generate
from attention.decoding.program import encode, stop_ids
from tests.attention.weights.checkpoints import FOLDER, model_of

TEXT = "the encoder reads attention"


def test_decode_inverts_encode_and_leaves_out_special_tokens():
    tokenizer = weights.load_tokenizer(FOLDER / "gpt2")
    ids = tokenizer.encode(TEXT)
    assert all(0 <= each < tokenizer.vocab_size for each in ids)
    assert len(ids) < len(TEXT)
    ended = [*ids, tokenizer.tokenizer.token_to_id("<|endoftext|>")]
    assert tokenizer.decode(ids) == tokenizer.decode(ended) == TEXT
    assert tokenizer.decode(ended, special_tokens=True) == f"{TEXT}<|endoftext|>"


def test_stops_and_prefixes_have_no_special_tokens():
    """Of a tokenizer of words that adds a token before each text."""
    words = {"[BOS]": 0, "[UNK]": 1, "a": 2, "b": 3}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    plain.add_special_tokens(["[BOS]"])
    plain.post_processor = tokenizers.processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 0)]
    )
    tokenizer = weights.Tokenizer(plain)
    assert tokenizer.encode("a b") == [0, 2, 3]
    assert encode(["a b"], tokenizer, "inputs") == [[0, 2, 3]]
    assert stop_ids("a", tokenizer) == [[2]]
    assert stop_ids(["a b", 1, [0, 1]], tokenizer) == [[2, 3], 1, [0, 1]]
    output = generate(model_of("gpt2"), ["b"], prefix=["a b"], max_tokens=4, tokenizer=tokenizer)
    assert output.tokens[0, :2].tolist() == [2, 3]


def test_mistakes(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"contains no tokenizer.json"):
        weights.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json is not a tokenizer of Hugging Face"):
        weights.load_tokenizer(tmp_path)
