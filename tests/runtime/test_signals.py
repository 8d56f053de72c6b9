"""Signals that wait for a step to end."""

import signal

import pytest

from fasteraa.runtime.signals import defer_signals


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_is_noted_once_and_what_is_ignored_stays_so(name):
    number = getattr(signal, name)
    with defer_signals() as caught:
        signal.raise_signal(number)
        assert caught == [number]
    before = signal.signal(number, signal.SIG_IGN)  # nohup
    try:
        with defer_signals() as caught:
            signal.raise_signal(number)
        assert caught == []
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
