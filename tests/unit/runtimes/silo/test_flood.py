from fl_labelskew_plugins.runtimes.silo.flood import KINDS, Flood


class Told:
    def __init__(self):
        self.lines, self.now = [], 0.0
        self.flood = Flood(self.lines.append, lambda: self.now)


def test_equal_messages_are_shown_once_per_minute_and_counted():
    server = Told()
    for n in range(400):
        server.now = n / 300
        server.flood.print_event("silo 2", f"refused: sent {n} bytes")
    server.flood.print_event("silo 3", "refused: sent 5 bytes")  # another peer
    assert server.lines == ["silo 2 refused: sent 0 bytes", "silo 3 refused: sent 5 bytes"]
    server.now = 61
    server.flood.print_event("silo 1", "has disconnected")
    assert server.lines[2:] == ["silo 2 refused: sent 399 bytes (399 more within 61 s)", "silo 1 has disconnected"]
    server.flood.print_event("silo 2", "refused: sent 7 bytes")  # its next minute has begun
    server.now = 90
    server.flood.close()
    assert server.lines[4:] == ["silo 2 refused: sent 7 bytes (1 more within 29 s)"]
    server = Told()  # after a quiet minute a message is shown at once
    server.flood.print_event("silo 2", "has disconnected")
    server.now = 60
    server.flood.print_event("silo 2", "has disconnected")
    assert server.lines == ["silo 2 has disconnected"] * 2


def test_a_peer_with_ever_new_reasons_gets_no_more_messages():
    server = Told()
    for n in range(1000):
        server.flood.print_event("a stranger", "refused: " + "x" * n)
    assert len(server.lines) == KINDS
    server.flood.close()
    assert len(server.lines) == KINDS + 1
    assert server.lines[-1].endswith(f"x ({1000 - KINDS} more within 0 s)")


def test_limits_and_counts_of_messages():
    server = Told()
    for _ in range(8):
        server.flood.print_event("silo 1", "has disconnected", most=5)
    server.flood.print_event("a stranger", "refused: no certificate", times=12)
    server.flood.print_event("a stranger", "refused: no certificate", times=3)
    server.flood.close()
    assert server.lines == [
        *["silo 1 has disconnected"] * 5,
        "a stranger refused: no certificate (12 times)",
        "silo 1 has disconnected (3 more within 0 s)",
        "a stranger refused: no certificate (3 more within 0 s)",
    ]


def test_messages_of_another_level_are_counted_separately():
    server, warned = Told(), []
    for _ in range(2):
        server.flood.print_event("silo 1", "turned away", print_line=warned.append)
    server.flood.print_event("silo 1", "is here")
    server.now = 61
    server.flood.tick()
    assert warned == ["silo 1 turned away", "silo 1 turned away (1 more within 61 s)"]
    assert server.lines == ["silo 1 is here"]
