import json
import re
from pathlib import Path

import commands
import pytest

import fl_labelskew_plugins
from fl_labelskew_plugins.ledgers.audit import EVENTS, NAME, Audit


@pytest.fixture
def folder(tmp_path):
    log = Audit()
    log.open(tmp_path, "server")
    log.note("connected", rank=1, peer="192.0.2.1:4711", fingerprint="ab" * 32)
    log.note("received", rank=1, kind="UPLOAD", round=0, bytes=450, sha256="cd" * 32)
    log.note("refused", rank=2, reason="sent a pickle")
    log.close()
    return tmp_path


def call(*args, code=0):
    return commands.call("audit", *args, code=code, COLUMNS="300")


def test_all_lines_or_those_of_one_event_are_shown(folder):
    shown = call("show", folder).stdout.splitlines()
    assert shown[0].split() == ["time", "event", "rank", "kind", "round", "bytes", "peer", "sha256", "more"]
    assert [line.split()[1] for line in shown[1:]] == ["began", "opened", "connected", "received", "refused", "closed"]
    assert "UPLOAD  0      450    " in shown[4]
    assert "cdcdcdcdcdcd" in shown[4]
    assert shown[5].endswith("sent a pickle")
    assert "sent a pickle" in call("show", folder, "--event", "refused").stdout.splitlines()[1]
    assert call("show", folder, "--event", "left").stdout == "no matching lines\n"
    error = call("show", folder, "--event", "refsued", code=2).stderr
    assert error.startswith("error: --event: 'refsued' is unknown; allowed: connected, left, refused, ")
    assert error.endswith("; did you mean refused?\n")
    (folder / "empty").mkdir()
    for words in (["verify", folder / "empty"], ["show", folder / "none"]):
        assert "use the folder of a server's run" in call(*words, code=2).stderr


def test_selectable_events_are_the_recorded_events():
    source = "".join(path.read_text() for path in Path(fl_labelskew_plugins.__file__).parent.rglob("*.py"))
    noted = set(re.findall(r'\bnote\("([a-z][a-z ]*)"|"event": "([a-z ]+)"|_note\("([a-z ]+)"', source))
    assert {name for names in noted for name in names if name} <= set(EVENTS)


def test_a_whole_log_is_ok_and_a_changed_one_is_exit_code_1(folder):
    file = folder / NAME
    told = call("verify", folder).stdout
    assert told.startswith("ok: 6 lines in 1 file, last line's SHA-256 ")
    call("verify", folder, "--last", told.split()[-1].upper())
    assert "no line has" in call("verify", folder, "--last", "00", code=1).stderr
    file.write_text(file.read_text().replace('"bytes": 450', '"bytes": 451'))
    assert call("verify", folder, code=1).stderr == (
        f"error: {NAME} line 5: this line does not follow {NAME} line 4; one of them was changed, or lines were "
        "removed or moved\n"
    )


def test_text_added_by_hand_is_shown_without_control_characters(folder):
    lines = (folder / NAME).read_text().splitlines()
    forged = json.loads(lines[3]) | {"reason": "\x1b[31m", "kind": ["\x1b"], "peer": {"a": "\n"}}
    (folder / NAME).write_text("\n".join([*lines[:3], json.dumps(forged)]) + "\n")
    assert "\x1b" not in call("show", folder).stdout
