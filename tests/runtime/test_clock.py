"""How long something takes, in words."""

from fasteraa.runtime.clock import duration


def test_two_units_at_most():
    assert [duration(seconds) for seconds in (0.96, 9.94, 9.96, 59.6, 80, 120, 3599.6, 7325, 3605)] == [
        "less than a second", "9.9 s", "10 s", "1 min", "1 min 20 s", "2 min", "1 h", "2 h 2 min", "1 h 5 s",
    ]  # fmt: skip
