"""What methods share that keep a perturbation for each sample: the memory, its checkpoints, its augmentation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.data.augment import Move
from sihg.robust.data.batches import Batch
from sihg.robust.data.samples import Samples
from sihg.robust.memory import PerturbationMemory, check_dtype
from sihg.robust.methods.base import AdversarialMethod
from sihg.robust.methods.settings import MemorySettings
from sihg.robust.waits import Late, late, upload
from sihg.store.schema import MEMORY_COLUMNS


@dataclass(frozen=True)
class Recalled:
    """The stored perturbations of the samples of a batch.

    Args:
        stored: Perturbations in the frame of the stored images; zero for samples without one.
        delta: The same as the model sees them: moved with their images.
        move: The augmentation to undo before perturbations are stored; None to store them as the model sees them.
    """

    stored: Tensor
    delta: Tensor
    move: Move | None = None

    def moved_back(self, delta: Tensor) -> Tensor:
        """Return a new perturbation in the frame of the stored images; what was cropped away stays as it was."""
        return delta if self.move is None else self.move.back(delta, self.stored)


@dataclass(kw_only=True)
class MemoryMethod(AdversarialMethod, MemorySettings):
    """Base of the methods that keep a perturbation for each sample from one epoch to the next.

    Args:
        memory: A memory for a loop of your own; the trainer makes one by `bind`.
    """

    memory: PerturbationMemory | None = field(default=None, repr=False, metadata={"running": True})

    memory_columns: ClassVar[tuple[str, ...]] = MEMORY_COLUMNS[3:]
    state_file: ClassVar[str] = "memory"
    _is_own = False  # whether `bind` made the memory, which then goes to the device of the batches
    _is_new = False  # whether the files of the memory belong to a run without a checkpoint, which starts at zero

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is None:
            return
        if self.memory.eps < self.eps:
            raise InputError("memory-eps", eps=self.eps, most=self.memory.eps)
        self._check_precision(self.memory.dtype)

    def check(self, model: nn.Module, sample: Tensor, *, dtype: str = "int8") -> None:  # noqa: ARG002
        """Raise InputError for a number format that is too coarse for the norm."""
        check_dtype(dtype)
        self._check_precision(dtype)

    def _check_precision(self, dtype: str) -> None:
        if self.norm != "linf" and dtype == "int8":
            raise InputError("memory-dtype-norm", dtype=dtype, norm=self.norm)

    # ---- one batch

    def recall(self, batch: Batch) -> Recalled:
        """Return the perturbations that are stored for the samples of a batch."""
        self._start()
        if self.memory is not None:
            wanted = self.row_shape(tuple(batch.x.shape[1:]))
            if self.memory.shape != wanted:
                raise InputError("memory-row-shape", wanted=wanted, shape=self.memory.shape)
            if self._is_own:
                self.memory.to(batch.x.device)
        stored = self._read(batch)
        if batch.move is None or self.augment_delta == "none":
            return Recalled(stored, stored)
        if self.augment_delta == "same":
            return Recalled(stored, batch.move.apply(stored), batch.move)
        other = batch.other_move()
        return Recalled(stored, stored if other is None else other.apply(stored))

    def keep(self, batch: Batch, recalled: Recalled, delta: Tensor) -> None:
        """Store new perturbations for the samples of a batch."""
        if self.memory is not None:
            self.memory.write(batch.index, batch.epoch, recalled.moved_back(delta))

    def starts_again(self, batch: Batch) -> bool:
        """Return whether the search of this epoch has no perturbation to start from, after a reset or in the first."""
        return self.memory is None or batch.epoch == 0 or self._is_reset(batch.epoch)

    def _is_reset(self, epoch: int) -> bool:
        return self.reset > 0 and epoch % self.reset == 0

    def mean_move(self, delta: Tensor, old: Tensor) -> float | Late[float]:
        """Return the mean |new - old delta| / eps, for the log."""
        return late(lambda mean: mean / self.eps, (delta - old).abs_().mean())

    def row_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of what is stored for a sample of this shape."""
        return shape

    def _read(self, batch: Batch) -> Tensor:
        """Return what is stored; zero for samples without it."""
        if self.memory is None or self._is_reset(batch.epoch):
            return batch.x.new_zeros(len(batch.x), *self.row_shape(tuple(batch.x.shape[1:])))
        return upload(self.memory.read(batch.index, batch.epoch), batch.x.device).to(batch.x.dtype)

    # ---- a run

    def bind(
        self,
        samples: Samples,
        *,
        dtype: str = "int8",
        folder: Path | None = None,
        resuming: bool = False,
        lane: int = 0,
        lanes: int = 1,
    ) -> None:
        """Make the memory of a lane, in RAM or in files of the folder; if `resuming`, the files must be there."""
        self.memory = PerturbationMemory(
            len(samples),
            self.row_shape(samples.shape),
            self.eps,
            dtype=dtype,
            folder=folder,
            existing=resuming,
            rank=lane,
            world_size=lanes,
        )
        self._is_new, self._is_own = not resuming, True

    def expect(self, index: Tensor, epoch: int) -> None:
        """Begin to read the perturbations of the next batch from files."""
        if self.memory is not None:
            self.memory.prefetch(index, epoch)

    def state(self, epoch: int) -> dict[str, Tensor]:
        """Return the memory of this epoch or, if it lives in files, what these are checked by on a resume."""
        self._start()
        if self.memory is None:
            return {}
        return self.memory.state(epoch) if self.memory.folder is None else self.memory.file_state(epoch)

    def load_state(self, state: Mapping[str, Tensor], epoch: int) -> None:
        """Continue from a `state`; files must hold what they held then."""
        assert self.memory is not None
        if self.memory.folder is None:
            self.memory.load_state(state)
        else:
            self.memory.check_files(state, epoch)
        self._is_new = False

    def _start(self) -> None:
        """Clear files that a run left which ended before its first checkpoint.

        `bind` does not: a resume that fails must leave the files as they are.
        """
        if self._is_new and self.memory is not None and self.memory.folder is not None:
            self.memory.clear()
        self._is_new = False

    def flush(self) -> None:
        """Write the files of the memory to the disk."""
        self._start()
        if self.memory is not None:
            self.memory.flush()

    def memory_row(self, epoch: int) -> dict[str, float]:
        """Return the histogram of |delta| / eps after an epoch: of all entries or, for l2 and l1, of the norms."""
        return self._histogram(epoch)

    def _histogram(self, epoch: int, parts: int = 1) -> dict[str, float]:
        """Return the histogram of the first part of each row, which has so many equal parts."""
        assert self.memory is not None
        shares = self.memory.histogram(epoch + 1, self.norm, len(self.memory_columns), parts)
        return dict(zip(self.memory_columns, shares, strict=True))
