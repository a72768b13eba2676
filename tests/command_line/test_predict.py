"""--mode=predict: one answer per line of a pipe for every task, as text and as JSON."""

import functools
import json
import shutil
from types import SimpleNamespace

import pytest
from PIL import Image

from experiments.predict import lines_as_they_come
from experiments.workdir import Workdir
from tests.command_line.command import make_untrained

KNOWN = "the girl was happy"  # words of the tiny corpus
SMALL = {"model.max_length": 16, "batch.bucket_lengths": (16,)}


@pytest.fixture(scope="module")
def made(place, load_once, compile_once):
    """Return a function that makes the run of a config once; models have initial parameters."""
    changes = {"toy_translation": SMALL}
    return functools.cache(lambda name: make_untrained(place, name, **changes.get(name, {})))


@pytest.fixture
def answer(made, run_command):
    """Return a function that answers lines with the model of a config."""

    def answer(name, given, *flags):
        folder = made(name)
        status, output, error = run_command("--mode=predict", *flags, given=given, workdir=folder)
        about, _, messages = error.partition("\n")
        assert about == f"{folder}: 0 steps of training, a smoke test: its answers mean nothing"
        if "--format=json" in flags:
            output = [json.loads(line) for line in output.splitlines()]
        return status, output, messages

    return answer


@pytest.fixture
def predict(answer):
    """Return a function that answers lines with --format=json."""
    return lambda name, given: answer(name, given, "--format=json")


def test_translation(predict, answer):
    lines = f"{KNOWN}\n\n{KNOWN.capitalize()}, girll.\n \r\n{'the ' * 16}\n{KNOWN}\r\n"
    given = lines.encode() + b"the \xff girl\n"
    status, answers, error = predict("toy_translation", given)
    assert status == 1
    assert error.splitlines() == [
        "line 3: not in the vocabulary, copied: 'girll' (similar to 'girl')",
        "line 5: the line has 16 tokens, and the model reads at most 15",
        "line 7: the line has bytes that are no UTF-8",
    ]
    first, _, copied, *_, last, _ = answers
    assert first == last
    assert (first["source"], first["unknown"]) == ([*KNOWN.split(), "<eos>"], [])
    assert answers[1] == answers[3] == {}
    assert copied["source"] == [*KNOWN.split(), "girll", "<eos>"]
    assert "girll" in copied["translations"][0]["text"].split()
    assert answers[4:7:2] == [{"error": line.partition(": ")[2]} for line in error.splitlines()[1:]]
    status, output, again = answer("toy_translation", given)
    assert (status, again) == (1, error)
    texts = [each.get("translations", [{"text": ""}])[0]["text"] for each in answers]
    assert output.split("\n") == [*texts, ""]


def test_class_of_a_sentence(predict):
    status, (first, blank, second), error = predict("sentiment", "the food is\n\nThe Food is, zz!")
    assert (status, blank) == (0, {})
    assert error.endswith("'zz'\n")
    for answer in (first, second):
        probabilities = answer["probabilities"]
        assert probabilities.keys() == {"praise", "blame"}
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert answer["class"] == max(probabilities, key=probabilities.get)


