import subprocess
from datetime import datetime, timedelta, timezone
from unittest.mock import Mock

import pytest
from error_messages import message
from pem_files import mutate

from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runtimes.silo import certs, keys
from fl_labelskew_plugins.runtimes.silo.certs import Revocations, revoke
from fl_labelskew_plugins.runtimes.silo.keys import REVOKED


@pytest.fixture
def folder(tmp_path):
    certs.new(tmp_path / "certs", 3)
    return tmp_path / "certs"


@pytest.fixture
def watch(folder):
    """A list next to the server's certificate; its lines and warnings."""

    def watch(name="server", **options):
        said, warned = [], []
        made = Revocations(folder, certs.read(folder, name), print_line=said.append, warn=warned.append, **options)
        return made, said, warned

    return watch


def barred(revocations, folder):
    names = "server", "silo-1", "silo-2", "silo-3"
    return [name for name in names if revocations.barred((folder / f"{name}.pem").read_bytes())]


def crl(number, issuer, signer=None):
    """An empty list of one authority, which may be signed by another."""
    authority, key = certs.load_authority(issuer, keys.Passphrase())
    if signer:
        _, key = certs.load_authority(signer, keys.Passphrase())
    return certs._signed(certs.RevocationList(number), authority, key)


def test_openssl_accepts_the_list_and_refuses_revoked_certificates(folder):
    revoke(folder, ["silo-2"])

    def verify(name):
        command = ["openssl", "verify", "-crl_check", "-CAfile", folder / "ca.pem", "-CRLfile", folder / REVOKED]
        return subprocess.run([*command, folder / f"{name}.pem"], capture_output=True, text=True, check=False)

    assert verify("silo-1").returncode == 0
    refused = verify("silo-2")
    assert refused.returncode != 0
    assert "certificate revoked" in refused.stderr + refused.stdout


def test_lists_grow_in_number_and_in_certificates(folder, watch):
    assert certs.show(folder)[1] == certs.RevocationList()
    listed, new = revoke(folder, ["silo-2"])
    assert (listed.number, new, len(listed.entries)) == (1, 1, 1)
    (first,) = listed.entries.values()
    assert abs(datetime.now(timezone.utc) - first) < timedelta(minutes=1)
    assert revoke(folder, ["silo-2"]) == (listed, 0)
    listed, new = revoke(folder, ["silo-2", "server", "silo-3"])
    assert (listed.number, new, len(listed.entries)) == (2, 2, 3)
    assert certs.show(folder)[1] == listed
    made, *_ = watch("silo-1")
    assert barred(made, folder) == ["server", "silo-2", "silo-3"]
    line = made.barred((folder / "silo-2.pem").read_bytes())
    fingerprint = next(row[4] for row in certs.show(folder)[0] if row[1] == "silo-2")
    assert line == f"its certificate {fingerprint} was revoked on {first:%Y-%m-%d %H:%M} UTC"


def test_all_certificates_of_a_silo_are_revoked(folder, watch):
    old = (folder / "silo-2.pem").read_bytes()
    certs.renew(folder, ["silo-2"])
    made, *_ = watch()
    assert revoke(folder, ["silo-2"])[1] == 2
    assert made.barred(old)
    assert barred(made, folder) == ["silo-2"]
    certs.renew(folder, ["silo-2"])  # and so it may come back
    assert barred(made, folder) == []


def test_a_list_is_read_when_it_appears_and_when_it_changes(folder, watch):
    made, said, warned = watch()
    assert barred(made, folder) == []
    (folder / REVOKED).write_bytes(crl(1, folder))
    assert barred(made, folder) == []
    revoke(folder, ["silo-1"])
    assert barred(made, folder) == ["silo-1"]
    revoke(folder, ["silo-3"])
    assert barred(made, folder) == ["silo-1", "silo-3"]
    lists = "list 1 (0 revoked certificates)", "list 2 (1 revoked certificate)", "list 3 (2 revoked certificates)"
    assert said == [f"{listed} applies from now on" for listed in lists]
    assert warned == []


def damaged(folder):
    (folder / REVOKED).write_bytes((folder / REVOKED).read_bytes()[:200])


