"""Lines about peers: each kind once a minute, with a number of those held back."""

from fl_labelskew_plugins.runtimes.silo.flood import KINDS, Flood


class Told:
    def __init__(self):
        self.lines, self.now = [], 0.0
        self.flood = Flood(self.lines.append, lambda: self.now)


def test_of_many_equal_lines_one_a_minute_is_told_and_the_others_are_counted():
    told = Told()
    for n in range(400):
        told.now = n / 300
        told.flood.tell("silo 2", f"refused: sent {n} bytes")
    told.flood.tell("silo 3", "refused: sent 5 bytes")  # another peer
    assert told.lines == ["silo 2 refused: sent 0 bytes", "silo 3 refused: sent 5 bytes"]
    told.now = 61
    told.flood.tell("silo 1", "has left")
    assert told.lines[2:] == ["silo 2 refused: sent 399 bytes (399 more within 61 s)", "silo 1 has left"]
    told.flood.tell("silo 2", "refused: sent 7 bytes")  # its next minute has begun
    told.now = 90
    told.flood.close()
    assert told.lines[4:] == ["silo 2 refused: sent 7 bytes (1 more within 29 s)"]


def test_after_a_quiet_minute_a_line_is_told_at_once():
    told = Told()
    told.flood.tell("silo 2", "has left")
    told.now = 60
    told.flood.tell("silo 2", "has left")
    assert told.lines == ["silo 2 has left"] * 2


def test_a_peer_that_thinks_of_ever_new_reasons_gets_no_more_lines_for_it():
    told = Told()
    for n in range(1000):
        told.flood.tell("a stranger", "refused: " + "x" * n)
    assert len(told.lines) == KINDS
    told.flood.close()
    assert len(told.lines) == KINDS + 1
    assert told.lines[-1].endswith(f"x ({1000 - KINDS} more within 0 s)")


def test_some_lines_may_be_told_more_often_and_some_stand_for_many():
    told = Told()
    for _ in range(8):
        told.flood.tell("silo 1", "has left", most=5)
    told.flood.tell("a stranger", "refused: no certificate", times=12)
    told.flood.tell("a stranger", "refused: no certificate", times=3)
    told.flood.close()
    assert told.lines == [
        *["silo 1 has left"] * 5,
        "a stranger refused: no certificate (12 times)",
        "silo 1 has left (3 more within 0 s)",
        "a stranger refused: no certificate (3 more within 0 s)",
    ]


def test_lines_of_another_level_go_elsewhere_those_held_back_too():
    told, warned = Told(), []
    for _ in range(2):
        told.flood.tell("silo 1", "turned away", say=warned.append)
    told.flood.tell("silo 1", "is here")
    told.now = 61
    told.flood.tick()
    assert warned == ["silo 1 turned away", "silo 1 turned away (1 more within 61 s)"]
    assert told.lines == ["silo 1 is here"]
