import fcntl
import io
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from rich.console import Console

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.runs.progress import Pause, Progress
from fl_labelskew_plugins.show import progress as module
from fl_labelskew_plugins.show.progress import Live, Plain, clock, in_words, progress

LINE = {"round": 1, "accuracy": 0.6213, "personalised_accuracy": 0.98}
LINE["loss_terms"] = {"cross_entropy": 0.4, "intra": 0.01}
WORDS = "accuracy 62.13 %  own test splits 98.00 %  loss cross_entropy 0.4000 + intra 0.0100"
UNTESTED = "round 3/4  loss cross_entropy 1.0000  1 skipped  10.0 s  left 0:08"


def test_a_round_in_words():
    assert in_words(LINE) == WORDS
    assert in_words({"round": 0, "loss_terms": {"cross_entropy": 1.0}}) == "loss cross_entropy 1.0000"
    worst = {"client_accuracy_mean": 0.8, "client_accuracy_worst": 0.612}
    worst["client_accuracy_worst_client"] = "silo 2, south"
    assert in_words({"loss_terms": {}, **worst}) == "each client's tests 80.00 %, worst 61.20 % (silo 2, south)"
    equal = worst | {"client_accuracy_mean": 1.0, "client_accuracy_worst": 1.0}
    assert in_words({"loss_terms": {}, **equal}) == "each client's tests all 100.00 %"
    line = {"loss_terms": {}, "left_out": [2], "opening_left_out": [1, 2]}
    assert in_words(line) == "1 skipped  2 missing in the opening"


def test_clock():
    assert [clock(seconds) for seconds in (None, 0, 61.4, 3725)] == ["?", "0:00", "1:01", "1:02:05"]


def test_plain_lines_count_rounds_and_time_left(capsys, monkeypatch):
    times = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    shown = Plain()
    shown.start("x", 1, 4, 10)
    shown.client(1, 1, 10)
    shown.round(LINE, 10.0)
    shown.stop()
    first, second = capsys.readouterr().out.splitlines()
    assert first == "x: 4 rounds of 10 clients, 1 already done"
    shown.start("x", 0, 1, 1)
    assert capsys.readouterr().out == "x: 1 round of 1 client\n"
    assert second.startswith("round 2/4  accuracy 62.13 %")
    assert second.endswith("loss cross_entropy 0.4000 + intra 0.0100  10.0 s  left 0:20")


@pytest.mark.parametrize(
    ("width", "tested", "untested"),
    [
        (130, f"round 2/4  {WORDS}  10.0 s  left 0:20", UNTESTED),
        (80, f"round 2/4  {WORDS}"[:79], UNTESTED),
        (20, "round 2/4  accuracy", "round 3/4  loss cro"),
    ],
)
def test_live_lines_fit_the_terminal_above_a_bar(width, tested, untested, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    screen = io.StringIO()
    shown = Live(Console(file=screen, force_terminal=True, width=width, color_system=None))
    shown.start("fedmr", 1, 4, 10)
    now[0] = 110.0
    shown.round(LINE, 10.0)
    now[0] = 115.0
    shown.round({"round": 2, "loss_terms": {"cross_entropy": 1.0}, "left_out": [1]}, 10.0)
    shown.client(3, 3, 10, "north [/b]")
    shown._bar.refresh()
    shown.note("a [b] note")
    shown.stop()
    lines = [line for line in screen_of(screen.getvalue()) if line]
    assert lines == ["fedmr: 4 rounds of 10 clients, 1 already done", tested, untested, "a [b] note"]  # no bar is left
    bars = re.findall(r"[━╸╺ ]{4,}(round 4/4.*?)\s*[\r\n]", screen.getvalue())
    assert width == 20 or bars[-1] == "round 4/4  left 0:05  client 3/10 north [/b]"


def screen_of(text):
    """What a terminal shows in the end, with everything that has scrolled away, of the few codes that rich sends."""
    lines, at = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            at += 1
            lines += [""] * (at + 1 - len(lines))
        elif part == "\x1b[1A":
            at -= 1
        elif part == "\x1b[2K":
            lines[at] = ""
        elif part[0] not in "\x1b\r":
            lines[at] += part
    return [line.rstrip() for line in lines]


RUN = """
import time
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.show.progress import progress
log.begin()
shown = progress(False)
shown.start("fedmr", 0, 3, 10)
try:
    for round in range(3):
        shown.client(round, 3, 10)
        time.sleep(0.6)
        log.warn(f"of round {round + 1}")
        shown.round({"round": round, "accuracy": 0.5, "loss_terms": {"cross_entropy": 1.0, "intra": 1.0}}, 1.0)
    shown.note("asleep")
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
finally:
    shown.stop()
"""


def in_a_terminal(width, **environment):
    """What a display writes to a real terminal of this width, and Ctrl-C typed at its end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24 if width else 0, width, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    kept |= {log.FORM: "", "TERM": "xterm-256color", **environment}
    script = ["setsid", "--ctty", "--wait", sys.executable, "-c", RUN]
    with subprocess.Popen(script, stdin=theirs, stdout=theirs, stderr=theirs, env=kept) as process:
        os.close(theirs)
        said, typed = b"", 0
        while True:
            try:
                said += os.read(ours, 4096)
            except OSError:  # its other end was closed
                break
            if not typed and b"asleep" in said:
                typed = os.write(ours, b"\x03")
        os.close(ours)
        assert process.wait() == 0, said
    return said.decode().replace("^C", "")


@pytest.mark.parametrize("width", [20, 80, 0])
def test_a_real_terminal_is_restored(width):
    said = in_a_terminal(width)
    *lines, end = [line for line in screen_of(said) if line]
    rounds = [line for line in lines if line.startswith("round ")]
    assert len(rounds) == 3
    assert not [line for line in lines if "client 3/10" in line]  # the bar is nowhere in what has scrolled by
    assert lines.index("warning: of round 2") == lines.index(rounds[1]) - 1
    assert max(map(len, rounds)) < (width or 80)
    assert end == "interrupted"
    assert "\x1b[38;" in said
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")
    below = re.findall(r"round 2/3  left \d:\d\d  client 3/10", said)
    assert below or width == 20


def test_colours_and_control_characters_can_be_disabled():
    assert not re.search(r"\x1b\[[0-9;]*m", in_a_terminal(80, NO_COLOR="1").replace("\x1b[0m", ""))
    assert "\x1b" not in in_a_terminal(80, TERM="dumb")


def test_quiet_shows_nothing_and_pipes_get_lines():
    assert type(progress(True)) is Progress
    assert type(progress(False)) is Plain


def test_the_time_left_ends_at_a_pause(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    whole, part, timed = Plain(), Plain(), Plain()
    for display, pause in ((whole, None), (part, Pause(5, math.inf)), (timed, Pause(10, 125.0))):
        display.start("x", 2, 10, 1, pause)
    assert whole._left(2) is None
    now[0] = 120.0  # 20 s for 2 rounds
    assert (whole._left(4), part._left(4), timed._left(4)) == (60.0, 10.0, 5.0)
    now[0] = 130.0
    assert timed._left(5) == 0.0
