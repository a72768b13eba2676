"""The door, as a person uses it: train, stop, go on, measure, translate, and every mistake."""

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

import run
from experiments import translation
from experiments.data.sources import SOURCES, load_split
from experiments.errors import UsageError
from experiments.evaluation.scores import paired_bootstrap
from experiments.evaluation.translator import Translator
from experiments.flags import MODES, Command
from experiments.training.checkpoint import Checkpoints
from experiments.training.metrics import read_metrics
from experiments.training.session import restore
from experiments.workdir import Workdir

REPOSITORY = Path(__file__).resolve().parent.parent
KNOWN = "the girl was happy"  # words that even the tiny corpus has
# In parts, as the whole run, on two devices.
TINY = ("--config=configs/toy_translation.py:tiny", "--config.train.microbatches=2")


@pytest.fixture(autouse=True)
def at_the_door(monkeypatch):
    """Where a person stands; and optax multiplies integer steps with floats."""
    monkeypatch.chdir(REPOSITORY)
    before = jax.config.jax_compilation_cache_dir
    with jax.numpy_dtype_promotion("standard"):
        yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder of workdirs that share generated data."""
    return tmp_path_factory.mktemp("runs")


def command(place, workdir, *arguments):
    return ["run.py", f"--cache={place / 'cache'}", f"--workdir={place / workdir}", *arguments]


@pytest.fixture(scope="session")
def trained(place):
    """A tiny run, trained to its end, and what it printed."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.chdir(REPOSITORY)
        with jax.numpy_dtype_promotion("standard"):
            assert run.main(command(place, "tiny", *TINY)) == 0
    return output.getvalue()


