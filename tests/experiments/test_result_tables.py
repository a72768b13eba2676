"""Tables of results in documents and cards, made from records."""

import pytest

from experiments.errors import UsageError
from experiments.records import Record, summary
from experiments.result_tables import Results

CARD = '''"""Copy: a sequence of digits.

command    python run.py --config=configs/copy.py
time       an hour
score      very good
"""

from experiments.config import Config


def get_config():
    return Config.read({"task": "translation"})
'''
BLOCK = "# Page\n<!-- {} -->\nan old table\n<!-- end of results -->\nText.\n"


def record(run, exact_match, command="python run.py --config=copy", published="", **scores):
    splits = {"test": {"exact_match": exact_match, "bleu": [99.5] * len(exact_match)}, **scores}
    return Record(
        run=run,
        command=command,
        commit="abc1234",
        machine="cpu, 2 cores",
        date="2026-11-25",
        seeds=[*range(len(exact_match))],
        steps=[1_200] * len(exact_match),
        planned_steps=None,
        seconds=[60.0 + 30 * seed for seed in range(len(exact_match))],
        parameters=7,
        decoding="",
        scores={
            split: {score: summary(values) for score, values in found.items()}
            for split, found in splits.items()
        },
        published={"test": {"exact_match": published}} if published else {"test": {}},
        config={},
    )


def save(record, folder):
    record.save(folder / "results" / f"{record.run}.json")


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a page with a block, and returns it with new tables."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "copy.py").write_text(CARD)
    (tmp_path / "configs" / "waiting.py").write_text(CARD.replace("Copy", "Waiting"))
    save(record("copy", [0.5, 0.75]), tmp_path)
    longer = record("copy_longer", [0.25], published="100 %", longer={"exact_match": [0.125]})
    save(longer, tmp_path)

    def written(text, name="page.md"):
        path = tmp_path / name
        path.write_text(text)
        return Results.load(tmp_path / "results", tmp_path / "configs").updated(path)

    return written


def lines(written, block):
    head, _, rest = written(BLOCK.format(block)).partition(" -->\n")
    *found, end, text = rest.splitlines()
    assert head == f"# Page\n<!-- {block}" and (end, text) == ("<!-- end of results -->", "Text.")
    return [line for line in found if line and not line.startswith("| ---")]


def test_each_figure_of_a_run_has_a_row(written):
    block = "results:\ncopy\ncopy_longer: longer/exact_match\ncopy_longer: test/bleu\n"
    page = written(BLOCK.format(block))
    assert page == (
        f"# Page\n<!-- {block} -->\n\n"
        "| run | figure | result | training | seeds | commit |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| [`copy`](configs/copy.py): Copy: a sequence of digits. | test exact match "
        "| 62.50% ± 17.68% | 1.0 min | 0, 1 | abc1234 |\n"
        "| [`copy_longer`](configs/copy.py) | longer exact match "
        "| 12.50% | 1.0 min | 0 | abc1234 |\n"
        "|  | test BLEU | 99.50 | 1.0 min | 0 | abc1234 |\n"
        "\n<!-- end of results -->\nText.\n"
    )
    assert written(page) == page


def test_figures_of_the_first_line_are_columns(written):
    head, *rows = lines(written, "results: test/exact_match; test/bleu\ncopy\nwaiting\n")
    assert head == "| run | test exact match | test BLEU | training | seeds | commit |"
    assert rows[0].endswith(" | 62.50% ± 17.68% | 99.50 ± 0.00 | 1.0 min | 0, 1 | abc1234 |")
    assert rows[1].endswith(": Waiting: a sequence of digits. | not run | not run |  |  |  |")


def test_splits_of_a_line_have_rows(written):
    head, *rows = lines(written, "results: */exact_match\ncopy_longer: test; longer\ncopy: test\n")
    assert head == "| run | figure | exact match | training | seeds | commit |"
    assert [row.split(" | ")[1:3] for row in rows] == [
        ["test", "25.00%"],
        ["longer", "12.50%"],
        ["test", "62.50% ± 17.68%"],
    ]


