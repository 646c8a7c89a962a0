import time
from types import SimpleNamespace

import pytest
from fl_labelskew_registry import RunError
from recipe_texts import SILOS

from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runtimes.silo import members as members_of
from fl_labelskew_plugins.runtimes.silo.members import (
    OVERTIME_S,
    SETTLE_S,
    ExcludedSilos,
    ListeningClock,
    Members,
    Poll,
)

SHORT = [f"comm_args.{key}=0.3" for key in ("round_deadline_s", "quorum_timeout_s", "reconnect_s")]


@pytest.fixture
def members(tmp_path):
    """Three silos, of which two are enough; ``lines``: the output."""
    recipe = recipes.parse(SILOS, overrides=[*SHORT, "comm_args.min_clients=2"])
    lines = []
    excluded = ExcludedSilos(tmp_path, 3, lines.append, lambda event, **facts: None)
    seen = status.Silos([""] * 3)
    transport = SimpleNamespace(receive=time.sleep)  # members send nothing
    more = {"set_status": lambda **facts: None, "seen": seen}
    made = Members(recipe, transport, excluded, lambda: None, lines.append, "go on", **more)
    made.lines, made.round = lines, 0
    for client in (0, 1, 2):
        made.joined(client)
    return made


def test_answers_of_a_quorum_are_ordered_and_late_silos_are_excluded(members):
    poll = Poll(members, [0, 1, 2], "uploads", {2: "c", 0: "a"})
    assert poll.awaits(1)
    assert list(poll.take()) == [0, 2]
    assert not poll.awaits(1)
    assert members.skipped == {1}
    assert members.lines == ["round 1: silo 2 missed the deadline of 0.3 s; skipped until it sends a message"]


def test_too_few_answers_end_the_run(members):
    match = r"^round 1: 1 of at least 2 uploads arrived \(comm_args.min_clients, .*; go on$"
    with pytest.raises(RunError, match=match):
        list(Poll(members, [0, 1, 2], "uploads", {1: "b"}).take())
    members.round = -1
    with pytest.raises(RunError, match=r"^opening exchange: 1 of at least 2 openings remain after refusals"):
        list(Poll(members, [0, 1], "openings", {0: "a", 1: "b"}).take(lambda client: client == 0))


def test_a_disconnected_silo_is_awaited_for_a_while(members):
    members.left(1)
    assert members.reachable(1)
    assert members.invite(0, [0, 1, 2]) == [0, 2]
    assert members.lines == ["round 1: silo 2 did not reconnect within 0.3 s; skipped until it sends a message"]
    assert not members.reachable(1)
    for _ in range(3):  # messages without a connection
        members.heard(1)
        assert not members.skip_if_gone(1)
    assert len(members.lines) == 1
    members.joined(1)
    assert members.skip_if_gone(1)
    assert members.invite(1, [0, 1, 2]) == [0, 1, 2]


def test_repeated_reconnections_do_not_extend_the_wait(members):
    """It is away whenever the server looks, for quorum_timeout_s."""
    members.comm = members.comm.model_copy(update={"quorum_timeout_s": 60.0})
    honest = members.clock.listen
    members.clock.listen = lambda until: (honest(until), members.joined(1), members.left(1))[0]
    members.left(1)
    assert members.invite(0, [0, 1, 2]) == [0, 2]
    assert members.clock.now < 5


class Scripted:
    """Each wait of the script: seconds that it lasts (None: as long as waits) and whether a message came."""

    def __init__(self, *script):
        self.script, self.seconds, self.waits = list(script), 100.0, []

    def receive(self, timeout):
        took, arrived = self.script.pop(0) if self.script else (None, False)
        self.waits.append(timeout)
        self.seconds += timeout if took is None else took
        return arrived


@pytest.fixture
def scripted(monkeypatch):
    def make(*script):
        transport = Scripted(*script)
        monkeypatch.setattr(members_of, "time", SimpleNamespace(monotonic=lambda: transport.seconds))
        return transport, ListeningClock(transport)

    return make


def test_waits_in_steps_and_time_without_a_listener_does_not_count(scripted):
    transport, listening = scripted()
    assert [listening.listen(2.5) for _ in range(3)] == [True, True, False]
    assert transport.waits == [1, 1, 0.5]
    assert listening.now == 2.5
    transport, listening = scripted()
    assert listening.listen(3)
    transport.seconds += 1000  # a model is tested, or the process is stopped
    assert listening.listen(3)
    assert listening.now == 2


@pytest.mark.parametrize("arrived", [True, False])
def test_a_wait_in_which_the_process_was_stopped_counts_as_planned(arrived, scripted):
    _, listening = scripted((0.9, True), (12.0, arrived), (0.3, True))
    assert [listening.listen(1) for _ in range(3)] == [True, True, True]
    assert listening.now == pytest.approx(1.4)


def test_a_process_that_gets_no_time_still_ends_a_deadline(scripted):
    """A peer with messages that take all of the time must not stop the clock."""
    _, listening = scripted(*[(5.0, True)] * 1000)
    rounds = 0
    while listening.listen(1):
        rounds += 1
    assert rounds < 60


def test_queued_messages_are_taken_before_the_deadline(scripted):
    transport, listening = scripted((1.0, False), (0.0, True), (0.0, True), (None, False))
    assert [listening.listen(1) for _ in range(4)] == [False, True, True, False]
    assert transport.waits[1:] == [SETTLE_S] * 3


def test_endless_messages_do_not_delay_the_deadline(scripted):
    transport, listening = scripted(*[(0.1, True)] * 1000)
    rounds = 0
    while listening.listen(1):
        rounds += 1
    assert rounds == pytest.approx(10 * (1 + OVERTIME_S), abs=1)
    assert transport.script
