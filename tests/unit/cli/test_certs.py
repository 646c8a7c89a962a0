import contextlib
import os
import pty
import re
import sys

import commands
import pytest

pytestmark = pytest.mark.usefixtures("here")


def call(*args, code=0):
    result = commands.call("certs", *args, code=code)
    assert "PRIVATE" not in result.output
    return result


def test_new_prints_the_recipient_of_each_file():
    assert call("new", "--silos", "2").output.splitlines() == [
        "written to certs: ca, server, silo-1, silo-2",
        "to the server's host: ca.pem server.pem server.key",
        "to silo 1: ca.pem silo-1.pem silo-1.key",
        "to silo 2: ca.pem silo-2.pem silo-2.key",
        "do not copy ca.key to these machines: anyone who has ca.key can impersonate everyone",
    ]
    line = "error: certs/ca.pem: exists already; use --add to keep existing files, or another --out\n"
    assert call("new", "--silos", "2", code=2).stderr == line
    assert call("new", "--silos", "3", "--add").output.splitlines() == [
        "written to certs: silo-3",
        "to silo 3: ca.pem silo-3.pem silo-3.key",
    ]
    assert call("new", "--silos", "3", "--add").output == "written to certs: nothing, all files exist\n"


def test_show_prints_owner_and_expiry():
    call("new", "--silos", "11", "--out", "a", "--server", "fl.example.org", "--server", "192.0.2.1", "--days", "20")
    result = call("show", "a")
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["file", "owner", "until", "revoked", "fingerprint", "hosts"]
    named = [row.split()[0] for row in rows if ".pem" in row]
    assert named == ["ca.pem", "server.pem", *(f"silo-{k}.pem" for k in range(1, 12))]
    assert rows[1].endswith("fl.example.org 192.0.2.1")
    warnings = result.stderr.splitlines()
    assert len(warnings) == 12
    assert re.fullmatch(r"warning: a/server\.pem: expires on \d{4}-\d\d-\d\d, in 19 days", warnings[0])


def test_a_folder_without_certificates_is_an_error():
    for words in (["show"], ["revoke", "silo-1", "--certs"]):
        line = "error: .: contains no certificate; use a folder from `labelskew certs new`\n"
        assert call(*words, ".", code=2).stderr == line


def test_revoke_and_renew_print_the_recipient_of_each_file():
    call("new", "--silos", "2")
    assert call("revoke", "silo-2").output.splitlines() == [
        "written to certs/revoked.crl: list 1 (1 revoked certificate), 1 of them new",
        "to the server's host and every silo, next to their certificates: revoked.crl",
    ]
    assert call("revoke", "silo-2").output == "written to certs/revoked.crl: nothing, all of them are listed already\n"
    *rows, last = call("show", "certs").stdout.splitlines()
    columns = [re.split(" {2,}", row) for row in rows]
    assert [row[3] for row in columns[1:4]] == ["-"] * 3
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", columns[4][3])
    assert last == "revoked.crl: list 1 (1 revoked certificate)"
    assert call("renew", "silo-2", "server").output.splitlines() == [
        "to silo 2, which uses them after its next start: silo-2.pem silo-2.key",
        "to the server's host, which uses them after its next start: server.pem server.key",
        "the old certificates stay valid until they expire; to end that earlier: "
        "`labelskew certs revoke NAME`, then renew again",
    ]
    assert all(" - " in row for row in call("show", "certs").stdout.splitlines()[1:-1])
    line = "written to certs/revoked.crl: list 2 (5 revoked certificates), 4 of"
    assert call("revoke", "all").output.startswith(line)


def test_a_passphrase_is_asked_for_at_the_terminal_and_not_shown():
    def typed(*args, words):
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.pop("FL_LABELSKEW_KEY_PASSPHRASE", None)
            script = "from fl_labelskew_plugins.cli.main import main; main()"
            os.execv(sys.executable, [sys.executable, "-c", script, *args])
        shown, words = b"", list(words)
        with contextlib.suppress(OSError):  # its end
            while chunk := os.read(terminal, 1000):
                shown += chunk
                if chunk.endswith(b": ") and words:
                    os.write(terminal, words.pop(0).encode() + b"\n")
        os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode().replace("\r\n", "\n")

    code, shown = typed("certs", "new", "--silos", "1", "--encrypt", words=["grün 1", "grün 1"])
    assert code == 0
    assert shown.startswith("new passphrase of certs/ca.key: \nrepeat it: \nwritten to certs: ca, server, silo-1\n")
    code, shown = typed("certs", "renew", "silo-1", words=["grün 2"])
    assert code == 2
    line = "error: certs/ca.key: the passphrase from the terminal does not decrypt it, or it is damaged"
    assert shown.splitlines() == ["passphrase of certs/ca.key: ", line]
    assert typed("certs", "renew", "silo-1", words=["grün 1"])[0] == 0


@pytest.mark.parametrize("words", ["new", "new --silos 0", "new --silos 1 --days 0", "show", "revoke", "renew"])
def test_wrong_options_are_errors(words):
    assert "Error: " in call(*words.split(), code=2).output


@pytest.mark.parametrize("args", [("new", "--silos", "1"), ("show", "."), ("revoke", "silo-1"), ("renew", "silo-1")])
def test_without_cryptography_the_extra_is_named(monkeypatch, args):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert call(*args, code=2).stderr == (
        "error: a certificate needs cryptography, which is not installed; to install it: pip install "
        "'cryptography>=42' 'grpcio>=1.60' 'pycryptodome>=3.20'\n"
    )
