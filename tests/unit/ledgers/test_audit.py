import contextlib
import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from error_messages import message
from fl_labelskew_registry import RunError

from fl_labelskew_plugins.ledgers import audit
from fl_labelskew_plugins.ledgers.audit import NAME, Audit
from fl_labelskew_plugins.runs.folder import RunFolder


def write(folder, count=5):
    log = Audit()
    log.open(folder, "server")
    for number in range(count):
        log.note("sent", rank=1, kind="TRAIN", round=number, bytes=100)
    return log.close()


def lines(folder, name=NAME):
    return (folder / name).read_bytes().splitlines()


def events(folder):
    return [content["event"] for _, _, content in audit.read(folder)]


def test_each_line_has_the_digest_of_the_line_before_it(tmp_path):
    hashes = write(tmp_path)
    before = ""
    for line in lines(tmp_path):
        assert json.loads(line)["before"] == before
        before = hashlib.sha256(line).hexdigest()
    assert hashes == f"audit log: {tmp_path / NAME}, last line's SHA-256 {before}; keep that elsewhere"
    assert events(tmp_path) == ["began", "opened", *["sent"] * 5, "closed"]
    assert audit.verify(tmp_path) == audit.Verified(8, 1, 0, 0, before)
    assert audit.verify(tmp_path, before).last == before


def changed(number, old=b'"round": 2', new=b'"round": 3'):
    def change(file):
        all_lines = lines(file.parent)
        assert old in all_lines[number]
        all_lines[number] = all_lines[number].replace(old, new)
        file.write_bytes(b"\n".join(all_lines) + b"\n")

    return change


def ordered(*numbers):
    return lambda file: file.write_bytes(b"".join(lines(file.parent)[number] + b"\n" for number in numbers))


@pytest.mark.parametrize(
    ("harm", "where"),
    [
        (changed(4), f"{NAME} line 6: this line does not follow {NAME} line 5;"),
        (changed(0, b"began", b"begun"), f"{NAME} line 1: is not the start of a log;"),
        (changed(0, b'"log": "', b'"log": "0'), f"{NAME} line 2: this line does not follow {NAME} line 1;"),
        (ordered(0, 1, 2, 4, 5, 6, 7), f"{NAME} line 4: this line does not follow"),
        (ordered(0, 1, 3, 2, 4, 5, 6, 7), f"{NAME} line 3: this line does not follow"),
        (ordered(0, 1, 2, 2, 3, 4, 5, 6, 7), f"{NAME} line 4: this line does not follow"),
        (ordered(1, 2, 3), f"{NAME} line 1: is not the start of a log;"),
        (changed(4, b'"round": 2', b"\x1b[31m"), f"{NAME} line 5: is not a line of an audit log;"),
        (changed(4, b'"before"', b'"after"'), f"{NAME} line 5: is not a line of an audit log;"),
        (lambda file: file.write_bytes(b"[" * 100_000), f"{NAME} line 1: is not a line of an audit log;"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), f"{NAME} line 8: is incomplete"),
        (lambda file: file.write_bytes(b""), "the log is empty"),
    ],
)
def test_every_changed_removed_or_moved_line_is_named(tmp_path, harm, where):
    write(tmp_path)
    harm(tmp_path / NAME)
    line = message(lambda: audit.verify(tmp_path), kind=RunError)
    assert where in line
    assert line.isprintable()


def test_a_missing_end_is_detected_with_the_last_digest(tmp_path):
    last = write(tmp_path).partition("SHA-256 ")[2][:64]
    ordered(*range(7))(tmp_path / NAME)
    assert audit.verify(tmp_path).lines == 7
    assert "no line has the SHA-256" in message(lambda: audit.verify(tmp_path, last), kind=RunError)