@pytest.fixture
def knock(place, trained, capsys, monkeypatch):
    """Calls the door and returns (exit status, standard output, standard error)."""
    capsys.readouterr()

    def knock(*arguments, given="", workdir="tiny"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        status = run.main(command(place, workdir, *arguments))
        return status, *capsys.readouterr()

    return knock


def task_of(workdir, config):
    return translation.Task(config, SOURCES[config.data.name].text.load(workdir.path))


def final_state(place, workdir):
    workdir = Workdir(place / workdir)
    config = workdir.load_config()
    return restore(workdir, task_of(workdir, config).learner, config)


def measured(place, workdir):
    """The metrics of a run without those of its speed."""
    return [
        {name: value for name, value in row.items() if not name.endswith("per_second")}
        for row in read_metrics(place / workdir)
    ]


def test_a_run_leaves_everything_in_its_workdir(place, trained):
    for split in ("test", "compositional", "longer"):
        assert split in trained
    names = {path.name for path in (place / "tiny").iterdir()}
    assert names == {
        "attention.png",
        "checkpoints",
        "config.json",
        *(f"hypotheses.{split}.txt" for split in ("test", "compositional", "longer")),
        "learning_curve.png",
        "metrics.jsonl",
        "results.json",
        "samples.txt",
        "starts.jsonl",
        "tensorboard",
        "texts.json",
        "vocabulary.source.txt",
        "vocabulary.target.txt",
    }
    results = json.loads((place / "tiny" / "results.json").read_text())
    assert results["step"] == 20
    assert {"agreement", "order", "polysemy"} <= results["splits"].keys()
    for split in ("test", "compositional", "longer"):
        scores = results["splits"][split]
        assert {"exact_match", "accuracy", "bleu", "bleu_signature", "nll"} <= scores.keys()
        said = (place / "tiny" / f"hypotheses.{split}.txt").read_text().splitlines()
        assert len(said) == scores["sentences"] == 20
    assert (place / "tiny" / "samples.txt").read_text().count("step ") == 2
    rows = read_metrics(place / "tiny")
    assert [row["step"] for row in rows if row["split"] == "validation"] == [10, 20]
    losses = [row["nll"] for row in rows if row["split"] == "train"]
    assert losses[-1] < losses[0]


@pytest.fixture
def echoing(monkeypatch):
    """Says what it reads: to compile how a model says it takes longer than what is tested."""
    monkeypatch.setattr(Translator, "__call__", lambda _, __, texts, batch_size: [*texts])
    monkeypatch.setattr(translation.Task, "draw_attention", lambda *_: None)


@pytest.mark.usefixtures("echoing")
def test_a_stopped_run_goes_on_to_the_bit(place, knock, monkeypatch):
    """Stopped at step 15, it goes on from its checkpoint of step 10 as if nothing had happened."""
    original = translation.training_batches

    class Stopping:
        def __init__(self, batches):
            self.batches, self.taken = batches, 0
            self.get_state, self.set_state = batches.get_state, batches.set_state

        def __next__(self):
            self.taken += 1
            if self.taken == 15:
                raise KeyboardInterrupt
            return next(self.batches)

    monkeypatch.setattr(
        translation, "training_batches", lambda *a, **kw: Stopping(original(*a, **kw))
    )
    status, _, error = knock(*TINY, workdir="stopped")
    assert status == 130
    assert "the same command goes on from the last checkpoint" in error
    assert Checkpoints(place / "stopped" / "checkpoints").latest_step() == 10
    monkeypatch.setattr(translation, "training_batches", original)
    assert knock(*TINY, workdir="stopped")[0] == 0
    for ours, theirs in zip(
        jax.tree.leaves(final_state(place, "stopped")),
        jax.tree.leaves(final_state(place, "tiny")),
        strict=True,
    ):
        if jax.dtypes.issubdtype(ours.dtype, jax.dtypes.prng_key):
            ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
        np.testing.assert_array_equal(ours, theirs)
    assert measured(place, "stopped") == measured(place, "tiny")


def test_the_mean_of_the_last_checkpoints_is_what_is_used(place, trained):
    workdir = Workdir(place / "tiny")
    config = workdir.load_config()
    assert config.train.average == 2
    used = final_state(place, "tiny")
    config.train.average = 1
    newest = restore(workdir, task_of(workdir, config).learner, config)
    with Checkpoints(workdir.checkpoints) as checkpoints:
        both = checkpoints.averaged(newest, 2, last=20)
    for ours, mean, last in zip(
        *(jax.tree.leaves(state.parameters) for state in (used, both, newest)), strict=True
    ):
        np.testing.assert_array_equal(ours, mean)
        assert (ours != last).any()


@pytest.fixture
def read(monkeypatch):
    """The splits that are read, as they are."""
    names, original = [], translation.load_split
    monkeypatch.setattr(translation, "load_split", lambda *a: names.append(a[1]) or original(*a))
    return names


def test_a_finished_run_is_measured_again_and_not_trained(place, knock, read):
    before = (place / "tiny" / "metrics.jsonl").read_text()
    status, output, _ = knock(*TINY)
    assert status == 0
    assert "exact match" in output
    assert (place / "tiny" / "metrics.jsonl").read_text() == before
    assert sorted(read) == ["compositional", "longer", "test", "train", "validation"]


def test_evaluate_needs_the_workdir_alone(place, knock, read):
    before = json.loads((place / "tiny" / "results.json").read_text())
    (place / "tiny" / "results.json").unlink()
    assert knock("--mode=evaluate")[0] == 0
    assert json.loads((place / "tiny" / "results.json").read_text()) == before
    assert sorted(read) == ["compositional", "longer", "test"]


def test_a_split_is_measured_beside_the_others(place, knock, read):
    results = place / "tiny" / "results.json"
    before = json.loads(results.read_text())
    picture = (place / "tiny" / "attention.png").stat().st_mtime_ns
    status, output, _ = knock("--mode=evaluate", "--split=longer")
    assert (status, json.loads(results.read_text()), read) == (0, before, ["longer"])
    assert (place / "tiny" / "attention.png").stat().st_mtime_ns == picture  # is of the test split
    assert not any(line.startswith("test ") for line in output.splitlines())
    assert knock("--mode=evaluate", "--split=validation")[0] == 0
    now = json.loads(results.read_text())
    scores = now["splits"].pop("validation")
    assert now == before
    hypotheses = place / "tiny" / "hypotheses.validation.txt"
    assert len(hypotheses.read_text().splitlines()) == scores["sentences"]
    results.write_text(json.dumps(before))
    hypotheses.unlink()


@pytest.mark.parametrize("what", ["decoding", "step"])
def test_scores_of_what_was_measured_otherwise_are_left_out(place, knock, what):
    results = place / "tiny" / "results.json"
    before = results.read_text()
    if what == "step":
        results.write_text(json.dumps(json.loads(before) | {"step": 10}))
    otherwise = ["--config.decoding.alpha=0.5"] if what == "decoding" else []
    _, output, _ = knock("--mode=evaluate", "--split=longer", *otherwise)
    told = "scores of agreement, compositional, order, polysemy, test were measured otherwise"
    assert told in output
    assert [*json.loads(results.read_text())["splits"]] == ["longer"]
    results.write_text(before)


def test_how_many_are_translated_at_once_says_nothing_of_what_was_measured(place, knock):
    results = place / "tiny" / "results.json"
    before = results.read_text()
    knock("--mode=evaluate", "--split=longer", "--config.decoding.hypotheses=7")
    after = json.loads(results.read_text())
    assert after["splits"] == json.loads(before)["splits"]
    assert after["decoding"]["hypotheses"] == 7
    results.write_text(before)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a', "Unterminated string"),
        ("[]", "it has no parameters"),
        ("{}", "it has no parameters"),
    ],
)
def test_damaged_results_are_told_before_anything_is_measured(place, knock, text, reason):
    results, said = (place / "tiny" / name for name in ("results.json", "hypotheses.longer.txt"))
    before, written = results.read_text(), said.stat().st_mtime_ns
    results.write_text(text)
    status, _, error = knock("--mode=evaluate", "--split=longer")
    assert (status, f"{results} cannot be read: {reason}" in error) == (2, True)
    assert said.stat().st_mtime_ns == written
    results.write_text(before)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--mode=evaluate", "--split=longr"],
            "--split must be one of train, validation, test, compositional, longer, got 'longr'; "
            "did you mean 'longer'?",
        ),
        (["--split=test"], "--split is for --mode=evaluate alone, got --mode=train"),
    ],
)
def test_a_split_that_is_not_measured_is_refused(place, knock, arguments, sentence):
    before = (place / "tiny" / "results.json").read_text()
    assert knock(*arguments)[::2] == (2, f"run.py: {sentence}\n")
    assert (place / "tiny" / "results.json").read_text() == before


