"""Ctrl-C is a request to stop; a second one stops at once."""

import signal
import threading

import pytest

from sihg.interrupt import interrupted_at_once, stop_on_interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_is_noted_and_handlers_are_restored(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_interrupt() as asked:
        assert not asked()
        signal.raise_signal(number)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_under_torchrun_a_second_signal_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    with stop_on_interrupt() as asked:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        assert asked()


def test_other_threads_leave_signals_alone() -> None:
    found = []

    def work() -> None:
        with stop_on_interrupt() as asked:
            found.append(asked())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ignored_signal_interrupts_at_once(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_at_once():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
