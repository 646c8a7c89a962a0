"""The transport between real ranks: received messages, their order, and the cost of waiting."""

import os
from pathlib import Path

import pytest

SCENES = Path(__file__).parents[3] / "helpers" / "mpi_messages.py"
PLAIN = ("dtypes", "order", "large", "changed", "waiting", "parts", "stop", "loop", "stray")
ROOM = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > 8 * 2**30


@pytest.fixture(scope="module")
def play(forker):
    """Run scenarios in three ranks; return the output of rank 0, a word and a number per line."""

    def play(*scenes, options=()):
        done = forker.mpirun(SCENES, scenes, options=options)
        said = {word: float(number) for word, number in map(str.split, done.stdout.splitlines())}
        return said, done.stderr

    return play


@pytest.fixture(scope="module")
def played(play):
    """All scenes in one job; one that fails ends it."""
    return play(*PLAIN, *["huge"] * ROOM)


@pytest.mark.parametrize("scene", PLAIN)
def test_messages_between_ranks_of_one_machine(played, scene):
    said, err = played
    assert scene in said, err


@pytest.mark.skipif(not ROOM, reason="needs 8 GB of free memory")
def test_a_message_of_more_than_2_gib(played):
    said, err = played
    assert "huge" in said, err


def test_a_waiting_rank_uses_no_core(played):
    said, err = played
    assert said.get("server", 1) < 0.05, err
    assert said["worker"] < 0.05


@pytest.mark.parametrize(
    "options",
    [
        ("--mca", "btl_vader_single_copy_mechanism", "none"),  # as in containers that forbid to read each other
        ("--mca", "btl", "tcp,self"),  # as between machines
    ],
    ids=["pieces", "tcp"],
)
def test_messages_over_other_transports(play, options):
    said, err = play("large", "order", options=options)
    assert "order" in said, err
