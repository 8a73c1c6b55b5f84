"""Samples that are read when they are needed equal those in memory, bit by bit."""

import os
import signal
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, get_worker_info

from sihg.robust.data import DataWarning, Samples, as_samples, load
from sihg.robust.data.array_files import RandomFile
from sihg.robust.data.batches import Batch, batches, epoch_batches
from sihg.robust.data.contents import sum_of
from sihg.robust.data.samples import open_samples
from sihg.robust.data.sources import open_data
from sihg.robust.data.webdataset import expand
from tests.refused import refused
from tests.robust.data.lazy_sets import (
    SHAPE,
    Items,
    N,
    images,
    labels,
    members,
    npy,
    png,
    write_folder,
    write_npy,
    write_shard,
)


def leave_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing fit in memory, as on a small machine."""
    for module in ("samples", "image_folder", "npz_file"):
        monkeypatch.setattr(f"sihg.robust.data.{module}.max_memory", lambda: 100)


def npz(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    np.savez(folder / "a.npz", x=images(), y=labels())
    return f"npz:{folder / 'a.npz'}"


def shards(folder: Path) -> str:
    content = list(members().items())
    for number in range(4):
        write_shard(folder / f"set-{number}.tar", dict(content[number * 20 : (number + 1) * 20]))
    return f"wds:{folder}/set-{{0..3}}.tar"


FORMS: dict[str, Callable[[Path], str]] = {
    "npy": lambda folder: f"npy:{write_npy(folder)}",
    "npz": npz,
    "folder": lambda folder: f"folder:{write_folder(folder)}",
    "wds": shards,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_lazy_set_equals_the_set_in_memory(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = FORMS[form](tmp_path / "set")
    in_memory = load(name)
    leave_no_room(monkeypatch)
    lazy = load(name)
    for there, here in zip(lazy, in_memory, strict=True):
        assert here.lazy is None
        assert there.lazy is not None
        assert there.shape == here.shape == SHAPE
        assert (there.x.dtype, there.classes, len(there)) == (here.x.dtype, here.classes, len(here))
        assert torch.equal(there.y, here.y)
        assert torch.equal(there.floats(), here.floats())
        some = torch.tensor([7, 0, 3])
        for index in (some, some.tolist(), slice(2, 5), slice(0, 1)):
            assert torch.equal(there.floats(index), here.floats(index))
        part = there.take(some)
        assert torch.equal(part.take(slice(1, None)).floats(), here.floats(some[1:]))
        assert sum_of([there]) == sum_of([here], like=sum_of([there]))
        assert sum_of([here]) == sum_of([there], like=sum_of([here]))
        for a, b in zip(batches(there, size=7, epochs=2), batches(here, size=7, epochs=2), strict=True):
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)


# ---- what is read, and what is checked when it is read


def opened(folder: Path) -> Samples:
    return open_data(f"npy:{write_npy(folder)}")[0]


def test_a_subset_reads_its_own_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    plain = RandomFile.read_into

    def counted(file: RandomFile, buffer: memoryview, offset: int) -> None:
        read.append(len(buffer))
        plain(file, buffer, offset)

    monkeypatch.setattr(RandomFile, "read_into", counted)
    train, _ = open_data(f"npy:{write_npy(tmp_path / 'a')}")
    assert sum(read) == labels().nbytes
    read.clear()
    x = train.take(torch.tensor([1, 5, 9])).settled().x
    assert sum(read) == x.numel() == 3 * np.prod(SHAPE)


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0, -0.5])
def test_a_bad_value_is_named_by_its_row_when_it_is_read(value: float, tmp_path: Path) -> None:
    x = (images() / 255).astype(np.float32)
    x[17, 1, 2, 3] = value
    write_npy(tmp_path / "a", x=x, y=labels(), x_test=x[:8], y_test=labels(8))
    train, _ = open_data(f"npy:{tmp_path / 'a'}")
    train = train.when_read(bounds=(0.0, 1.0))
    train.floats([16, 18])
    with refused("row-outside-bounds" if np.isfinite(value) else "sample-not-finite", row=17):
        train.floats([3, 17])
    with refused("row-outside-bounds" if np.isfinite(value) else "sample-not-finite", row=17):
        list(train.take(torch.arange(10, 30)).reader([torch.tensor([1, 2]), torch.tensor([6, 7])]))


def test_lazy_rows_have_no_values_by_accident(tmp_path: Path) -> None:
    train = opened(tmp_path / "a")
    with pytest.raises((RuntimeError, TypeError)):
        train.x.numpy()


def test_float64_and_channels_last_become_what_npz_files_give(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((N, 6, 7, 3))
    write_npy(tmp_path / "a", x=x, y=labels())
    np.savez(tmp_path / "a.npz", x=x, y=labels())
    here, there = load(f"npz:{tmp_path / 'a.npz'}")[0], open_data(f"npy:{tmp_path / 'a'}")[0]
    assert there.lazy is not None
    assert there.x.dtype == torch.float32
    assert torch.equal(there.floats(), here.x)


def test_a_reader_that_is_left_early_ends(tmp_path: Path) -> None:
    reader = opened(tmp_path / "a").reader(list(torch.arange(30).split(2)))
    next(iter(reader))
    reader.close()  # type: ignore[attr-defined]
    with pytest.raises(StopIteration):
        next(reader)


def test_a_compressed_npz_file_that_does_not_fit_says_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=images(), y=labels())
    leave_no_room(monkeypatch)
    monkeypatch.setattr("sihg.robust.data.array_files.max_memory", lambda: 100)
    size = sum(array.nbytes + 128 for array in (images(), labels()))
    with refused("data-too-large", bytes=size, limit=100):
        load(f"npz:{tmp_path / 'a.npz'}")


# ---- shards


def test_shards_of_every_tar_format_and_of_arrays(tmp_path: Path) -> None:
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        for arrays in (False, True):
            path = write_shard(tmp_path / "a.tar", members(arrays=arrays), kind)
            train, test = load(f"wds:{path}")
            assert len(train) + len(test) == N
            rows = torch.cat([train.x, test.x]).flatten(1).unique(dim=0)
            assert torch.equal(rows, torch.from_numpy(images()).flatten(1).unique(dim=0))


def test_long_names_folders_and_other_members_of_shards(tmp_path: Path) -> None:
    content = {f"{'deep/' * 40}{name}": data for name, data in members(8).items()}
    content |= {"README": b"none", ".hidden.png": b"none", f"{'deep/' * 40}0003.json": b"{}"}
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        train, _ = load(f"wds:{write_shard(tmp_path / 'a.tar', content, kind)}")
        assert train.classes == ("0", "1", "2", "3")


def test_shards_of_a_folder_for_training_and_testing(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-0.tar", members(24))
    write_shard(tmp_path / "val-0.tar", members(8))
    train, test = load(f"wds:{tmp_path}")
    assert (len(train), len(test)) == (24, 8)
    assert torch.equal(test.x, torch.from_numpy(images(8)))


def test_grey_images_among_colour_images_get_three_channels(tmp_path: Path) -> None:
    content = members(8) | {"0000.png": png(images(1)[0, :1])}
    train, test = load(f"wds:{write_shard(tmp_path / 'a.tar', content)}")
    assert train.shape == test.shape == SHAPE


def test_ranges_and_stars_of_patterns(tmp_path: Path) -> None:
    found = expand(f"{tmp_path}/s-{{08..11}}.tar")
    assert [path.name for path in found] == ["s-08.tar", "s-09.tar", "s-10.tar", "s-11.tar"]
    assert len(expand("a-{0..1}-{0..2}.tar")) == 6
    write_shard(tmp_path / "b.tar", members(8))
    write_shard(tmp_path / "a.tar", members(8))
    assert [path.name for path in expand(f"{tmp_path}/*.tar")] == ["a.tar", "b.tar"]
    with refused("too-many-shards"):
        expand("a-{0..99999999999999999999}.tar")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"0000.cls": b"one"}, "shard-label"),
        ({"0000.cls": b"-1"}, "shard-label"),
        ({"0000.cls": b"9" * 40}, "shard-label"),
        ({"0000.jpg": b"x"}, "shard-sample"),
        ({"0008.png": b"x"}, "shard-sample"),
        ({"0001.png": b"no image"}, "image-unreadable"),
        ({"0002.png": npy(images(1)[0])}, "image-unreadable"),
    ],
)
def test_a_bad_sample_of_a_shard_is_named(change: dict[str, bytes], code: str, tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", members(8) | change)
    with refused(code) as caught:
        load(f"wds:{path}")
    assert str(path) in str(caught.value)


def test_an_image_of_another_size_is_named_by_its_row(tmp_path: Path) -> None:
    content = members(N) | {"0021.npy": npy(np.zeros((3, 9, 9), np.uint8))}
    del content["0021.png"]
    train, test = open_data(f"wds:{write_shard(tmp_path / 'a.tar', content)}")
    with refused("samples-differ", row=21):
        train.settled(), test.settled()


def test_many_shards_need_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sihg.robust.data.webdataset.MAX_OPEN", 1)
    train, _ = open_data(shards(tmp_path / "set"))
    assert train.lazy is not None
    whole = train.settled().x
    assert torch.equal(train.lazy.read([20, 1, 30]), whole[[20, 1, 30]])
    write_shard(tmp_path / "set" / "set-0.tar", members(1))
    with refused("shard-damaged"):
        train.floats()


# ---- torch Datasets


def test_a_dataset_with_known_labels_is_read_for_its_subset_alone() -> None:
    items = Items()
    samples = open_samples(items)
    before = items.reads
    assert before <= 3
    few = samples.take(torch.tensor([4, 8])).settled()
    assert items.reads == before + 2
    assert few.x[:, 0, 0, 0].tolist() == [np.float32(4 / 80), np.float32(8 / 80)]
    assert open_samples(Subset(items, [4, 8])).y.tolist() == [0, 0]
    assert items.reads == before + 5


def test_a_dataset_without_labels_is_read_once() -> None:
    items = Items(targets=False)
    samples = as_samples(items)
    assert samples.lazy is None
    assert items.reads <= N + 3
    assert torch.equal(samples.x, as_samples(Items()).x)
    random = Items(targets=False, noise="torch")
    with pytest.warns(DataWarning, match="no list `targets`, so its 40 items are read once"):
        first = open_samples(random)
    assert random.reads <= N + 3
    assert torch.equal(open_samples(random).y, first.y)
    assert random.reads <= N + 6


@pytest.mark.parametrize("noise", ["torch", "numpy", "python", "flip"])
def test_randomness_is_found_and_belongs_to_seed_epoch_and_sample(noise: str) -> None:
    samples = as_samples(Items(noise=noise))
    assert samples.is_random
    assert samples.lazy is not None
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    one = samples.floats(seed=1, epoch=2)
    assert torch.equal(one, samples.floats(seed=1, epoch=2))
    assert torch.equal(one[[9, 2]], samples.floats([9, 2], seed=1, epoch=2))
    assert not torch.equal(one, samples.floats(seed=1, epoch=3))
    assert not torch.equal(one, samples.floats(seed=2, epoch=2))
    assert torch.equal(before, torch.random.get_rng_state())


def test_what_is_not_random_is_not_called_so() -> None:
    assert not open_samples(Items()).is_random
    assert not open_samples(Items(noise="seeded")).is_random


def test_randomness_that_cannot_be_repeated_is_told() -> None:
    with pytest.warns(DataWarning, match="cannot be repeated"):
        samples = as_samples(Items(noise="own"))
    assert samples.is_random
    sum_of([samples])


def test_epochs_differ_and_workers_do_not_matter() -> None:
    samples = as_samples(Items(noise="torch"))
    runs = []
    for workers in (0, 1, 2):
        some = samples.when_read(workers=workers)
        runs.append(
            [[batch.x for batch in batches_of(some, epoch)] for epoch in range(2)],
        )
    for run in runs[1:]:
        for epoch in range(2):
            assert all(torch.equal(a, b) for a, b in zip(run[epoch], runs[0][epoch], strict=True))
    order = [torch.cat([batch.index for batch in batches_of(samples, epoch)]).argsort() for epoch in range(2)]
    first, second = (torch.cat(runs[0][epoch])[order[epoch]] for epoch in range(2))
    assert not torch.isclose(first, second).flatten(1).any(1).all()


def batches_of(samples: Samples, epoch: int) -> list[Batch]:
    steps = epoch_batches(samples, size=9, seed=0, epoch=epoch, first=0, augment=None)
    return [batch for step in steps for batch in step.lanes]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_item_that_fails_or_changes_is_named(workers: int) -> None:
    class Broken(Items):
        def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
            x, y = super().__getitem__(row)
            if row == 5:
                raise KeyError("lost")
            return (x[:, :2], y) if row == 6 else (x, y + (row == 7))

    samples = replace_workers(open_samples(Broken()), workers)
    for row, code in ((5, "dataset-failed"), (6, "samples-differ"), (7, "dataset-label")):
        with refused(code, row=row) as caught:
            list(samples.reader([torch.tensor([1, row])]))
        assert "\n" not in str(caught.value)


def replace_workers(samples: Samples, workers: int) -> Samples:
    assert samples.lazy is not None
    return replace(samples, lazy=replace(samples.lazy, workers=workers))


def test_a_reading_process_that_is_killed_is_told() -> None:
    class Deadly(Items):
        def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
            if get_worker_info() is not None:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(row)

    samples = replace_workers(open_samples(Deadly()), 1)
    with refused("reader-died"):
        list(samples.reader([torch.tensor([1])]))


def test_a_mapped_array_that_does_not_fit_is_read_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npy(tmp_path / "a")
    mapped = np.load(tmp_path / "a" / "x_train.npy", mmap_mode="r")
    here = as_samples((mapped, labels()))
    leave_no_room(monkeypatch)
    there = as_samples((mapped, labels()))
    assert here.lazy is None
    assert there.lazy is not None
    assert torch.equal(there.floats([3, 1]), here.floats([3, 1]))
