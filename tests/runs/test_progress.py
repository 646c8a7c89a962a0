import io
import math

import pytest
from rich.console import Console

from fl_labelskew_plugins.runs import progress as module
from fl_labelskew_plugins.runs.progress import Live, Pause, Plain, Progress, clock, in_words, progress

LINE = {
    "round": 1,
    "accuracy": 0.6213,
    "personalised_accuracy": 0.98,
    "loss_terms": {"cross_entropy": 0.4, "intra": 0.01},
}


def test_a_round_in_words():
    words = "accuracy 62.13 %  own test splits 98.00 %  loss cross_entropy 0.4000 + intra 0.0100"
    assert in_words(LINE) == words
    assert in_words({"round": 0, "loss_terms": {"cross_entropy": 1.0}}) == "loss cross_entropy 1.0000"
    worst = {
        "client_accuracy_mean": 0.8,
        "client_accuracy_worst": 0.612,
        "client_accuracy_worst_client": "silo 2, south",
    }
    assert in_words({"loss_terms": {}, **worst}) == "each client's tests 80.00 %, worst 61.20 % (silo 2, south)"
    line = {"loss_terms": {}, "left_out": [2], "opening_left_out": [1, 2]}
    assert in_words(line) == "1 left out  2 left out of the opening"


@pytest.mark.parametrize(("seconds", "text"), [(None, "?"), (0, "0:00"), (61.4, "1:01"), (3725, "1:02:05")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_plain_lines_count_rounds_and_time_left(capsys, monkeypatch):
    times = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    shown = Plain()
    shown.start("x", 1, 4, 10)
    shown.client(1, 1, 10)
    shown.round(LINE, 10.0)
    shown.stop()
    first, second = capsys.readouterr().out.splitlines()
    assert first == "x: 4 rounds of 10 clients, 1 done already"
    shown.start("x", 0, 1, 1)
    assert capsys.readouterr().out == "x: 1 round of 1 client\n"
    assert second.startswith("round 2/4  accuracy 62.13 %")
    assert second.endswith("10.0 s  left 0:20")


def test_live_shows_round_client_accuracy_and_time_left():
    screen = io.StringIO()
    shown = Live(Console(file=screen, force_terminal=True, width=200))
    shown.start("fedmr", 0, 4, 10)
    shown.client(0, 3, 10)
    shown.round(LINE, 1.0)
    shown.note("a [b] note")
    shown.stop()
    text = screen.getvalue()
    for word in ("fedmr", "2/4", "client 3/10", "accuracy 62.13 %", "left", "a [b] note"):
        assert word in text


def test_a_client_with_a_name_is_called_by_it():
    screen = io.StringIO()
    shown = Live(Console(file=screen, force_terminal=True, width=200))
    shown.start("fedmr", 0, 4, 2)
    shown.client(0, 2, 2, "north")
    shown.stop()
    assert "client 2/2 north" in screen.getvalue()


def test_quiet_is_silent_and_pipes_get_lines(capsys):
    assert type(progress(True)) is Progress
    assert type(progress(False)) is Plain
    shown = Progress()
    shown.note("x")
    shown.start("x", 0, 1, 1)
    shown.client(0, 1, 1)
    shown.round(LINE, 1.0)
    shown.stop()
    assert capsys.readouterr().out == ""


def test_what_is_left_ends_with_a_pause(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    whole, part, timed = (module.Left(2, 10, pause) for pause in (None, Pause(5, math.inf), Pause(10, 125.0)))
    assert whole(2) is None
    now[0] = 120.0  # 20 s for 2 rounds
    assert (whole(4), part(4), timed(4)) == (60.0, 10.0, 5.0)
    now[0] = 130.0
    assert timed(5) == 0.0
