"""The transport between real ranks: received messages, their order, and the cost of waiting."""

import os
from pathlib import Path

import pytest

SCENES = Path(__file__).parents[3] / "helpers" / "mpi_messages.py"
PLAIN = ("order", "large", "changed", "waiting", "parts", "stop", "stray")
ROOM = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > 8 * 2**30  # for a message of 2 GiB


def play(forker, *scenes, options=()):
    """Run scenes in three ranks; the output of rank 0, a word and a number per line, and the errors."""
    done = forker.mpirun(SCENES, scenes, options=options)
    said = {word: float(number) for word, number in map(str.split, done.stdout.splitlines())}
    return said, done.stderr


def test_messages_between_ranks_of_one_machine(forker):
    """All scenes in one job; one that fails ends it."""
    said, err = play(forker, *PLAIN, *["huge"] * ROOM)
    assert said.keys() >= {*PLAIN}, err
    assert ("huge" in said) == ROOM, err
    assert said["server"] < 0.5  # a waiting rank uses no core; one that asks again and again uses a whole one
    assert said["worker"] < 0.5


@pytest.mark.parametrize(
    "options",
    [
        ("--mca", "btl_vader_single_copy_mechanism", "none"),  # as in containers that forbid to read each other
        ("--mca", "btl", "tcp,self"),  # as between machines
    ],
    ids=["pieces", "tcp"],
)
def test_messages_over_other_transports(forker, options):
    said, err = play(forker, "large", "order", options=options)
    assert "order" in said, err
