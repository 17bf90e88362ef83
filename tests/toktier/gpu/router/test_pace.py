"""Which of the two paths is the faster one, by what both took."""

from __future__ import annotations

from toktier.gpu.router.pace import EVERY, Pace


def test_one_text_in_some_goes_the_other_way_and_decides() -> None:
    pace = Pace()
    chosen = [pace.gpu_next() for _ in range(2 * EVERY)]
    assert chosen.count(False) == 2
    assert not chosen[EVERY - 1]

    pace.took(True, 1000, 9_000)
    assert pace.faster  # nothing is known of the other
    pace.took(False, 1000, 3_000)
    assert not pace.faster
    chosen = [pace.gpu_next() for _ in range(EVERY)]
    assert chosen.count(True) == 1

    for _ in range(20):  # the CPU is busy from now on
        pace.took(False, 1000, 50_000)
    assert pace.faster


def test_a_single_slow_text_does_not_decide() -> None:
    pace = Pace()
    for _ in range(10):
        pace.took(True, 1000, 1_000)
        pace.took(False, 1000, 4_000)
    pace.took(True, 1000, 9_000)
    assert pace.faster
