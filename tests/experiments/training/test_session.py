"""Training in a workdir: what is reported when a run continues."""

from experiments.environment import bits_depend_on
from experiments.training.session import warn_of_other_bits
from experiments.workdir import Workdir


def test_other_rounding_is_one_sentence(capsys, monkeypatch):
    before = bits_depend_on()
    warn_of_other_bits(Workdir("run"), before)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("NPROC", "97")
    warn_of_other_bits(Workdir("run"), before | {"jaxlib": "0.1"})
    error = capsys.readouterr().err
    changes = f"cores {before['cores']} before, 97 now; jaxlib 0.1 before, {before['jaxlib']} now"
    assert error == (
        f"run continues with other rounding ({changes}): its bits are not those of an unbroken "
        "run\n"
    )
