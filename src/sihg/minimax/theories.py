"""Compare theories of the weak MVI: how large a rho each admits, in one convention.

The paper writes <F(z), z - z*> >= -(rho / 2) ||F(z)||^2. Pethick et al. write rho' ||F(z)||^2 on the right, so their
|rho'| is half the paper's rho. All numbers here are in the paper's convention, which Diakonikolas et al. and Boehm use
too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sihg.minimax import step_sizes as steps
from sihg.minimax._load_benchmark import Source, load_benchmark
from sihg.minimax._start import lipschitz_constants
from sihg.minimax.constants import Constants
from sihg.parse import Value


@dataclass(frozen=True)
class Admitted:
    """What one theory admits.

    Args:
        rho: The theory admits problems whose rho is below this, in the paper's convention.
        method: The method that the theory is about; its name in `METHODS` if it is there.
        theory: The theorem and its authors.
        rule: The bound as a formula.
    Example:
        >>> Admitted(0.5, "eg+", "an example", "rho < 1/(2L)").pethick
        0.25
    """

    rho: float
    method: str
    theory: str
    rule: str

    @property
    def pethick(self) -> float:
        """The same bound on |rho| in the convention of Pethick et al."""
        return self.rho / 2


@dataclass(frozen=True)
class Conditions:
    """A problem's constants, known or estimated, and what each theory admits there.

    Args:
        n: The number of blocks.
        constants: The constants, and their source.
        rho: The problem's rho; 0 if it is monotone, None if it is not known.
        admitted: An entry per theory.
    """

    n: int
    constants: Constants
    rho: float | None
    admitted: list[Admitted]


# By method: the theory, and c in rho < c / L with L a Lipschitz constant of F.
_OPERATOR_THEORIES = (
    ("eg+", "Diakonikolas, Daskalakis and Jordan 2021", 0.25),
    ("feg", "Lee and Kim 2021 (F negatively comonotone, which asks more)", 1.0),
    ("curvature-eg+", "Pethick, Latafat, Patrinos, Fercoq and Cevher 2022", 1.0),
    ("ogda+", "Boehm 2023", 1.0),
    ("inexact Krasnoselskii-Mann", "Alacaoglu, Kim and Wright 2024", 2.0),
    ("inexact-ppm", "Pethick, Mavrothalassitis and Cevher 2025", 2.0),
)


def admissible_rho(L: float = 1.0, n: int = 1, *, L11: float = 0.0, L22: float = 0.0) -> list[Admitted]:
    """Return how large a rho each theory admits, from the paper's to the latest.

    The paper's numbers are those of `step_sizes.largest_rho` and `largest_rho_simplified`. The others are about F as a
    whole, with the Lipschitz constant max{L11, L22} + L, and do not depend on n.

    Args:
        L: The Lipschitz constant of the coupling, L12.
        n: The number of blocks.
        L11: The Lipschitz constant of grad_w phi in w.
        L22: The Lipschitz constant of grad_delta phi in delta.
    Returns:
        An entry per theory.
    Raises:
        InputError: If L is not positive, or another constant is negative or not finite.
    Example:
        >>> for found in admissible_rho(n=10)[:2]:
        ...     print(found.method, found.theory, f"{found.rho:.4f}")
        ssi-hg Theorem 1, simplified (Kim and Seo 2022) 0.0027
        ssi-hg Theorem 1, general 0.0199
    """
    Constants(L11=L11, L12=L, L22=L22)
    found = _paper("ssi-hg", "Theorem 1", L, n, L11, L22)
    found += _paper("dsi-hg", "Corollary 3", L, 1, L11, L22)
    of_F = max(L11, L22) + steps.positive(L)
    return found + [
        Admitted(c / of_F, method, theory, f"rho < {c:g}/L" if c >= 1 else f"rho < 1/({1 / c:g}L)")
        for method, theory, c in _OPERATOR_THEORIES
    ]


def conditions_of(source: Source, options: Mapping[str, Value] | None = None) -> Conditions:
    """Return what each theory admits at the constants of a problem, with its rho to compare.

    Args:
        source: A name of the zoo, a callable as for `compare`, or a problem.
        options: Options of a named problem.
    Raises:
        InputError: If the name or an option is invalid.
    Example:
        >>> found = conditions_of("weak-mvi", {"b": -0.01})
        >>> [row.method for row in found.admitted if found.rho >= row.rho]
        []
    """
    problem = load_benchmark(source, options or {}).problem
    known = lipschitz_constants(problem)
    rho = 0.0 if known.rho is None and (known.mu or problem.bilinear_in_both) else known.rho
    L11, L12, L22 = known.L11 or 0.0, known.L12 or 0.0, known.L22 or 0.0
    return Conditions(problem.n, known, rho, admissible_rho(L12, problem.n, L11=L11, L22=L22))


def _paper(method: str, name: str, L: float, n: int, L11: float, L22: float) -> list[Admitted]:
    largest = max(L11, L, L22)
    simplified = steps.largest_rho_simplified(L=steps.positive(largest), n=n)[0]
    general = steps.largest_rho(L11=L11, L12=L, L22=L22, n=n)[0]
    return [
        Admitted(simplified, method, f"{name}, simplified (Kim and Seo 2022)", "with L = max{L11, L12, L22}"),
        Admitted(general, method, f"{name}, general", "at its best sigma and tau"),
    ]
