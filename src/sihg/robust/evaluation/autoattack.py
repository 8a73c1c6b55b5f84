"""AutoAttack's interface (Croce and Hein, 2020): its arguments, return values and log, carried out by our attacks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from sihg.core.draw import seeded
from sihg.errors import InputError, UnknownNameError
from sihg.parse import Number, parse_number
from sihg.robust.attacks.apgd import APGD
from sihg.robust.attacks.base import Attack, Natural, check_counts
from sihg.robust.attacks.chunk_size import limit_rows
from sihg.robust.attacks.fab import FAB
from sihg.robust.attacks.input_checks import check_device, check_model, check_plans, check_range
from sihg.robust.attacks.outcome import join_outcomes
from sihg.robust.attacks.random_models import ADVISED_EOT, VOTES, Draws
from sihg.robust.attacks.registry import STANDARD
from sihg.robust.attacks.runner import attack_parts
from sihg.robust.attacks.square import Square
from sihg.robust.data.pixels import as_tensor
from sihg.robust.data.samples import open_samples
from sihg.robust.evaluation._autoattack_log import AutoAttackLog
from sihg.robust.evaluation.diagnostics import ModelState, inspect_model, inspect_outcomes
from sihg.robust.evaluation.partial import PartialResults
from sihg.robust.evaluation.task import Task, make_task
from sihg.robust.gradients import compute_logits, device_of, evaluation_mode
from sihg.robust.threat import Ball
from sihg.store.schema import Check

NORMS = {"Linf": "linf", "L2": "l2", "L1": "l1"}
VERSIONS = ("standard", "plus", "rand", "custom")
ATTACKS = ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"]
NAME = "autoattack"  # of the only plan


@dataclass(slots=True)
class APGDSettings:
    """What can be set of apgd-ce and apgd-dlr. In L1 larger balls are searched first, as with `use_largereps`."""

    n_restarts: int = 5
    n_iter: int = 100
    eot_iter: int = 1


@dataclass(slots=True)
class TargetedAPGDSettings:
    """What can be set of apgd-t."""

    n_restarts: int = 1
    n_iter: int = 100
    eot_iter: int = 1
    n_target_classes: int = 9


@dataclass(slots=True)
class FABSettings:
    """What can be set of fab, and of fab-t, which ignores n_restarts."""

    n_restarts: int = 5
    n_iter: int = 100
    n_target_classes: int = 9


@dataclass(slots=True)
class SquareSettings:
    """What can be set of square."""

    n_restarts: int = 1
    n_queries: int = 5000
    p_init: float = 0.8


class AutoAttack:
    """Evaluate as AutoAttack does: code written for its `AutoAttack` runs after a change of the import.

    Differences: the model is evaluated in evaluation mode; `seed=None` is seed 0, so that runs repeat; a state that is
    resumed has all adversarial examples; version rand judges a point by ten draws of the model, not by one; and our
    checks are made, see `checks`.

    Args:
        model: A module, or a function, that maps x (n, ...) in [0, 1] to logits (n, classes).
        norm: Linf, L2 or L1.
        eps: The radius of the ball, such as 8/255.
        seed: Decides all draws; None is 0.
        verbose: Whether to print the log.
        attacks_to_run: For version custom: names such as apgd-ce, each on the samples that those before did not break.
        version: standard, plus, rand (for random models) or custom.
        is_tf_model: Must be False.
        device: Where the model is (default: ask the model).
        log_path: A file to which the log is added.
    Raises:
        InputError: An argument cannot be used.
    Example:
        >>> adversary = AutoAttack(nn.Flatten(), norm="Linf", eps=0.6, verbose=False)
        >>> adversary.square.n_queries = 10
        >>> x_adv, y_adv = adversary.run_standard_evaluation(torch.eye(4), torch.arange(4), return_labels=True)
        >>> (y_adv == torch.arange(4)).tolist()
        [False, False, False, False]
    """

    def __init__(
        self,
        model: nn.Module | Callable[[Tensor], Tensor],
        norm: str = "Linf",
        eps: Number = 0.3,
        seed: int | None = None,
        verbose: bool = True,
        attacks_to_run: Sequence[str] = (),
        version: str = "standard",
        is_tf_model: bool = False,
        device: str | torch.device | None = None,
        log_path: str | Path | None = None,
    ) -> None:
        if is_tf_model:
            raise InputError("autoattack-tensorflow")
        if norm not in NORMS:
            raise UnknownNameError("norm", norm, list(NORMS), {key.lower(): key for key in NORMS})
        if version not in VERSIONS:
            raise UnknownNameError("version", version, list(VERSIONS))
        if version != "custom" and attacks_to_run:
            raise InputError("autoattack-overridden", attacks=", ".join(attacks_to_run), version=version)
        self.model, self.norm, self.epsilon, self.seed = model, norm, parse_number(eps, "eps"), seed
        self.verbose, self.version, self.log_path = verbose, version, log_path
        self.device = None if device is None else torch.device(check_device(str(device)))
        self.attacks_to_run = list(attacks_to_run)
        self.apgd, self.fab = APGDSettings(), FABSettings()
        self.square, self.apgd_targeted = SquareSettings(), TargetedAPGDSettings()
        self.checks: tuple[Check, ...] = ()  # of the last evaluation
        if version != "custom":
            self.set_version(version)

    def set_version(self, version: str = "standard") -> None:
        """Choose the attacks and their settings: standard, plus or rand; custom leaves them."""
        if version not in VERSIONS:
            raise UnknownNameError("version", version, list(VERSIONS))
        self._say(f"setting parameters for {version} version", kept=False)
        if version == "rand":
            self.attacks_to_run = ["apgd-ce", "apgd-dlr"]
            self.apgd.n_restarts, self.apgd.eot_iter = 1, ADVISED_EOT
        elif version != "custom":
            is_plus, is_l1 = version == "plus", self.norm == "L1"
            self.attacks_to_run = list(ATTACKS if is_plus else STANDARD)
            self.apgd.n_restarts = 5 if is_plus or is_l1 else 1
            self.fab.n_restarts = 5 if is_plus else 1
            self.apgd_targeted.n_restarts, self.fab.n_target_classes, self.square.n_queries = 1, 9, 5000
            self.apgd_targeted.n_target_classes = 5 if is_l1 and not is_plus else 9
            if is_plus and is_l1:
                self._say('"plus" version is used with L1 norm: please check', kept=False)

    @overload
    def run_standard_evaluation(
        self,
        x_orig: Tensor,
        y_orig: Tensor,
        bs: int = ...,
        return_labels: Literal[False] = ...,
        state_path: str | Path | None = ...,
    ) -> Tensor: ...

    @overload
    def run_standard_evaluation(
        self,
        x_orig: Tensor,
        y_orig: Tensor,
        bs: int = ...,
        *,
        return_labels: Literal[True],
        state_path: str | Path | None = ...,
    ) -> tuple[Tensor, Tensor]: ...

    def run_standard_evaluation(
        self,
        x_orig: Tensor,
        y_orig: Tensor,
        bs: int = 250,
        return_labels: bool = False,
        state_path: str | Path | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Run the attacks, each on the samples that those before did not break.

        Args:
            x_orig: The samples, (n, ...), floats in [0, 1].
            y_orig: Their labels.
            bs: The largest number of samples to attack at once.
            return_labels: Whether to return also the predictions at the points.
            state_path: Keep what was found in files that begin with this name, and continue from them.
        Returns:
            Like x_orig: a misclassified point for each broken sample, the sample itself where none was found.
        Raises:
            InputError: An argument, the model or the data cannot be used.
        """
        x_adv, y_adv = self._run(self.attacks_to_run, x_orig, y_orig, bs, state_path, self._say)
        return (x_adv, y_adv) if return_labels else x_adv

    def run_standard_evaluation_individual(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False
    ) -> dict[str, Any]:
        """Run each attack on all samples that are classified correctly; return a dict by the names of the attacks."""
        self._say(f"using {self.version} version including {', '.join(self.attacks_to_run)}", kept=False)
        found: dict[str, tuple[Tensor, Tensor]] = {}
        checks: dict[tuple[str, str], Check] = {}
        for name in self.attacks_to_run:
            begin = time.perf_counter()
            found[name] = self._run([name], x_orig, y_orig, bs, None, _keep_silent)
            accuracy = float((found[name][1] == _as_tensor(y_orig, "y_orig")).double().mean())
            space = "\t \t" if name == "fab" else "\t"
            seconds = time.perf_counter() - begin
            self._say(f"robust accuracy by {name.upper()} {space} {accuracy:.2%} \t (time attack: {seconds:.1f} s)")
            checks |= {(check.name, check.message): check for check in self.checks}
        self.checks = tuple(checks.values())
        return found if return_labels else {name: x_adv for name, (x_adv, _) in found.items()}

    def clean_accuracy(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> float:
        """Return the accuracy at x_orig as it is."""
        check_counts(bs=bs)
        x, y = _as_tensor(x_orig, "x_orig"), _as_tensor(y_orig, "y_orig")
        model = self._module(x)
        right = sum(
            int((compute_logits(model, part.to(device_of(model))).argmax(1).cpu() == label.cpu()).sum())
            for part, label in zip(x.split(bs), y.split(bs), strict=True)
        )
        self._say(f"clean accuracy: {right / len(x):.2%}", kept=False)
        return right / len(x)

    def _run(
        self,
        attacks: Sequence[str],
        x_orig: Tensor,
        y_orig: Tensor,
        bs: int,
        state_path: str | Path | None,
        say: Callable[[str], None],
    ) -> tuple[Tensor, Tensor]:
        check_counts(bs=bs)
        x, y = _as_tensor(x_orig, "x_orig"), _as_tensor(y_orig, "y_orig")
        if not x.is_floating_point():
            raise InputError("batch-type", dtype=x.dtype)
        task = self._task(attacks, x, y)
        state = self._open_state(task, state_path)
        log = AutoAttackLog(say, bs)
        log.begin(self.version, task.plans[NAME], state.known(), state_path)
        model, samples, seed = task.model, task.samples, task.header.seed
        draws = Draws(task.header.eot, task.header.votes)
        with limit_rows(bs), state, seeded(seed, "evaluation", device=device_of(model)), evaluation_mode(model):
            before = ModelState(model)
            check_model(model, samples)
            check_range(samples, task.ball)
            check_plans(model, samples, task.plans)
            remedy = f"set apgd.eot_iter={ADVISED_EOT}" if self.version == "rand" else 'take version="rand"'
            checks = list(inspect_model(model, samples, task.ball, seed, draws=draws, if_random=remedy))
            outcomes = {}
            for part in attack_parts(model, samples, task.plans, seed=seed, draws=draws, known=state.known()):
                outcomes[part.key] = part.outcome
                state.keep(part)
                log.follow(part)
            (outcome,) = joined = join_outcomes(task.plans, outcomes)
            checks += inspect_outcomes(samples, len(samples), task.plans, joined)
            checks.append(before.check())
        if state_path is not None:
            state.write()
        x_adv, broken = x.detach().clone(), outcome.broken
        assert state.points is not None
        x_adv[broken.to(x.device)] = state.points[broken].to(x_adv)
        self.checks = tuple(checks)
        log.end(x_adv - x, x_adv, task.ball, outcome.accuracy, self.checks)
        return x_adv, outcome.prediction.to(y)

    def _task(self, attacks: Sequence[str], x: Tensor, y: Tensor) -> Task:
        ball = Ball(self.epsilon, NORMS[self.norm])
        if not attacks:
            raise InputError("autoattack-nothing", version=self.version)
        cascade = {"natural": Natural(), **{name: self._build(name, ball) for name in attacks}}
        seed = 0 if self.seed is None else self.seed
        # AutoAttack averages in APGD alone; here all attacks that run with it do.
        eots = {"apgd-ce": self.apgd.eot_iter, "apgd-dlr": self.apgd.eot_iter, "apgd-t": self.apgd_targeted.eot_iter}
        eot = max(eots.get(name, 1) for name in attacks)
        arguments = (self._module(x), open_samples((x, y)), {NAME: cascade}, ball, (), None, seed, None)
        return make_task(*arguments, last_iterate=False, eot=eot, votes=VOTES if self.version == "rand" else 1)

    def _build(self, name: str, ball: Ball) -> Attack:
        within: dict[str, Any] = {"eps": ball.eps, "norm": ball.norm, "bounds": ball.bounds}
        apgd, targeted, fab, square = self.apgd, self.apgd_targeted, self.fab, self.square
        if name in ("apgd-ce", "apgd-dlr"):
            return APGD(**within, loss=name.removeprefix("apgd-"), steps=apgd.n_iter, restarts=apgd.n_restarts)
        if name == "apgd-t":
            within |= {"restarts": targeted.n_restarts, "targets": targeted.n_target_classes}
            return APGD(**within, loss="dlr-t", steps=targeted.n_iter)
        if name == "fab":
            return FAB(**within, steps=fab.n_iter, restarts=fab.n_restarts, targeted=False)
        if name == "fab-t":  # always one run per target, as in AutoAttack
            return FAB(**within, steps=fab.n_iter, targets=fab.n_target_classes)
        if name == "square":
            return Square(**within, queries=square.n_queries, restarts=square.n_restarts, p_init=square.p_init)
        raise UnknownNameError("attack", name, ATTACKS)

    def _module(self, x: Tensor) -> nn.Module:
        """Return the model as a module; a function gets the samples where they are, or on the device that was given."""
        if not isinstance(self.model, nn.Module):
            if not callable(self.model):
                raise InputError("not-a-module", type=type(self.model).__name__)
            return _FunctionModel(self.model, x.device if self.device is None else self.device)
        own, given = device_of(self.model), self.device
        if given is not None and (given.type != own.type or given.index not in (None, own.index)):
            raise InputError("autoattack-device", device=given, own=own)
        return self.model

    def _open_state(self, task: Task, path: str | Path | None) -> PartialResults:
        if path is None:
            return PartialResults(None, NAME, {}, points=True)
        if isinstance(task.model, _FunctionModel):
            raise InputError("autoattack-state-function", path=path)
        return PartialResults(Path(path).parent, Path(path).name, task.identity(), points=True)

    def _say(self, line: str, *, kept: bool = True) -> None:
        """Print a line of the log if it is wanted; add it to the file."""
        if not self.verbose:
            return
        print(line, flush=True)  # noqa: T201 - where AutoAttack's log goes
        if kept and self.log_path is not None:
            try:
                with Path(self.log_path).open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError as error:
                raise InputError("cannot-write-file", path=self.log_path, reason=error.strerror or error) from error


class _FunctionModel(nn.Module):
    """A user's function as a module, which knows its device."""

    def __init__(self, function: Callable[[Tensor], Tensor], device: torch.device) -> None:
        super().__init__()
        self.function = function
        self.place = nn.Parameter(torch.empty(0, dtype=torch.int8, device=device), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Call the function."""
        return self.function(x)


def _as_tensor(value: object, what: str) -> Tensor:
    return value if isinstance(value, Tensor) else as_tensor(value, what)


def _keep_silent(line: str) -> None:
    """Log nothing."""