@pytest.mark.usefixtures("echoing")
def test_text_that_moved_is_found_again_and_no_other(place, knock, captions, tmp_path):
    here = Path(shutil.copytree(captions, tmp_path / "here"))
    fewer = "--config.train.steps=2", "--config.train.warmup_steps=1"
    flags = "--config=configs/multi30k.py:tiny", *fewer
    assert knock(*flags, f"--config.data.path={here}", workdir="moved")[0] == 0
    there = here.rename(tmp_path / "there")
    new = f"--config.data.path={there}"
    results, texts = (place / "moved" / name for name in ("results.json", "texts.json"))
    before, known = json.loads(results.read_text()), texts.read_text()
    assert [*json.loads(known)] == ["train", "validation", "test"]

    said = knock("--mode=translate", workdir="moved", given="sniez\n\nierd")
    assert said == (0, "sniez\n\nierd\n", "")
    assert knock(*flags, new, workdir="moved")[0] == 0
    evaluate = "--mode=evaluate", "--config.decoding.alpha=0.5"
    status, _, error = knock(*evaluate, workdir="moved")
    assert (status, f"data.path={here} has no test_2016.en" in error) == (2, True)
    (there / "train.en").unlink()  # which is not read
    assert knock(*evaluate, new, workdir="moved")[0] == 0
    assert json.loads(results.read_text())["splits"] == before["splits"]

    for split, stem in (("test", "test_2016"), ("validation", "validation")):
        lines = (there / f"{stem}.de").read_text().splitlines()
        (there / f"{stem}.de").write_text("\n".join(lines[::-1]) + "\n")
        written = results.read_text()
        told = knock("--mode=evaluate", f"--split={split}", new, workdir="moved")
        assert told[::2] == (
            2,
            f"run.py: the {split} split is another text than {place / 'moved'} has read: name the "
            "place of that one by data.path\n",
        )
        assert results.read_text() == written
    assert texts.read_text() == known