def test_the_log_continues_after_a_restart_and_in_a_new_file(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "MAX_FILE_BYTES", 2000)
    for _ in range(3):
        write(tmp_path, 20)
    names = [path.name for path in audit.files(tmp_path)]
    assert names[:2] == ["audit-000001.jsonl", "audit-000002.jsonl"]
    assert names[-1] == NAME
    assert all(path.stat().st_size <= 2000 for path in audit.files(tmp_path))
    assert events(tmp_path) == ["began", *["opened", *["sent"] * 20, "closed"] * 3]
    assert audit.verify(tmp_path).lines == 67
    last = json.loads(lines(tmp_path, names[1])[0])
    assert last["before"] == hashlib.sha256(lines(tmp_path, names[0])[-1]).hexdigest()
    (tmp_path / names[1]).unlink()
    line = f"{names[2]} line 1: this line does not follow {names[0]} line"
    assert line in message(lambda: audit.verify(tmp_path), kind=RunError)
    (tmp_path / names[0]).unlink()
    assert f"{names[2]} line 1: is not the start of a log" in message(lambda: audit.verify(tmp_path), kind=RunError)


@pytest.mark.parametrize("kept", [1, 60, -30, -1])
def test_an_incomplete_last_line_is_repaired_and_reported(tmp_path, kept):
    write(tmp_path)
    file = tmp_path / NAME
    *whole, last = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(whole) + last[:kept])
    write(tmp_path, 1)
    assert events(tmp_path)[6:] == ["sent", "repaired", "opened", "sent", "closed"]
    cut = json.loads(lines(tmp_path)[7])
    assert cut["bytes"] == len(last[:kept])
    assert cut["reason"] == last[:kept].decode().strip()
    assert audit.verify(tmp_path).repaired == 1
    file.write_bytes(b'{"time": "20')  # in the first line
    write(tmp_path, 1)
    assert events(tmp_path) == ["began", "repaired", "opened", "sent", "closed"]
    audit.verify(tmp_path)


