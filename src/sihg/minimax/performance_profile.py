"""Compare methods over many problems at equal counts of block gradients: performance profiles (Dolan and More 2002)."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.minimax import zoo
from sihg.minimax._compare_settings import check_names, is_whole
from sihg.minimax._label import split_label
from sihg.minimax._load_benchmark import Source, absolute_name, load_benchmark
from sihg.minimax._profile_cell import run_cell
from sihg.minimax._profile_folder import ProfileFolder, identify
from sihg.minimax._start import AUTO, check_rule
from sihg.minimax.problem import Problem
from sihg.minimax.solvers import METHODS, method_class
from sihg.minimax.starts import random_start
from sihg.parse import parse_names
from sihg.store.files import make_folder
from sihg.store.profile_records import ProfileCell, ProfileProblem, ProfileSettings, SolverProfile
from sihg.store.run_folder import describe_environment, locked

ALL = "all"  # the problems of the zoo, or all methods
PASSES, REDUCTION = 1000, 1e-3
Problems = str | Sequence[Source] | Mapping[str, Source]
Show = Callable[[str, str, str], object]  # receives the problem, the method and a note


class GivenSettings(TypedDict, total=False):
    """The settings of `profile`, which describes them."""

    passes: int
    reduction: float
    tolerance: float
    starts: int
    seed: int
    folder: str | Path | None


def profile(
    problems: Problems = ALL,
    methods: str | Sequence[str] = ALL,
    *,
    show: Show = lambda _problem, _method, _note: None,
    **settings: Unpack[GivenSettings],
) -> SolverProfile:
    """Measure which method solves which problem, and after how many block gradients.

    A problem is solved at the first check at which ||F|| <= max(tolerance, reduction ||F(z0)||). ||F|| is measured as
    in a history (for "ssi-hg" at (w^k, delta-hat^k) of Theorem 1), and measuring is not counted. From one check to the
    next the count grows by 2 %, or by one iteration. A method that needs more than the budget, diverges, or cannot
    solve such a problem has failed.

    Args:
        problems: "all" for the zoo, or names and callables as for `compare`, problems, or a mapping from names to them.
        methods: "all", or names in `METHODS`. "ssi-hg@adaptive" is a method with adaptive steps.
        show: Called as work begins, with the problem, the method and a note.
        **settings: passes: The budget per method and problem (default: 1000). A pass is n block gradients in w and n
                in delta, so all methods may spend 2 n passes of them on a problem with n blocks.
            reduction: The share of the first ||F|| that counts as solved (default: 1e-3).
            tolerance: A norm that counts as solved wherever a problem starts (default: 0).
            starts: Solve from so many random starts (see `random_start`); 0 (default) for each problem's own start.
            seed: The seed of the starts and of the drawn blocks (default: 0).
            folder: Where to keep the cells. The same call continues what is there; problems and methods may be added.
    Returns:
        The outcome and cost of every method on every problem, and their ratios.
    Raises:
        InputError: If a name or a setting is invalid, a start is infeasible, or `folder` holds something else.
    Example:
        >>> found = profile(["weak-mvi", "dirac-gan"], ["ssi-hg", "eg+", "gda"], passes=500)
        >>> {method: found.share(method, factor=4) for method in found.methods}
        {'ssi-hg': 0.5, 'eg+': 1.0, 'gda': 0.0}
    """
    with closing(ProfileComputation(problems, methods, **settings)) as computation:
        for problem, method in computation.pairs():
            computation.run(problem, method, partial(show, problem, method))
        return computation.summarise()


class ProfileComputation:
    """A profile in progress: its problems, its folder, and the cells that are done. It holds the folder's lock."""

    def __init__(self, problems: Problems, methods: str | Sequence[str], **given: Unpack[GivenSettings]) -> None:
        check_names(given, GivenSettings)
        self.settings = _settings(given)
        self.benchmarks = _load(problems)
        self.methods = list(METHODS) if methods == ALL else parse_names(methods)
        for method, rule in map(split_label, self.methods):
            check_rule(rule)
            if method != AUTO:
                method_class(method)
        if not self.methods or not self.benchmarks:
            raise InputError("no-method")
        folder = given.get("folder")
        self.folder = ProfileFolder(Path(folder)) if folder else None
        self.cells: dict[tuple[str, str], ProfileCell] = {}
        self._identities: dict[str, str] = {}  # of the problems
        self._lock = ExitStack()
        if self.folder:
            make_folder(self.folder.path)
            self._handle = self._lock.enter_context(locked(self.folder.path))
            try:
                self.folder.begin(self.settings)
            except BaseException:
                self.close()
                raise

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield problem and method of every cell."""
        for problem in self.benchmarks:
            for method in self.methods:
                yield problem, method

    def run(self, problem: str, method: str, show: Callable[[str], object] = lambda _note: None) -> ProfileCell:
        """Compute a cell, or take it from the folder. Ctrl-C raises KeyboardInterrupt; what is done stays."""
        benchmark = self.benchmarks[problem]
        if problem not in self._identities:
            self._identities[problem] = identify(self.settings, _describe(benchmark.problem))
        identity = self._identities[problem]
        cell = self.folder.read_cell(problem, method, identity) if self.folder else None
        if cell is None:
            cell = run_cell(problem, benchmark, method, self.settings, identity, show)
            if self.folder:
                self._handle.check()
                self.folder.write_cell(cell)
        self.cells[problem, method] = cell
        return cell

    def summarise(self) -> SolverProfile:
        """Return the profile of the cells that are done; with a folder, also write it there."""
        problems = tuple(
            ProfileProblem(
                name=name,
                about=benchmark.about,
                n=benchmark.problem.n,
                dimension_w=benchmark.problem.w0.numel(),
                dimension_delta=benchmark.problem.delta0.numel(),
                budget=self.settings.passes * 2 * benchmark.problem.n,
            )
            for name, benchmark in self.benchmarks.items()
        )
        found = SolverProfile(
            settings=self.settings,
            problems=problems,
            methods=tuple(self.methods),
            cells=tuple(self.cells.values()),
            command=self._command(),
            environment=describe_environment(threads=torch.get_num_threads()),
        )
        if self.folder:
            self._handle.check()
            self.folder.write_profile(found)
        return found

    def close(self) -> None:
        """Free the lock of the folder."""
        self._lock.close()

    def _command(self) -> str:
        """Return the command line that repeats the profile."""
        s = self.settings
        words = ["sihg", "solve", ",".join(self.benchmarks), "--method", ",".join(self.methods)]
        words += ["--passes", str(s.passes), "--reduction", repr(s.reduction), "--seed", str(s.seed)]
        words += ["--tolerance", repr(s.tolerance)] if s.tolerance else []
        return shlex.join([*words, *(["--starts", str(s.starts)] if s.starts else [])])


def _settings(given: GivenSettings) -> ProfileSettings:
    settings = ProfileSettings(
        passes=given.get("passes", PASSES),
        reduction=given.get("reduction", REDUCTION),
        tolerance=given.get("tolerance", 0.0),
        starts=given.get("starts", 0),
        seed=given.get("seed", 0),
    )
    if not is_whole(settings.passes, 1) or not is_whole(settings.starts, 0):
        raise InputError("profile-counts", passes=settings.passes, starts=settings.starts)
    if not 0 <= settings.reduction < 1:
        raise InputError("profile-reduction", reduction=settings.reduction)
    if not settings.tolerance >= 0:
        raise InputError("tolerance-range", tolerance=settings.tolerance)
    return settings


def _load(problems: Problems) -> dict[str, zoo.Benchmark]:
    """Return the problems by name."""
    if isinstance(problems, Mapping):
        return {name: load_benchmark(source, {}) for name, source in problems.items()}
    if isinstance(problems, str):
        problems = zoo.names() if problems == ALL else parse_names(problems)
    found: dict[str, zoo.Benchmark] = {}
    for source in problems:
        benchmark = load_benchmark(source, {})
        name = absolute_name(source) if isinstance(source, str) else benchmark.name
        if name in found:
            raise InputError("profile-same-name", name=name)
        found[name] = benchmark
    return found


def _describe(problem: Problem) -> str:
    """Return what tells a problem from others without running it: a folder must not mix two of one name."""
    start = [float(x) for z in (problem.w0, problem.delta0) for x in (z.sum(), z.norm())]
    digits = 6 if problem.w0.dtype == torch.float64 else 3  # more would differ with the order of sums on a machine
    probed = [f"{float(value):.{digits}g}" for value in _probe(problem)]
    return f"{_kind(problem)} {problem.constants} {start} {probed}"


def _probe(problem: Problem) -> Iterator[Tensor]:
    """Yield norms that depend on phi, f and g: of F and its parts at the start, and at a random point."""
    for at in (problem, random_start(problem, 0)):
        w, delta = at.w0, at.delta0
        g_w, g_delta = problem.gradients(w, delta)
        yield from (g_w.norm(), g_delta.norm(), problem.distance_f(w, -g_w), problem.distance_g(delta, g_delta))
        for far in (1.0, 100.0):  # bounds and the like show outside of the domain
            yield problem.prox_f(w - far * g_w.sign(), 1.0).norm()
            yield problem.prox_g(delta + far * g_delta.sign(), 1.0, problem.all).norm()


def _kind(problem: Problem) -> str:
    return f"{problem!r} f={type(problem.f).__name__} g={type(problem.g).__name__}"