def changed(folder):
    serial = certs.load_certificate(folder / "silo-1.pem").serial_number
    old = serial.to_bytes((serial.bit_length() + 7) // 8, "big")
    mutate(folder / REVOKED, old, old[:3] + bytes([old[3] ^ 1]) + old[4:])


def of_another(folder):
    certs.new(folder / "other", 1)
    (folder / REVOKED).write_bytes(crl(9, folder / "other"))


def of_an_impostor(folder):
    """Another authority's, with this one's name."""
    certs.new(folder / "impostor", 1)
    (folder / REVOKED).write_bytes(crl(9, folder, signer=folder / "impostor"))


BAD = [
    (damaged, "is damaged or not a list of revoked certificates; copy it again from where the certificates were"),
    (
        lambda folder: mutate(folder / REVOKED, b"\x02\x01\x01\x30\x0a", b"\x02\x01\x05\x30\x0a"),  # its version
        "is damaged or not a list of revoked certificates",
    ),
    (changed, "is not signed by the authority of ca.pem, or was changed; copy it again from where"),
    (of_another, "is not signed by the authority of ca.pem, or was changed"),
    (of_an_impostor, "is not signed by the authority of ca.pem, or was changed"),
    (lambda folder: ((folder / REVOKED).unlink(), (folder / REVOKED).mkdir()), "cannot be read: Is a directory"),
]


@pytest.mark.parametrize(("spoil", "said"), BAD)
def test_an_untrusted_list_is_refused_and_the_last_valid_list_applies(folder, watch, spoil, said):
    revoke(folder, ["silo-1"])
    good = (folder / REVOKED).read_bytes()
    made, _, warned = watch()
    spoil(folder)
    assert barred(made, folder) == ["silo-1"]
    assert barred(made, folder) == ["silo-1"]
    (line,) = warned
    assert line.startswith(f"{folder / REVOKED}: {said}")
    assert line.endswith("; the last valid list, list 1 (1 revoked certificate), still applies")
    for begin in (watch, lambda: certs.show(folder), lambda: revoke(folder, ["silo-2"])):  # nor is it written anew
        assert message(begin).startswith(f"{folder / REVOKED}: {said}")
    if (folder / REVOKED).is_dir():
        (folder / REVOKED).rmdir()
    (folder / REVOKED).write_bytes(good)
    revoke(folder, ["silo-2"])
    assert barred(made, folder) == ["silo-1", "silo-2"]
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder, older: (folder / REVOKED).write_bytes(older), "list 1 is not newer than list 2"),
        (lambda folder, older: (folder / REVOKED).unlink(), "is missing after list 2"),
        (lambda folder, older: (folder / REVOKED).write_bytes(crl(2, folder)), "list 2 is not newer than list 2"),
    ],
)
def test_an_older_list_does_not_replace_a_newer_one(folder, watch, tmp_path, spoil, said):
    kept = tmp_path / "run" / REVOKED
    revoke(folder, ["silo-1"])
    older = (folder / REVOKED).read_bytes()
    made, _, warned = watch(copy=kept)
    made.save_copy()  # with nowhere to keep it
    kept.parent.mkdir()
    revoke(folder, ["silo-2"])
    assert barred(made, folder) == ["silo-1", "silo-2"]
    spoil(folder, older)
    assert barred(made, folder) == ["silo-1", "silo-2"]
    assert len(warned) == 1
    said = f"{folder / REVOKED}: {said}, which was seen here; copy the newest one"
    assert warned[0].startswith(said)
    # nor after a restart
    assert message(lambda: watch(copy=kept)) == said
    (folder / REVOKED).write_bytes(kept.read_bytes())
    assert barred(watch(copy=kept)[0], folder) == ["silo-1", "silo-2"]
    RunFolder(kept.parent).check_new()  # for a run that has not begun


def test_list_numbers_are_separate_for_each_authority(folder, watch, tmp_path):
    kept = tmp_path / "kept.crl"
    certs.new(tmp_path / "other", 1)
    kept.write_bytes(crl(9, tmp_path / "other"))
    revoke(folder, ["silo-1"])
    made, *_ = watch(copy=kept)
    made.save_copy()
    assert kept.read_bytes() == (folder / REVOKED).read_bytes()


def test_a_process_does_not_start_with_a_revoked_certificate(folder, watch):
    made, _, warned = watch("silo-1")
    listed, _ = revoke(folder, ["silo-1"])
    made.look()
    (entry,) = map(listed.entry, listed.entries)
    line = f"{folder}/silo-1.pem: was {entry}; use `labelskew certs renew silo-1` where it was created, and copy the"
    assert [text[: len(line)] for text in warned] == [line]
    assert message(lambda: watch("silo-1")).startswith(line)
    certs.renew(folder, ["silo-1"])
    watch("silo-1")


def test_errors_of_revoking(folder):
    line = f"{folder}: 'silo-4' is unknown; allowed: server, silo-1, silo-2, silo-3, all; did you"
    assert message(lambda: revoke(folder, ["silo-4"])).startswith(line)
    (folder / "ca.key").unlink()
    assert "ca.key: does not exist; use the machine on which" in message(lambda: revoke(folder, ["silo-1"]))
    assert not (folder / REVOKED).exists()


def test_a_full_disk_is_an_error(folder, monkeypatch):
    monkeypatch.setattr(keys, "write", Mock(side_effect=OSError(28, "No space left on device")))
    assert message(lambda: revoke(folder, ["silo-1"])) == f"{folder}: cannot be written: No space left on device"
