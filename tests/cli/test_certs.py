"""``labelskew certs``, in this process."""

import re
import sys

import pytest
from click.testing import CliRunner

from fl_labelskew_plugins.cli.main import main


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*args, code=0):
        result = CliRunner().invoke(main, ["certs", *args])
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        assert "PRIVATE" not in result.output
        return result

    return call


def test_new_says_what_goes_to_whom(call):
    assert call("new", "--silos", "2").output.splitlines() == [
        "written to certs: ca, server, silo-1, silo-2",
        "to the server's host: ca.pem server.pem server.key",
        "to silo 1: ca.pem silo-1.pem silo-1.key",
        "to silo 2: ca.pem silo-2.pem silo-2.key",
        "keep ca.key off all of them: who has it can pose as anybody",
    ]
    assert call("new", "--silos", "2", code=2).stderr == (
        "error: certs/ca.pem: exists already; --add, which keeps what is there, or another --out would be right\n"
    )
    assert call("new", "--silos", "3", "--add").output.splitlines() == [
        "written to certs: silo-3",
        "to silo 3: ca.pem silo-3.pem silo-3.key",
    ]
    assert call("new", "--silos", "3", "--add").output == "written to certs: nothing, all are there\n"


def test_show_tells_who_and_until_when(call):
    call("new", "--silos", "11", "--out", "a", "--server", "fl.example.org", "--server", "192.0.2.1", "--days", "20")
    result = call("show", "a")
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["file", "who", "until", "revoked", "fingerprint", "hosts"]
    named = [row.split()[0] for row in rows if ".pem" in row]
    assert named == ["ca.pem", "server.pem", *(f"silo-{k}.pem" for k in range(1, 12))]
    assert rows[1].endswith("fl.example.org 192.0.2.1")
    warnings = result.stderr.splitlines()
    assert len(warnings) == 12
    assert re.fullmatch(r"warning: a/server\.pem: expires on \d{4}-\d\d-\d\d, in 19 days", warnings[0])


def test_a_folder_without_certificates_is_said(call):
    assert call("show", ".", code=2).stderr == (
        "error: .: holds no certificate; use a folder that `labelskew certs new` made\n"
    )


@pytest.mark.parametrize("args", [("new",), ("new", "--silos", "0"), ("new", "--silos", "1", "--days", "0"), ("show",)])
def test_wrong_options_are_said(call, args):
    assert "Error: " in call(*args, code=2).output


@pytest.mark.parametrize("args", [("new", "--silos", "1"), ("show", ".")])
def test_without_cryptography_the_extra_is_named(call, monkeypatch, args):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert call(*args, code=2).stderr == (
        "error: certificates need cryptography, which is not installed; pip install 'fl-labelskew-plugins[grpc]' "
        "would be right\n"
    )
