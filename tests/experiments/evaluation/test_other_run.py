from pathlib import Path

import pytest

from experiments.config.files import load_config
from experiments.errors import UsageError
from experiments.evaluation.other_run import OtherRun, load_other_run
from experiments.evaluation.scores import paired_bootstrap
from experiments.workdir import Workdir

REFERENCES = [
    f"the {word} finds the dog, and runs ." for word in ("man", "cat", "boy", "girl", "cow")
]
OURS = [line.replace(", ", " , ") if number % 2 else line for number, line in enumerate(REFERENCES)]
THEIRS = [line.replace("runs", "walks") for line in REFERENCES]


def test_comparison_uses_the_tokenization_of_the_data():
    chances = {}
    for tokenized in (True, False):
        (chance,) = paired_bootstrap(
            {"b": THEIRS, "a": OURS}, REFERENCES, tokenized=tokenized
        ).values()
        other = OtherRun(Path("b"), {"test": 40.0}, {"beam": 5}, {"test": THEIRS}, tokenized)
        found = other.against("test", OURS, REFERENCES)
        score = {"tok_bleu" if tokenized else "bleu": 40.0}
        assert found == {"workdir": "b", "decoding": {"beam": 5}, "p": chance} | score
        chances[tokenized] = chance
    assert chances[True] != chances[False]


def test_a_run_of_another_task_is_no_translation(tmp_path):
    other = Workdir(tmp_path / "other")
    other.claim(load_config("digits:tiny"))
    with pytest.raises(UsageError, match=r"other is no translation: its task is 'classification'"):
        load_other_run(other, Workdir(tmp_path / "ours"), {}, tokenized=False)
