"""How large a rho each theory admits: the paper's by the library's rules, the others by their papers."""

import pytest

from sihg.minimax import admissible_rho, step_sizes
from sihg.minimax.theories import Admitted
from tests.refused import refused

GENERAL = {1: 0.063, 10: 0.0198, 100: 0.0063}  # largest rho L12 at L11 = 0, worked out by hand from Theorem 1
SIMPLIFIED = {1: 0.0208, 10: 0.0027, 100: 0.00028}


def by_theory(found: list[Admitted]) -> dict[str, float]:
    return {row.theory.partition(" (")[0]: row.rho for row in found}


@pytest.mark.parametrize("n", [1, 10, 100])
@pytest.mark.parametrize("L", [1.0, 7.5])
def test_the_papers_numbers(n: int, L: float) -> None:
    found = by_theory(admissible_rho(L, n))
    assert found["Theorem 1, general"] * L == pytest.approx(GENERAL[n], rel=0.01)
    assert found["Theorem 1, simplified"] * L == pytest.approx(SIMPLIFIED[n], rel=0.02)
    for kind in ("general", "simplified"):
        one_block = {"general": GENERAL, "simplified": SIMPLIFIED}[kind][1]
        assert found[f"Corollary 3, {kind}"] * L == pytest.approx(one_block, rel=0.01)


def test_the_largest_rho_is_on_the_edge_of_the_condition() -> None:
    rho, sigma, tau = step_sizes.largest_rho(L11=0.3, L12=2.0, n=3, L22=0.1)
    assert by_theory(admissible_rho(2.0, 3, L11=0.3, L22=0.1))["Theorem 1, general"] == rho
    for factor, holds in ((0.999, True), (1.001, False)):
        assert bool(step_sizes.weak_mvi(sigma, tau, L11=0.3, L12=2.0, n=3, rho=factor * rho)) is holds


def test_later_theories_are_about_the_whole_operator() -> None:
    # In the convention of Pethick et al.: 1/(8L), 1/(2L), 1/(2L), 1/(2L), 1/L, 1/L, for any n, with L = 0.5 + 2.
    found = [row.pethick * 2.5 for row in admissible_rho(2.0, 50, L11=0.5, L22=0.25)[4:]]
    assert found == pytest.approx([1 / 8, 1 / 2, 1 / 2, 1 / 2, 1, 1])


def test_constants_must_be_possible() -> None:
    with refused("not-coupled", value=0.0):
        admissible_rho(0.0)
    with refused("constant-range", name="L11", value=-1.0):
        admissible_rho(1.0, L11=-1.0)