def test_a_published_figure_has_a_column(written):
    _, row = lines(written, "results:\ncopy_longer\n")
    assert "| test exact match | 25.00% | 100 % | 1.0 min |" in row


def test_all_results_list_commands_and_what_was_not_run(written):
    _, copy, longer, waiting, title, *commands = lines(written, "all results")
    assert copy.startswith("| `copy` | test exact match | 62.50% ± 17.68% |")
    assert longer.endswith("| 0 | abc1234 | 1,200 | 2026-11-25 | cpu, 2 cores |")
    assert waiting.startswith("| `waiting` |  | not run |")
    assert title == "The commands of the runs:"
    assert commands == [
        "- copy: `python run.py --config=copy`",
        "- copy_longer: `python run.py --config=copy`",
        "- waiting: `python run.py --config=waiting`",
    ]


def test_output_is_that_of_the_first_seed(written):
    assert lines(written, "output of copy") == [
        "```",
        "1,200 steps, 60.0 s of training",
        "test          exact match  50.00%   BLEU  99.50",
        "```",
    ]


def test_a_card_has_time_and_scores_of_its_runs(written):
    card = written(CARD, "configs/copy.py")
    assert card == CARD.replace(
        "time       an hour\nscore      very good\n",
        "time       1.0 min of training\n"
        "score      test exact match: 62.50% ± 17.68%; seeds 0, 1, commit abc1234\n"
        "score      copy_longer: test exact match: 25.00% (for comparison: 100 %); seed 0, commit "
        "abc1234\n",
    )
    assert "\ntime       not run\nscore      not run\n" in written(CARD, "configs/waiting.py")


def test_a_card_names_the_run_of_its_time(written, tmp_path):
    other = record("waiting_wide", [0.5], "python run.py --config=waiting")
    save(other, tmp_path)
    card = written(CARD, "configs/waiting.py")
    assert "\ntime       1.0 min of training (waiting_wide)\nscore      waiting_wide: " in card


@pytest.mark.parametrize(
    "run, flags, name",
    [
        ("both/copy", "--mode=compare --config=copy --config=waiting", "copy"),
        ("copy+waiting/waiting", "--mode=compare --config=copy --config=waiting", "waiting"),
        ("other", "--config waiting", "waiting"),
        ("other", "--config=configs/waiting.py --config.data.path=FOLDER", "waiting"),
        ("waiting_tiny", "--config=waiting:tiny", None),
        ("copy_tiny", "--config=configs/copy.py:tiny", None),
        ("waiting/explain_test", "--mode=explain --workdir=workdirs/waiting", "waiting"),
    ],
)
def test_a_run_belongs_to_the_configuration_of_its_command(written, tmp_path, run, flags, name):
    save(record(run, [0.5], f"python run.py {flags}"), tmp_path)
    row = lines(written, f"results: test/bleu\n{run}\n")[1]
    assert row.startswith(f"| [`{run}`](configs/{name}.py): " if name else f"| `{run}` | ")


@pytest.mark.parametrize(
    "block, message",
    [
        ("results:\ncoppy\n", "there is no run and no configuration 'coppy'; did you mean copy?"),
        ("output of coppy", "there is no run and no configuration 'coppy'; did you mean copy?"),
        (
            "results:\ncopy: tset/bleu\n",
            "the run copy has no figure 'tset/bleu'; did you mean test/",
        ),
        ("results:\n", "a block of results names no run"),
    ],
)
def test_unknown_run_and_figure_are_named_with_the_page(written, block, message):
    with pytest.raises(UsageError) as refused:
        written(BLOCK.format(block))
    assert "page.md: " in str(refused.value) and message in str(refused.value)


def test_a_block_without_an_end_is_refused(written):
    with pytest.raises(UsageError, match="must have one line '<!-- end of results -->' after each"):
        written("<!-- results:\ncopy\n-->\n")


def test_a_record_in_the_file_of_another_run_is_refused(written, tmp_path):
    record("copy", [0.5]).save(tmp_path / "results" / "copy_old.json")
    with pytest.raises(UsageError, match=r"copy_old\.json is the record of copy: rename or remove"):
        written("")