@pytest.fixture
def rival(place, trained, tmp_path):
    """A run that says the same, and the first of the longer sentences wrong."""
    for name in ("results.json", "texts.json", "hypotheses.longer.txt"):
        shutil.copy(place / "tiny" / name, tmp_path)
    said = (tmp_path / "hypotheses.longer.txt").read_text().splitlines()
    (tmp_path / "hypotheses.longer.txt").write_text("\n".join(["jane", *said[1:], ""]))
    return tmp_path


def test_a_run_is_held_against_another(place, knock, rival):
    results = place / "tiny" / "results.json"
    before = results.read_text()
    status, output, _ = knock("--mode=evaluate", "--split=longer", f"--against={rival}")
    scores = json.loads(results.read_text())["splits"]["longer"]
    config = Workdir(place / "tiny").load_config()
    pairs = load_split(config.data, "longer", place / "cache")
    said = {
        folder: (folder / "hypotheses.longer.txt").read_text().splitlines()
        for folder in (rival, place / "tiny")
    }
    (p,) = paired_bootstrap(said, [pair.target for pair in pairs]).values()
    assert (status, p < 1) == (0, True)
    assert scores["against"] == {"workdir": str(rival), "bleu": scores["bleu"], "p": p}
    assert f"against {rival}: BLEU {scores['bleu']:.2f}, p = {p:.3f} that chance" in output
    results.write_text(before)


def test_what_cannot_be_held_against_is_refused(place, knock, rival):
    def refused(*arguments, against=rival):
        status, _, error = knock(*arguments, f"--against={against}")
        assert status == 2
        return error.removeprefix("run.py: ").removesuffix("\n")

    longer = "--mode=evaluate", "--split=longer"
    itself = place / "tiny" / ".." / "tiny"
    assert refused() == "--against is for --mode=evaluate alone, got --mode=train"
    assert refused(*longer, against="") == "--against needs the folder of a run"
    assert refused(*longer, against=itself) == (
        f"--against needs another run than {place / 'tiny'} itself"
    )
    (rival / "hypotheses.longer.txt").write_text("le\nla\n")
    assert f"{rival} translated 2 of the 20 sentences of the longer split" in refused(*longer)
    (rival / "hypotheses.longer.txt").write_bytes(b"\xff\xfe")
    assert f"{rival / 'hypotheses.longer.txt'} cannot be read" in refused(*longer)
    (rival / "texts.json").write_text('{"longer": "another"}')
    assert refused(*longer) == (
        f"the longer split of {rival} has other sentences than that of {place / 'tiny'}"
    )
    (rival / "texts.json").write_text("[1]")
    assert f"{rival / 'texts.json'} cannot be read" in refused(*longer)
    results = json.loads((rival / "results.json").read_text())
    for scores in ({"longer": {"tok_bleu": 1.0}}, {}):
        (rival / "results.json").write_text(json.dumps(results | {"splits": scores}))
        assert refused(*longer) == (
            f"{rival} was not measured on the longer split: --mode=evaluate --split=longer "
            f"--workdir={rival} does it"
        )
    (rival / "results.json").write_text(json.dumps(results | {"splits": {"longer": 3}}))
    assert "cannot be read: its splits have no scores" in refused(*longer)
    (rival / "results.json").unlink()
    assert f"{rival} has no results yet: --mode=evaluate" in refused(*longer)


def test_only_translations_are_held_against_others(tmp_path):
    config = ConfigDict({"experiment": "classification"})
    asked = Command("evaluate", config, tmp_path, tmp_path, against=tmp_path)
    with pytest.raises(UsageError, match="for translations, and classification has none"):
        run.asked(asked)


def test_translate_answers_line_for_line(knock):
    sentences = f"{KNOWN}\n\n{KNOWN} girll\n"
    status, output, error = knock("--mode=translate", given=sentences)
    assert status == 1
    assert len(output.splitlines()) == 3
    assert output.splitlines()[1:] == ["", ""]
    assert "line 2: the sentence is empty" in error
    assert "line 3: the word 'girll' is not in the vocabulary; did you mean 'girl'?" in error


