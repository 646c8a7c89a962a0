"""The clock of deadlines, with a transport whose waits last as long as a test says."""

from types import SimpleNamespace

import pytest

from fl_labelskew_plugins.runtimes.silo import clock
from fl_labelskew_plugins.runtimes.silo.clock import OVERTIME_S, SETTLE_S, ListeningClock


class Scripted:
    """Each wait of the script: seconds that it lasts (None: as long as asked) and whether a message came."""

    def __init__(self, *script):
        self.script, self.seconds, self.asked = list(script), 100.0, []

    def receive(self, timeout):
        took, arrived = self.script.pop(0) if self.script else (None, False)
        self.asked.append(timeout)
        self.seconds += timeout if took is None else took
        return arrived


@pytest.fixture
def scripted(monkeypatch):
    def make(*script):
        transport = Scripted(*script)
        monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: transport.seconds))
        return transport, ListeningClock(transport)

    return make


def test_waits_in_steps_until_time_is_up(scripted):
    transport, listening = scripted()
    assert [listening.listen(2.5) for _ in range(3)] == [True, True, False]
    assert transport.asked == [1, 1, 0.5]
    assert listening.now == 2.5


def test_time_in_which_nobody_listens_does_not_count(scripted):
    transport, listening = scripted()
    assert listening.listen(3)
    transport.seconds += 1000  # a model is tested, or the process is stopped
    assert listening.listen(3)
    assert listening.now == 2


@pytest.mark.parametrize("arrived", [True, False])
def test_a_wait_in_which_the_process_was_stopped_does_not_count(arrived, scripted):
    _, listening = scripted((0.9, True), (12.0, arrived), (0.3, True))
    assert [listening.listen(1) for _ in range(3)] == [True, True, True]
    assert listening.now == pytest.approx(1.2)


def test_what_waits_already_is_taken_before_time_is_up(scripted):
    transport, listening = scripted((1.0, False), (0.0, True), (0.0, True), (None, False))
    assert [listening.listen(1) for _ in range(4)] == [False, True, True, False]
    assert transport.asked[1:] == [SETTLE_S] * 3


def test_who_sends_without_end_does_not_keep_time_from_being_up(scripted):
    transport, listening = scripted(*[(0.1, True)] * 1000)
    rounds = 0
    while listening.listen(1):
        rounds += 1
    assert rounds == pytest.approx(10 * (1 + OVERTIME_S), abs=1)
    assert transport.script
