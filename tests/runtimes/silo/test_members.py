"""Who is there and whose answers are waited for, with a transport that nobody sends anything over."""

import pytest
from fl_labelskew_registry import RunError

from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runtimes.silo.excluded import Excluded
from fl_labelskew_plugins.runtimes.silo.members import Members, Poll
from fl_labelskew_plugins.runtimes.transport import Transport

SHORT = [f"comm_args.{key}=0.3" for key in ("round_deadline_s", "quorum_timeout_s", "reconnect_s")]


class Silent(Transport):
    def send_message(self, msg):
        raise NotImplementedError


@pytest.fixture
def members(base_recipe, tmp_path):
    """Three silos of which two are enough; ``lines``: what was said."""
    recipe = recipes.parse(base_recipe, overrides=[*SHORT, "comm_args.min_clients=2"])
    lines = []
    excluded = Excluded(tmp_path, 3, lines.append, lambda event, **facts: None)
    said = {"recount": lambda: None, "warn": lines.append, "go_on": "go on", "tell": lambda **facts: None}
    made = Members(recipe, Silent(), excluded, seen=status.Silos([""] * 3), **said)
    made.lines, made.round = lines, 0
    for client in (0, 1, 2):
        made.came(client)
    return made


def test_a_quorums_answers_are_taken_in_order_and_who_is_late_is_left_out(members):
    poll = Poll(members, [0, 1, 2], "uploads", {2: "c", 0: "a"})
    assert poll.awaits(1)
    assert list(poll.take()) == [0, 2]
    assert not poll.awaits(1)
    assert members.away == {1}
    assert members.lines == ["round 1: silo 2 missed the deadline of 0.3 s; left out until it speaks again"]


def test_too_few_answers_end_the_run(members):
    with pytest.raises(RunError, match=r"^round 1: 1 of at least 2 uploads came \(comm_args.min_clients, .*; go on$"):
        list(Poll(members, [0, 1, 2], "uploads", {1: "b"}).take())
    members.round = -1
    with pytest.raises(RunError, match=r"^opening exchange: 1 of at least 2 openings are left without those that were"):
        list(Poll(members, [0, 1], "openings", {0: "a", 1: "b"}).take(lambda client: client == 0))


def test_who_has_left_is_waited_for_for_a_while(members):
    members.left(1)
    assert members.reachable(1)
    assert members.invite(0, [0, 1, 2]) == [0, 2]
    assert members.lines == ["round 1: silo 2 did not come back within 0.3 s; left out until it speaks again"]
    assert not members.reachable(1)
    members.came(1)
    assert members.invite(1, [0, 1, 2]) == [0, 1, 2]