def test_translate_reads_a_sentence_as_people_type_it(knock):
    _, plain, _ = knock("--mode=translate", given=f"{KNOWN}\n")
    typed = KNOWN.capitalize() + "."
    assert knock("--mode=translate", given=f"{typed}\n") == (0, plain, "")


def test_translate_refuses_a_sentence_longer_than_the_model(knock):
    status, _, error = knock("--mode=translate", given="the " * 48)
    assert status == 1
    assert "line 1: the sentence has 48 words, and the model reads at most 47" in error


def test_translate_succeeds_quietly(knock):
    status, output, error = knock("--mode=translate", given=f"{KNOWN}\n")
    assert (status, error) == (0, "")
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--wrkdir=x"], "unknown flag --wrkdir; did you mean --workdir?"),
        (["--config.model.widht=3"], "no field 'model.widht'; did you mean --config.model.width?"),
        (["--config.widht=3"], "no field 'widht'; did you mean --config.model.width?"),
        (["--config.model.width.x=3"], "no field 'model.width.x'"),
        (["--config.model.width=wide"], "--config.model.width=wide: invalid literal for int()"),
        (["--config.model.width"], "Missing value for flag --config.model.width"),
        (["--config=configs/toy_translatio.py"], "did you mean configs/toy_translation.py?"),
        (
            ["--config=configs/toy_translation.py:big"],
            "has the form 'tiny' or none, got 'big'",
        ),
        (["--config=README.md"], "the configuration cannot be read"),
        (["--config.model.tie=all"], "model.tie='all' needs one vocabulary"),
        (["--config.seed=-1"], "seed must lie in [0, 2**32), got -1"),
        (["--config.model.max_length=10"], "data.bucket_lengths must lie in [2, model.max_length="),
        (["--config.data.bucket_lengths=(0,)"], "data.bucket_lengths must lie in [2, "),
        (["--config.model.encoder_layers=0"], "model.encoder_layers must be at least 1, got 0"),
        (["--config.train.batch_tokens=40"], "train.batch_tokens=40 has no room for a sentence of"),
        (["--config.train.learning_rate=nan"], "train.learning_rate must be a number above 0"),
        (["--config.train.beta1=2.0"], "train.beta1 must lie in [0, 1), got 2.0"),
        (["--mode=trian"], f"value should be one of <{'|'.join(MODES)}>"),
        (["train"], "unexpected argument 'train': arguments are flags, --name=value"),
        (
            ["--config.model.num_kv_heads=3"],
            "num_heads=4 cannot be shared evenly by num_kv_heads=3",
        ),
        (["--config.model.width=130"], "width=130 is not divisible by num_heads=4"),
        (["--config.model.norm=prre"], "got 'prre'; did you mean 'pre'?"),
        (["--config.data.name=toys"], "got 'toys'; did you mean 'toy'?"),
        (["--config.experiment=translatoin"], "did you mean 'translation'?"),
        (["--config.train.warmup_steps=99999"], "train.warmup_steps must lie in [0, train.steps="),
        (["--config.train.steps=0"], "train.steps must be at least 1, got 0"),
        (["--config.train.log_every=0"], "train.log_every must be at least 1, got 0"),
        (["--config.data.sizes.train=9"], "data.sizes.train must be at least 1000, got 9"),
        (["--config.data.sizes.test=0"], "data.sizes.test must be at least 1, got 0"),
        (["--config.train.label_smoothing=1.5"], "train.label_smoothing must lie in [0, 1)"),
    ],
)
def test_a_mistake_is_one_sentence(knock, place, arguments, sentence):
    status, output, error = knock(*arguments, workdir="never")
    assert (status, output) == (2, "")
    assert sentence in error
    assert error.startswith("run.py: ")
    assert error.count("\n") == 1
    assert len(error) < 250
    assert not (place / "never").exists()


def test_a_workdir_of_another_configuration_is_left_alone(place, knock):
    before = {path: path.stat().st_mtime_ns for path in (place / "tiny").rglob("*")}
    status, _, error = knock(*TINY, "--config.model.hidden=64")
    assert status == 2
    assert "holds a run of another configuration (model.hidden is 48 there and 64 here)" in error
    status, _, error = knock("--mode=evaluate", *TINY, "--config.seed=1")
    assert status == 2
    assert "(seed is 0 there and 1 here)" in error
    assert before == {path: path.stat().st_mtime_ns for path in (place / "tiny").rglob("*")}


