"""Silos that the server's operator excludes from a run, and includes again."""

import json

from commands import call
from federations import audited, finished
from recipe_texts import SILOS

from fl_labelskew_plugins.runtimes.silo import members

SLOW = ["train_args.epochs=20", "method_args.method=fedshift"]


def test_a_silo_is_excluded_from_a_running_federation_and_readmitted(federation):
    federation.host, federation.overrides = "none", [*SLOW, "train_args.comm_round=8"]
    server, silos = federation.server(), federation.silos()
    silos[1].says("round 1: trained")
    out = call("silo", "exclude", federation.run_dir, 2).stdout
    assert out == "silo 2 is excluded from the next round on; excluded now: 2\n"
    server.says("silo 2 is excluded")
    server.says("skipped")
    assert "connected, excluded" in call("status", federation.run_dir).stdout
    assert call("silo", "include", federation.run_dir, 2).stdout.endswith("; excluded now: none\n")
    server.says("silo 2 is included")
    finished(server, *silos)
    for key in ("left_out", "opening_left_out"):
        left_out = [line.get(key) for line in federation.lines()]
        first = left_out.index([1])
        last = 8 - left_out[::-1].index([1])
        assert left_out == [None] * first + [[1]] * (last - first) + [None] * (8 - last)
        assert 1 <= first < last < 8
    assert "silo 2 has disconnected" not in server.text.partition("round 8/8")[0]  # it has stayed connected
    assert "missed the deadline" not in server.text
    noted = [(line["event"], line["rank"]) for line in audited(federation.run_dir, "excluded", "included")]
    assert noted == [("excluded", 2), ("included", 2)]


def test_the_server_reports_too_few_remaining_silos(federation):
    federation.host = "none"
    federation.overrides = [*SLOW, "train_args.comm_round=9", "comm_args.quorum_timeout_s=2"]
    server, silos = federation.server(), federation.silos()
    silos[0].says("round 1: trained")
    for rank in (1, 3):
        members.exclude(federation.run_dir, rank)
    assert server.wait() == 1
    last = server.text.splitlines()[-1]
    needs = "(comm_args.min_clients, quorum_timeout_s)"
    assert f"1 of at least 2 silos are connected after 2 s {needs}, excluded: 1, 3 " in last
    assert f"(labelskew silo include {federation.run_dir} RANK); to resume: " in last
    assert all("the run is over" not in silo.text for silo in silos)


def put(folder, ranks):
    (folder / members.NAME).write_text(ranks if isinstance(ranks, str) else json.dumps(ranks))


def test_a_running_server_reports_changes_of_the_exclusion_list(tmp_path, capsys):
    lines, notes = [], []
    now = members.ExcludedSilos(tmp_path, 3, lines.append, lambda event, **facts: notes.append((event, facts)))
    assert (now.read(), str(now), lines) == (False, "", [])
    put(tmp_path, [2, 7])
    assert (now.read(), now.read(), now.clients) == (True, False, {1})
    assert str(now) == f", excluded: 2 (labelskew silo include {tmp_path} RANK)"
    for broken in ("[1", "1", '["x"]', '{"1": 2'):
        put(tmp_path, broken)
        assert (now.read(), now.read(), now.clients) == (False, False, {1})
    put(tmp_path, [1])
    assert now.read()
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 4
    assert all(line.startswith(f"warning: {tmp_path / 'excluded.json'}: cannot be read: ") for line in warnings)
    assert lines == ["silo 2 is excluded", "silo 1 is excluded", "silo 2 is included"]
    assert notes[0] == ("excluded", {"rank": 2})


def test_other_silos_are_drawn_instead_of_excluded_ones(tmp_path):
    now = members.ExcludedSilos(tmp_path, 6, print, lambda event, **facts: None)
    assert now.select_clients([1, 3], 0, 5) == [1, 3]
    now.clients = {3, 4}
    drawn = [now.select_clients([1, 3], round, 5) for round in range(40)]
    assert drawn == [now.select_clients([1, 3], round, 5) for round in range(40)]
    assert set(map(tuple, drawn)) == {(0, 1), (1, 2), (1, 5)}
    assert now.select_clients(range(6), 0, 5) == [0, 1, 2, 5]
    assert all(type(k) is int for k in drawn[0])


def test_mistakes_are_one_line_errors(tmp_path, sp_run):
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(SILOS)

    def mistake(*words):
        result = call("silo", *words, code=2)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        return line.removeprefix("error: ").replace(str(tmp_path), "")

    assert mistake("exclude", tmp_path / "none", 1) == "/none: no such folder; use the folder of the server's run"
    assert mistake("exclude", tmp_path / "empty", 1).startswith("/empty: contains no recipe.yaml; ")
    assert "is not a cross-silo run; " in mistake("exclude", sp_run(), 1)
    assert mistake("exclude", tmp_path / "run", 4) == "/run: the run has no silo 4; allowed: 1 to 3"
    assert mistake("include", tmp_path / "run", 2) == "/run: silo 2 is not excluded; no silo of this run is excluded"
    call("silo", "exclude", tmp_path / "run", 3)
    assert mistake("exclude", tmp_path / "run", 3).startswith("/run: silo 3 is already excluded; ")
    assert mistake("include", tmp_path / "run", 2) == "/run: silo 2 is not excluded; excluded: 3"
    put(tmp_path / "run", "nonsense")
    assert "cannot be read" in mistake("include", tmp_path / "run", 3)
