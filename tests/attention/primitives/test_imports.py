"""`import attention` does not import kernels."""

import subprocess
import sys

PROGRAM = """
import sys
for module in sys.argv[1:]:
    __import__(module)
kernels = ("jax.experimental.pallas", "attention.primitives.gpu.forward")
print([name for name in sys.modules if name.startswith(kernels)])
"""


def test_imports_do_not_import_kernels():
    modules = (
        "attention",
        "attention.primitives.gpu.flash",
        "attention.primitives.vendor.cudnn",
        "attention.primitives.vendor.splash",
    )
    command = [sys.executable, "-c", PROGRAM, *modules]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
