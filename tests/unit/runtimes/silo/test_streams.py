import threading

from fl_labelskew_plugins.runtimes.silo import streams


class SlowPeer:
    """Accepts another chunk whenever it is asked, a thousand times."""

    def __init__(self):
        self._chunks = iter(range(1000))

    @property
    def moved(self):
        return next(self._chunks)


def test_a_peer_that_reads_slowly_does_not_delay_the_end_forever(monkeypatch):
    monkeypatch.setattr(streams, "PATIENCE_S", 0.01)
    monkeypatch.setattr(streams, "LAST_S", 0.2)
    peer = SlowPeer()
    streams.wait_while_moving(threading.Event(), [peer])
    assert 1 < peer.moved < 999
