"""One expression with every operation goes through every printer, and the text it becomes is
run."""

import importlib.util

import mpmath
import pytest
import sympy
from sympy.codegen.cfunctions import expm1, log1p

from derivations.kernels.emit import emit_function
from derivations.kernels.printers import NumbaPrinter, PythonPrinter, TorchPrinter, TritonPrinter
from derivations.language.kernel_spec import KernelSpec, in_elementary_functions
from tests.support.device import DEVICE

X, Y, U = sympy.symbols("x y u", real=True)
ALL_OPERATIONS = KernelSpec(
    name="all_operations",
    arguments=("x", "y"),
    lets={"u": X - Y / 3},
    form=sympy.Piecewise(
        (
            sympy.exp(-X) / sympy.log(3 + Y)
            - X**3 / (X + Y) ** 2
            + U / 3
            - sympy.Rational(1, 4)
            + sympy.log(2),
            X > 0,
        ),
        (-X * Y, True),
    )
    + sympy.Min(X, Y)
    + sympy.Max(X, 2 * Y)
    - sympy.Abs(X - Y)
    + sympy.sqrt(X + Y)
    - log1p(X) * expm1(-Y),
    claims=("none",),
    doc="Everything.",
    domain="",
    derivation="",
)
POINTS = [(0.5, 1.25), (2.0, 0.75), (1.5, 1.5), (-0.25, 2.0)]


def expected_value(x, y):
    """The branch is chosen here, since in_elementary_functions keeps the regular (last) one."""
    form = ALL_OPERATIONS.expression
    chosen = form.replace(sympy.Piecewise, lambda *branches: branches[0 if x > 0 else 1][0])
    function = sympy.lambdify((X, Y), in_elementary_functions(chosen), "mpmath")
    return float(function(mpmath.mpf(x), mpmath.mpf(y)))


EXPECTED = [expected_value(x, y) for x, y in POINTS]


def emitted(printer):
    namespace = {}
    exec(
        compile(
            printer.preamble + "\n\n" + emit_function(ALL_OPERATIONS, printer), printer.name, "exec"
        ),
        namespace,
    )
    return namespace["all_operations"]


def test_the_python_and_numba_printers_print_every_operation():
    import numba

    plain, jitable = emitted(PythonPrinter()), emitted(NumbaPrinter())
    compiled = numba.njit(lambda x, y: jitable(x, y))
    for (x, y), value in zip(POINTS, EXPECTED, strict=True):
        assert plain(x, y) == pytest.approx(value, rel=1e-14)
        assert compiled(x, y) == pytest.approx(value, rel=1e-14)


def test_the_torch_printer_prints_every_operation():
    import torch

    x, y = torch.tensor(POINTS, dtype=torch.float64).T
    assert emitted(TorchPrinter())(x, y).tolist() == pytest.approx(EXPECTED, rel=1e-14)


RUN_IN_TRITON = """

@triton.jit
def run(a, b, out):
    i = tl.arange(0, 4)
    tl.store(out + i, all_operations(tl.load(a + i), tl.load(b + i)))
"""


@pytest.mark.triton
def test_the_triton_printer_prints_every_operation(tmp_path):
    import torch

    printer = TritonPrinter()
    path = tmp_path / "printed_for_triton.py"  # Triton reads a kernel's text from its file
    path.write_text(
        printer.preamble + "\n\n" + emit_function(ALL_OPERATIONS, printer) + RUN_IN_TRITON
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    printed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(printed)
    x, y = torch.tensor(POINTS, dtype=torch.float64, device=DEVICE).T.contiguous()
    out = torch.empty_like(x)
    printed.run[(1,)](x, y, out)
    assert out.tolist() == pytest.approx(EXPECTED, rel=1e-13)


@pytest.mark.parametrize(
    "printer", [PythonPrinter(), TorchPrinter(), TritonPrinter()], ids=lambda p: p.name
)
def test_a_printer_refuses_what_it_does_not_know(printer):
    with pytest.raises(NotImplementedError, match=printer.name):
        printer.doprint(sympy.gamma(X))
