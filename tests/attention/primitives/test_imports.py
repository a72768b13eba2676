"""`import attention` does not import kernels."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import {module}
kernels = ("jax.experimental.pallas", "attention.primitives.gpu.forward")
print([name for name in sys.modules if name.startswith(kernels)])
"""


@pytest.mark.parametrize(
    "module",
    [
        "attention",
        "attention.primitives.gpu.flash",
        "attention.primitives.vendor.cudnn",
        "attention.primitives.vendor.splash",
    ],
)
def test_import_does_not_import_kernels(module):
    program = PROGRAM.format(module=module)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