def test_a_folder_that_is_no_run_is_left_alone(place, knock):
    (place / "letters").mkdir()
    (place / "letters" / "dear.txt").write_text("dear")
    status, _, error = knock(*TINY, workdir="letters")
    assert status == 2
    assert "exists and is not a run: choose another --workdir" in error
    assert [path.name for path in (place / "letters").iterdir()] == ["dear.txt"]


@pytest.mark.parametrize("mode", ["evaluate", "translate"])
def test_a_run_that_is_not_there_or_not_trained(place, knock, mode):
    status, _, error = knock(f"--mode={mode}", workdir="nowhere")
    assert status == 2
    assert "nowhere holds no run: train one with --workdir=" in error
    Workdir(place / "claimed").claim(Workdir(place / "tiny").load_config())
    status, _, error = knock(f"--mode={mode}", workdir="claimed")
    assert status == 2
    assert "claimed has no checkpoint yet: train it first" in error


def test_a_loss_that_is_not_finite_stops_the_run_and_saves_nothing_of_it(place, knock):
    status, _, error = knock(*TINY, "--config.train.learning_rate=1e30", workdir="diverged")
    assert status == 2
    assert "the loss became" in error
    assert Checkpoints(place / "diverged" / "checkpoints").latest_step() is None


def test_a_model_too_short_for_a_split_is_refused_before_it_is_trained(place, knock):
    short = "--config.model.max_length=24", "--config.data.bucket_lengths=(24,)"
    status, _, error = knock(*TINY, *short, "--config.model.num_heads=2", workdir="short")
    assert status == 2
    assert "the longer split needs" in error
    assert "positions: raise model.max_length=24" in error
    assert not (place / "short" / "metrics.jsonl").exists()


def test_damage_is_named_and_nothing_is_overwritten(place, knock):
    shutil.copytree(place / "tiny", place / "damaged")
    words = place / "damaged" / "vocabulary.source.txt"
    words.write_text(words.read_text() + "more\n")
    status, _, error = knock(*TINY, workdir="damaged")
    assert status == 2
    assert "vocabulary.source.txt holds other words than the data" in error
    assert words.read_text().endswith("more\n")
    words.unlink()
    status, _, error = knock("--mode=evaluate", workdir="damaged")
    assert status == 2
    assert "vocabulary.source.txt cannot be read" in error
    shutil.rmtree(place / "damaged" / "checkpoints")
    before = (place / "damaged" / "metrics.jsonl").read_text()
    status, _, error = knock(*TINY, workdir="damaged")
    assert status == 2
    assert "the checkpoints of" in error
    assert (place / "damaged" / "metrics.jsonl").read_text() == before
    (place / "damaged" / "config.json").write_text("{")
    status, _, error = knock(*TINY, workdir="damaged")
    assert status == 2
    assert "config.json cannot be read" in error


@pytest.mark.usefixtures("echoing")
def test_a_checkpoint_that_lacks_a_part_is_named(place, knock):
    shutil.copytree(place / "tiny", place / "lacks")
    step = place / "lacks" / "checkpoints" / "20"
    for part in ("progress", "state"):
        shutil.rmtree(step / part)
        for arguments in ([*TINY], ["--mode=evaluate"]):
            status, _, error = knock(*arguments, workdir="lacks")
            assert status == 2
            assert f"the checkpoint {step} is damaged: delete it to go on from the one" in error
            assert error.count("\n") == 1
    shutil.rmtree(step)
    assert knock("--mode=evaluate", workdir="lacks")[0] == 0
    assert json.loads((place / "lacks" / "results.json").read_text())["step"] == 10


def test_help_names_every_flag(knock, capsys):
    with pytest.raises(SystemExit) as exit_:
        knock("--help")
    assert exit_.value.code == 0
    output = capsys.readouterr().out
    for flag in ("--config", "--mode", "--workdir", "--cache"):
        assert flag in output