def test_class_of_an_image(predict, tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    Image.new("L", (9, 8)).save(tmp_path / "b.png")
    (tmp_path / "c.png").write_text("text")
    paths = "".join(f"{tmp_path}/{name}.png\n" for name in "abcd")
    status, (answer, *wrong), error = predict("digits", paths)
    assert (status, len(error.splitlines()), len(answer["probabilities"])) == (1, 3, 10)
    reasons = ("has 9 x 8 pixels", "cannot be read as an image", "No such file or directory")
    for prediction, reason in zip(wrong, reasons, strict=True):
        assert reason in prediction["error"]


def test_words_of_a_gap(predict):
    status, (first, wrong, twice), error = predict("masked_lm", "The _ is.\nthe girl\n_ and ___")
    assert (status, error) == (1, f"line 2: {wrong['error']}\n")
    assert wrong["error"].startswith("the line has no gap: type _ for each word")
    (words,) = first["gaps"]
    assert first["text"] == f"The {words[0]['word']} is."
    probabilities = [each["probability"] for each in words]
    assert len(words) == 5 and probabilities == sorted(probabilities, reverse=True)
    assert twice["text"] == " and ".join(words[0]["word"] for words in twice["gaps"])


def test_nearest_words(predict):
    status, (answer, wrong, none), error = predict("word_vectors", "Girl\ngirll\n.\n")
    hint = "the word 'girll' is not in the vocabulary; did you mean 'girl'?"
    assert (status, wrong["error"], none["error"]) == (1, hint, "the line has no word")
    assert error == f"line 2: {hint}\nline 3: the line has no word\n"
    words, cosines = zip(*(each.values() for each in answer["nearest"]), strict=True)
    assert len({*words, "girl"}) == 6
    assert cosines[0] < 1 and [*cosines] == sorted(cosines, reverse=True)


def test_continuation_is_streamed_and_reproducible(answer, predict):
    write = functools.partial(answer, "char_lm")
    status, output, error = write("the girl\nthe girl\n")
    text = output[: len("the girl") + 20 + 1]  # decoding.max_tokens, and a line feed
    assert (status, output, error) == (0, 2 * text, "")  # equal prompts, equal seeds
    _, (details,), _ = predict("char_lm", "the girl")
    assert details["prompt"] + details["text"] + "\n" == text
    assert len(details["probabilities"]) == 20 and 0 < max(details["probabilities"]) <= 1
    assert write("the girl", "--config.decoding.seed=1")[1] != text
    long, greedy = "--config.decoding.max_tokens=70", "--config.decoding.strategy=greedy"
    status, output, error = write(f"\nthe Ω\n{'a' * 65}\nthe girl\n", long, greedy)
    *blank, last, end = output.split("\n")
    assert (status, blank, end) == (1, [""] * 3, "") and len(last) == 78  # the context is 64
    assert error.splitlines() == [
        "line 2: the character 'Ω' is not in the text that was learned",
        "line 3: the line has 65 tokens, and the model reads at most 64",
    ]


def test_words_are_continued_from_nothing(predict, answer):
    given = "\nthe zzz "
    status, (first, second), error = predict("packed_lm", given)
    assert (status, first["prompt"], first["text"][:1].strip() != "") == (0, "", True)
    assert (second["prompt"], second["text"][:1]) == ("the zzz", " ")
    texts = answer("packed_lm", given)[1].splitlines()
    assert texts == [details["prompt"] + details["text"] for details in (first, second)]
    assert error.startswith("line 2: not in the vocabulary, read as ")


def test_run_that_still_trains_and_whose_text_is_gone(made, run_command, tmp_path):
    folder = shutil.copytree(made("char_lm"), tmp_path / "run")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"path": ""', '"path": "gone.txt"'))
    (folder / "checkpoints" / "5.orbax-checkpoint-tmp-1").mkdir()
    before = sorted(folder.rglob("*"))
    with Workdir(folder).lock():
        status, output, _ = run_command("--mode=predict", given="the girl", workdir=folder)
    assert (status, output.startswith("the girl")) == (0, True)
    assert sorted(folder.rglob("*")) == before


def groups(*pieces, person=False):
    """Return what is read of a pipe that gives its bytes in these pieces."""
    left = [*pieces, b""]
    pipe = SimpleNamespace(isatty=lambda: person, read1=lambda size: left.pop(0))
    pipe.buffer = pipe
    return [*lines_as_they_come(pipe)]


MARK = "\ufeff"  # of the byte order


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"one\ntw", b"o\n\nthr", b"e", b"e"], [["one"], ["two", ""], ["three"]]),
        ([b" one \r\n", b"\n"], [[" one "], [""]]),
        ([], []),
        ([b"stra" + "ß".encode()[:1], "ß".encode()[1:] + b"e\n"], [["straße"]]),
        ([b"\xff\n", b"\xef\xbf\xbd\n"], [["\ufffd"], ["\ufffd"]]),
        ([f"{MARK}one\n{MARK}two\n".encode(), MARK.encode()], [["one", f"{MARK}two"], [MARK]]),
    ],
)
def test_lines_of_a_pipe_come_in_groups_and_none_in_parts(pieces, expected):
    assert groups(*pieces) == expected


def test_a_person_is_asked_each_time(capsys):
    assert groups(b"one\n", b"two\n", person=True) == [["one"], ["two"]]
    assert capsys.readouterr().out == "one input per line; end with Ctrl-D\n> > > "
