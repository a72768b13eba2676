"""The benchmark of models: the peers are optional, and both sides compute the same."""

import json

import numpy as np
import pytest
from flax import nnx

import run
from experiments.config import Config
from experiments.config.files import load_config
from experiments.data.tokenizers import EOS
from experiments.registry import TASKS
from tests.command_line.command import in_repository


@pytest.fixture(autouse=True)
def repository():
    with in_repository():
        yield


def test_tiny_form_reports_what_is_absent(tmp_path, capsys):
    workdir = tmp_path / "run"
    flags = f"--workdir={workdir}", f"--cache={tmp_path}"
    assert run.main(["run.py", "--mode=benchmark", "--config=benchmark_models:tiny", *flags]) == 0
    record = json.loads((workdir / "models.json").read_text())
    assert record["absent"][0] == "translating: no run is named by --config.run=FOLDER"
    assert len(record["figures"]) == 1 or "training: torch is not installed" in record["absent"]
    assert (workdir / "models.md").read_text() in capsys.readouterr().out


def test_ctranslate_finds_the_translations_of_greedy_search(tmp_path):
    """Of random parameters, which hardly ever produce the end."""
    pytest.importorskip("ctranslate2")
    from experiments.benchmarks.peers.ctranslate import CTranslator

    tree = load_config("toy_translation:tiny").to_dict()
    tree["model"] |= {"norm_placement": "post", "positions": "sinusoidal"}
    tree["decoding"] |= {"num_beams": 1}
    task = TASKS["translation"].prepare(Config.read(tree), tmp_path)
    parameters = task.learner.initial_state().parameters
    sources = [pair.source for pair in task.ids("test")][:8]
    ours = task.translate_ids(parameters, sources)
    model = nnx.merge(task.learner.definition, parameters)
    theirs = CTranslator(model, task.config.model).translate(
        [[*ids, EOS] for ids in sources], task.config.decoding
    )
    assert np.mean([[*one] == [*other] for one, other in zip(ours, theirs, strict=True)]) > 0.8
