import re
from datetime import datetime, timedelta
from unittest.mock import Mock, patch

import pytest
from error_messages import message
from fl_labelskew_registry import LabelSkewError
from pem_files import mutate

from fl_labelskew_plugins.runtimes.silo import certs


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the certificates of two silos; not to be changed."""
    folder = tmp_path_factory.mktemp("made") / "certs"
    assert certs.new(folder, 2) == ["ca", "server", "silo-1", "silo-2"]
    return folder


@pytest.fixture
def folder(tmp_path):
    """The same, to be changed."""
    certs.new(tmp_path / "certs", 2)
    return tmp_path / "certs"


def aged(folder, silos, hosts=(), *, ago, **options):
    """Certificates that were made so many days ago, or, below 0, in the future."""
    clock = Mock(now=lambda tz: datetime.now(tz) - timedelta(days=ago))
    with patch.object(certs, "datetime", clock):
        certs.new(folder, silos, hosts, **options)


def test_nothing_is_overwritten(folder, tmp_path):
    (tmp_path / "silo-1.key").write_text("precious")
    assert "silo-1.key: exists already" in message(lambda: certs.new(tmp_path, 1))
    assert (tmp_path / "silo-1.key").read_text() == "precious"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "ca.pem: exists already; use --add" in message(lambda: certs.new(folder, 2))
    assert certs.new(folder, 4, add=True) == ["silo-3", "silo-4"]
    assert certs.new(folder, 4, add=True) == []
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before == {name: after[name] for name in before}
    for name in ("server", "silo-1", "silo-4"):
        assert certs.read(folder, name).warnings == ()
    (folder / "silo-1.key").unlink()  # not created again
    assert certs.new(folder, 4, add=True) == []


def test_certificates_are_renewed_with_new_keys_and_old_files_are_kept(tmp_path):
    aged(tmp_path, 2, ["fl.example.org"], ago=9, days=10)
    before = {name: certs.read(tmp_path, name) for name in ("server", "silo-1", "silo-2")}
    assert certs.renew(tmp_path, ["server", "silo-2", "server"]) == ["server", "silo-2"]
    after = {name: certs.read(tmp_path, name) for name in before}
    assert after["silo-1"] == before["silo-1"]
    for name in ("server", "silo-2"):
        assert after[name].ca == before[name].ca
        assert after[name].key != before[name].key
        assert after[name].warnings == () != before[name].warnings
        (kept,) = (tmp_path / "old").glob(f"{name}-*.pem")
        assert kept.read_bytes() == before[name].certificate
    assert certs.show(tmp_path)[0][1][-1] == "fl.example.org"
    certs.renew(tmp_path, ["all"], ["192.0.2.1"])
    assert certs.show(tmp_path)[0][1][-1] == "192.0.2.1"
    assert len(list((tmp_path / "old").iterdir())) == 5


@pytest.mark.parametrize(
    ("names", "hosts", "said"),
    [
        (["silo-3"], [], "{}: 'silo-3' is unknown; allowed: server, silo-1, silo-2, all; did you mean silo-"),
        (["ca"], [], "ca: the authority cannot be revoked or renewed; use `labelskew certs new` with another"),
        (["silo-1"], ["fl.example.org"], "--server: applies only to the server's certificate; renew `server` too, or"),
        (["server"], ["a b"], "--server: 'a b' is not a host name or an IP address"),
    ],
)
def test_errors_of_renewing(made, names, hosts, said):
    assert message(lambda: certs.renew(made, names, hosts)).startswith(said.format(made))


def test_an_added_certificate_lasts_no_longer_than_its_authority(folder):
    certs.new(folder, 3, days=20_000, add=True)
    until = {row[1].split()[0]: row[2] for row in certs.show(folder)[0]}
    assert until["silo-3"] == until["labelskew"]


@pytest.mark.parametrize(
    ("spoil", "arguments", "said"),
    [
        (lambda f: (f / "ca.key").unlink(), {}, "ca.key: does not exist; use the machine on which"),
        (lambda f: (f / "ca.key").write_text("no key"), {}, "ca.key: is not a private key from"),
        (lambda f: (f / "ca.key").write_bytes((f / "server.key").read_bytes()), {}, "ca.key: is not the key of"),
        (lambda f: (f / "ca.pem").unlink(), {}, "ca.pem: does not exist; use --add where"),
        (lambda f: None, {"hosts": ["fl.example.org"]}, "--server: {}/server.pem exists already; use `labelskew ce"),
    ],
)
def test_errors_of_adding(folder, spoil, arguments, said):
    spoil(folder)
    assert said.format(folder) in message(lambda: certs.new(folder, 3, add=True, **arguments))


def test_an_unwritable_folder_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written: Not a directory" in message(lambda: certs.new(tmp_path / "file" / "certs", 1))


def test_files_of_a_process_are_read_and_keys_are_readable_only_by_their_owner(made):
    files = certs.read(made, "silo-2")
    assert files.name == "silo-2"
    assert "PRIVATE" not in repr(files)
    names = ("ca.pem", "silo-2.pem", "silo-2.key")
    assert [files.ca, files.certificate, files.key] == [(made / name).read_bytes() for name in names]
    assert files.warnings == ()
    assert made.stat().st_mode & 0o777 == 0o700
    assert {key.stat().st_mode & 0o777 for key in made.glob("*.key")} == {0o600}
    names = {f"{name}.{ending}" for name in ("ca", "server", "silo-1", "silo-2") for ending in ("pem", "key")}
    assert {path.name for path in made.iterdir()} == names


def copy(folder, source, target):
    (folder / target).write_bytes((folder / source).read_bytes())


def of_another_authority(folder):
    certs.new(folder / "other", 1)
    (folder / "ca.pem").write_bytes((folder / "other" / "ca.pem").read_bytes())


MUTATIONS = {
    "version 6": (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"),
    "extension twice": (b"\x55\x1d\x0e", b"\x55\x1d\x13"),
    "curve": (b"\x2a\x86\x48\xce\x3d\x03\x01\x07", b"\x2a\x86\x48\xce\x3d\x03\x01\x77"),
}


@pytest.mark.parametrize("name", ["ca", "silo-1"])
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_certificate_that_is_damaged_inside(folder, name, mutation):
    mutate(folder / f"{name}.pem", *MUTATIONS[mutation])
    line = f"{folder}/{name}.pem: is not a PEM certificate from `labelskew certs new`"
    assert message(lambda: certs.show(folder)) == line
    assert message(lambda: certs.read(folder, "silo-1")) == line


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: (f / "ca.pem").unlink(), "ca.pem: does not exist; use `labelskew certs new` to create it"),
        (lambda f: (f / "silo-1.key").unlink(), "silo-1.key: does not exist"),
        (lambda f: ((f / "silo-1.pem").unlink(), (f / "silo-1.pem").mkdir()), "silo-1.pem: cannot be read: Is a dir"),
        (lambda f: (f / "silo-1.pem").write_text("hello"), "silo-1.pem: is not a PEM certificate"),
        (lambda f: (f / "silo-1.key").write_text("hello"), "silo-1.key: is not a private key"),
        (lambda f: copy(f, "silo-2.key", "silo-1.key"), "silo-1.key: is not the key of silo-1.pem; use the pair"),
        (
            lambda f: (copy(f, "silo-2.key", "silo-1.key"), copy(f, "silo-2.pem", "silo-1.pem")),
            "silo-1.pem: is the certificate of silo-2, not of silo-1",
        ),
        (of_another_authority, "silo-1.pem: was not issued by the authority of"),
    ],
)
def test_errors_of_files(folder, spoil, said):
    spoil(folder)
    assert message(lambda: certs.read(folder, "silo-1")).startswith(f"{folder}/{said}")


def test_a_certificate_is_refused_before_and_after_its_validity_until_it_is_renewed(tmp_path):
    aged(tmp_path, 1, ago=11, days=10)
    with pytest.raises(LabelSkewError, match=r"silo-1\.pem: expired on 20\d\d-\d\d-\d\d; use `labelskew certs renew`"):
        certs.read(tmp_path, "silo-1")
    expired = [warning.split("/")[-1][:18] for warning in certs.show(tmp_path)[2]]
    assert expired == ["server.pem: expire", "silo-1.pem: expire"]
    old = (tmp_path / "silo-1.pem").read_bytes()
    assert re.fullmatch(r"its certificate [0-9a-f]+ expired on .* UTC", certs.Revocations.expired(old))
    certs.renew(tmp_path, ["silo-1"])
    assert certs.read(tmp_path, "silo-1").warnings == ()
    assert certs.Revocations.expired((tmp_path / "silo-1.pem").read_bytes()) == ""
    aged(tmp_path / "early", 1, ago=-1)
    with pytest.raises(LabelSkewError, match=r"ca\.pem: is not valid before .* UTC; check this machine's clock"):
        certs.read(tmp_path / "early", "silo-1")


def test_warnings_for_an_expiring_certificate_and_an_unencrypted_key(tmp_path):
    certs.new(tmp_path, 1, days=29)
    (tmp_path / "silo-1.key").chmod(0o640)
    (tmp_path / "ca.key").chmod(0o400)
    for warnings in (certs.read(tmp_path, "silo-1").warnings, certs.show(tmp_path)[2][1:]):
        soon, opened = warnings
        assert soon.startswith(f"{tmp_path}/silo-1.pem: expires on ")
        assert opened == f"{tmp_path}/silo-1.key: can be read by others; use chmod 600"
