"""What a person types: punctuation, case, unknown words, gaps, images and blank lines."""

import numpy as np
import pytest
from PIL import Image

from experiments.data.tokenizers import SPECIALS, WORDS, WordTokenizer
from experiments.tasks.prediction import read_image, read_sentence

WORD_LIST = ("the", "girl", "sees", "Jane", "I", "!", "well-known")
TOKENIZER = WordTokenizer((*SPECIALS, *WORD_LIST), WORDS)


@pytest.mark.parametrize(
    "text, words",
    [
        ("The girl sees JANE.", "the girl sees Jane"),
        ('"The girl", (sees) Jane ...', "the girl sees Jane"),
        ("Well-Known!?", "well-known !"),
        ("👩‍👩‍👧‍👦 sees 🇫🇷", "👩‍👩‍👧‍👦 sees 🇫🇷"),
        ("girl👍🏽! (❤️), Jane", "girl 👍🏽 ! ❤️ Jane"),
        ("I + I = → …", "I + I = →"),
        ("\u200fبيت cafe\u0301, \ufeffJane", "بيت cafe\u0301 Jane"),
        ("</script>", "< script >"),
    ],
)
def test_case_punctuation_and_symbols(text, words):
    sentence = read_sentence(TOKENIZER, text, longest=6)
    assert sentence.tokens(TOKENIZER) == words.split()
    assert {*sentence.unknown.values()} == {*words.split()} - {*WORD_LIST}


def test_words_are_counted_as_typed():
    # The dash and the dots are no tokens, and "Jane!" is two.
    sentence = read_sentence(TOKENIZER, 'the "girl" - sees ... zebra Jane!', longest=6)
    assert sentence.words == [0, 1, 3, 5, 6, 6]


def test_unknown_words_are_read_as_a_name_or_as_the_rarest_word():
    sentence = read_sentence(TOKENIZER, "The zebra, sees girll", longest=6)
    assert sentence.tokens(TOKENIZER) == ["the", "zebra", "sees", "girll"]
    assert sentence.unknown == {1: "zebra", 3: "girll"}
    assert TOKENIZER.decode(sentence.ids) == "the Jane sees Jane"
    words = "'zebra', 'girll' (similar to 'girl')"
    assert sentence.note(TOKENIZER) == f"not in the vocabulary, read as 'Jane': {words}"
    assert sentence.note(TOKENIZER, is_copied=True) == f"not in the vocabulary, copied: {words}"
    assert WordTokenizer((*SPECIALS, "I", "jump", "left"), WORDS).placeholder == "left"


def test_gap_and_an_unknown_word():
    sentence = read_sentence(TOKENIZER, "The ___, _ zebra.", longest=6, gap=99)
    assert (sentence.ids[1:3], sentence.unknown) == ([99, 99], {3: "zebra"})


@pytest.mark.parametrize("channels", [1, 3])
def test_shape_and_range_of_an_image(tmp_path, channels):
    shades = np.arange(6, dtype=np.uint8).reshape(2, 3) * 51  # 0 to 255
    Image.fromarray(shades).save(tmp_path / "a.png")
    image = read_image(f" {tmp_path / 'a.png'} ", (2, 3, channels))
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, np.stack([shades / 255] * channels, -1), rtol=1e-6)


def test_files_that_are_no_image_of_the_model(tmp_path):
    """Another size and a text: see `--mode=predict`."""
    Image.fromarray(np.full((2, 2), 700, np.uint16)).save(tmp_path / "16.png")
    Image.new("L", (2, 2)).save(tmp_path / "a.png")
    begin, _, end = (tmp_path / "a.png").read_bytes().partition(b"IDAT")
    (tmp_path / "damaged.png").write_bytes(begin[:-4] + bytes(4) + b"IDAT" + end)  # of length 0
    reasons = {"16": "has more than 8 bits per channel", "damaged": "cannot be read as an image"}
    for name, reason in reasons.items():
        with pytest.raises(ValueError, match=f"{tmp_path / name}.png {reason}"):
            read_image(str(tmp_path / f"{name}.png"), (2, 2, 1))
