import math

import cadenza.safety
from cadenza.safety.qp_timing import solve_qp_stub


def test_solve_qp_stub_solves_whatever_it_is_given():
    # The minimiser of |x|^2 / 2 + q @ x is -q, inside the box: |q| = sqrt(0.05).
    norm, elapsed_s = solve_qp_stub("anything", at=all)
    assert math.isclose(norm, math.sqrt(0.05), rel_tol=1e-12)
    assert elapsed_s > 0.0


def test_solve_qp_stub_stays_a_function_of_the_package():
    assert cadenza.safety.solve_qp_stub is cadenza.safety.solve_qp_stub is solve_qp_stub