def test_a_full_disk_is_one_warning_and_the_log_records_the_gap(tmp_path, monkeypatch):
    said, real, room = [], os.write, [10**6]

    def write_what_fits(file, data):
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        written = real(file, bytes(data)[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(audit.os, "write", write_what_fits)
    monkeypatch.setattr(audit.log, "warn", said.append)
    log = Audit()
    log.open(tmp_path, "server")
    room[0] = 30  # the next line is cut in half
    for number in range(4):
        log.note("sent", round=number)
    assert lines(tmp_path)[-1].startswith(b'{"time"')
    room[0] = 10**6
    log.note("sent", round=4)
    log.close()
    assert said == [
        f"{tmp_path / NAME}: cannot be written: No space left on device; the run continues, and the log will list "
        "missing lines"
    ]
    assert events(tmp_path) == ["began", "opened", "repaired", "gap", "sent", "closed"]
    assert json.loads(lines(tmp_path)[3])["times"] == 4
    assert audit.verify(tmp_path).missing == 4


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path, monkeypatch):
    said, gone = [], tmp_path / "gone"
    monkeypatch.setattr(audit.log, "warn", said.append)
    log = Audit()
    log.open(gone, "silo-1")
    log.note("connected")
    assert len(said) == 1
    gone.mkdir()
    log.note("left")
    assert "last line's SHA-256" in log.close()
    assert events(gone) == ["began", "gap", "left", "closed"]
    assert json.loads(lines(gone)[1])["times"] == 2
    shutil.rmtree(gone)
    log.open(gone, "silo-1")
    assert log.close().startswith("audit log: ")
    assert len(said) == 1


def test_endless_connections_do_not_fill_the_disk(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(audit.time, "monotonic", lambda: clock[0])
    log = Audit()
    log.open(tmp_path, "server")
    for _ in range(1000):
        log.note("refused", rank=3, reason="a bad message")
        log.note("refused", rank=2, reason="x") if _ < 3 else None
    clock[0] = 61.0
    log.note("connected", rank=3)
    log.close()
    assert events(tmp_path).count("refused") == audit.EVENTS_PER_MINUTE["refused"] + 3
    hashes = [content for _, _, content in audit.read(tmp_path) if content["event"] == "repeated"]
    assert [(line["rank"], line["times"], line["reason"]) for line in hashes] == [(3, 940, "refused")]
    audit.verify(tmp_path)


def test_repeats_of_an_answer_do_not_hide_another_answer(tmp_path):
    log = Audit()
    log.open(tmp_path, "silo-1")
    for _ in range(1300):
        log.note("sent", rank=0, kind="UPLOAD", round=0)
    log.note("sent", rank=0, kind="UPLOAD", round=1)
    log.note("run", run="another")
    log.note("sent", rank=0, kind="UPLOAD", round=0)
    log.close()
    found = [content for _, _, content in audit.read(tmp_path) if content["event"] in ("sent", "repeated")]
    assert [line["round"] for line in found] == [0] * 60 + [1, 0, 0]
    assert (found[-1]["event"], found[-1]["kind"], found[-1]["times"]) == ("repeated", "UPLOAD", 1240)


def test_sums_of_tests_do_not_hide_the_sum_of_a_round(tmp_path):
    log = Audit()
    log.open(tmp_path, "silo-1")
    for _ in range(61):
        log.note("revealed", run="a", round=0, of="test")
    log.note("revealed", run="a", round=0)
    log.close()
    found = [content for _, _, content in audit.read(tmp_path) if content["event"] in ("revealed", "repeated")]
    assert [line.get("of") for line in found] == ["test"] * 60 + [None, "test"]


def test_refused_sums_of_any_rounds_have_one_limit(tmp_path):
    log = Audit()
    log.open(tmp_path, "silo-1")
    for round in range(1300):
        log.note("sum", run="a", round=round, reason="nothing to send")
    log.note("sum", run="a", round=0, silos=[1, 2])
    log.close()
    assert events(tmp_path).count("sum") == audit.MESSAGES_PER_MINUTE + 1


def test_many_runs_do_not_hide_the_run_of_an_answer(tmp_path):
    log = Audit()
    log.open(tmp_path, "silo-1")
    for _ in range(audit.MESSAGES_PER_MINUTE):
        log.note("run", run="a")
    for run in ("b", "c"):
        log.note("run", run=run)
        for round in (0, 1):
            log.note("sent", rank=0, kind="UPLOAD", round=round)
    log.close()
    lines = [content for _, _, content in audit.read(tmp_path)][audit.MESSAGES_PER_MINUTE + 2 :]
    found = [line.get("run", line.get("round")) for line in lines if line["event"] in ("run", "sent")]
    assert found == ["b", 0, 1, "c", 0, 1]


def test_foreign_text_is_cleaned_and_shortened(tmp_path):
    log = Audit()
    log.note("connected", rank=2)  # before the folder is known
    log.open(tmp_path, "server")
    assert events(tmp_path) == ["began", "opened", "connected"]
    log.note("refused", reason="\x1b[31m\nround 9/9  accuracy 99.99 %" + "x" * 10**6, peer="a\u2028b", rank=None)
    line = json.loads(lines(tmp_path)[-1])
    assert len(lines(tmp_path)[-1]) < 600
    assert line["reason"].startswith("?[31m?round 9/9")
    assert line["peer"] == "a?b"
    assert "rank" not in line


def test_lines_of_many_threads_are_one_chain(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "MAX_FILE_BYTES", 20_000)
    log = Audit()
    log.open(tmp_path, "server")

    def work(rank):
        for number in range(100):
            log.note("sent", rank=rank, round=number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    log.close()
    assert audit.verify(tmp_path).lines == 403


@pytest.mark.parametrize("interrupts", [False, True])
def test_a_signal_during_a_write_keeps_the_chain_valid(tmp_path, monkeypatch, interrupts):
    """What a finaliser notes comes after the line; Ctrl-C does not cut it."""
    log, real = Audit(), os.write
    log.open(tmp_path, "server")

    def interrupted(file, data):
        monkeypatch.setattr(audit.os, "write", real)
        if not interrupts:
            log.note("sent in part", rank=2)
        written = real(file, data)
        if interrupts:
            raise KeyboardInterrupt
        return written

    monkeypatch.setattr(audit.os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt) if interrupts else contextlib.nullcontext():
        log.note("sent", rank=1)
    log.close()
    assert events(tmp_path) == ["began", "opened", "sent", *["sent in part"] * (not interrupts), "closed"]
    audit.verify(tmp_path)


def test_a_server_without_silos_restarts_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "MAX_FILE_BYTES", 2000)
    write(tmp_path, 30)
    for name in ("fedml.yaml", "status.json", "status.json.part"):  # the last one cut short by a kill
        (tmp_path / name).touch()
    RunFolder(tmp_path).check_new()
    (tmp_path / "audit.txt").touch()
    assert "is not empty" in message(lambda: RunFolder(tmp_path).check_new())
