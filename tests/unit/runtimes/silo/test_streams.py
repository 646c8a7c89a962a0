import threading
from unittest.mock import PropertyMock

from fl_labelskew_plugins.runtimes.silo import streams


def test_a_peer_that_reads_slowly_does_not_delay_the_end_forever(monkeypatch):
    monkeypatch.setattr(streams, "PATIENCE_S", 0.01)
    monkeypatch.setattr(streams, "LAST_S", 0.2)
    moved = PropertyMock(side_effect=range(1000))  # accepts another chunk whenever it is asked
    streams.wait_while_moving(threading.Event(), [type("Peer", (), {"moved": moved})()])
    assert 1 < moved.call_count < 999
