"""Training in a workdir: what is reported when a run continues."""

from jax.sharding import AbstractMesh

from experiments.environment import bits_depend_on
from experiments.training.session import warn_of_other_bits
from experiments.training.sharding import MESH_AXES
from experiments.workdir import Workdir


def test_other_rounding_is_one_sentence(capsys, monkeypatch):
    mesh = AbstractMesh((1, 2, 1, 4), MESH_AXES)
    before = bits_depend_on(mesh)
    warn_of_other_bits(Workdir("run"), before, before)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("NPROC", "97")
    now = bits_depend_on(AbstractMesh((1, 1, 1, 1), MESH_AXES))
    warn_of_other_bits(Workdir("run"), before, now)
    error = capsys.readouterr().err
    changes = f"mesh fsdp=2 tensor=4 before, one device now; cores {before['cores']} before, 97 now"
    assert error == (
        f"run continues with other rounding ({changes}): its bits are not those of an unbroken "
        "run\n"
    )
