from unittest.mock import Mock, call

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from error_messages import message

from fl_labelskew_plugins.runtimes.silo import certs, keys
from fl_labelskew_plugins.runtimes.silo.keys import Passphrase

WORD = "correct horse, größer"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of encrypted keys; not to be changed."""
    folder = tmp_path_factory.mktemp("keys") / "certs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(keys.VARIABLE, WORD)
        certs.new(folder, 1, encrypt=True)
    return folder


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    monkeypatch.delenv(keys.VARIABLE, raising=False)
    monkeypatch.setattr(keys, "_terminal", lambda: False)


@pytest.fixture
def word(monkeypatch):
    return lambda word=WORD: monkeypatch.setenv(keys.VARIABLE, word)


@pytest.fixture
def typed(monkeypatch):
    """A terminal with this input; its prompts are the arguments of the calls."""

    def type_(*words):
        getpass = Mock(side_effect=[*words, EOFError])
        monkeypatch.setattr(keys, "_terminal", lambda: True)
        monkeypatch.setattr(keys.getpass, "getpass", getpass)
        return getpass

    return type_


def test_every_key_is_encrypted_and_read_back_plain(made, word):
    word()
    for path in made.glob("*.key"):
        content = path.read_bytes()
        assert content.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
        assert path.stat().st_mode & 0o777 == 0o600
        private = load_pem_private_key(content, WORD.encode())  # by nothing of ours
        if path.stem != "ca":
            assert certs.read(made, path.stem).key == keys.pem(private)


def test_a_key_encrypted_by_another_program_is_read(tmp_path, word):
    certs.new(tmp_path, 1)
    path = tmp_path / "silo-1.key"
    key = load_pem_private_key(path.read_bytes(), None)
    hidden = serialization.BestAvailableEncryption(WORD.encode())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(key.private_bytes(*form, hidden))
    word()
    assert certs.read(tmp_path, "silo-1").key == keys.pem(key)
    word("wrong")
    line = f"{path}: the passphrase from {keys.VARIABLE} does not decrypt it"
    assert message(lambda: certs.read(tmp_path, "silo-1")).startswith(line)


def test_a_passphrase_is_read_once_from_the_variable_or_the_terminal(made, typed, word):
    getpass, passphrase = typed(WORD), Passphrase()
    assert passphrase.environment() == {}
    certs.read(made, "server", passphrase)
    certs.read(made, "silo-1", passphrase)
    assert getpass.mock_calls == [call(f"passphrase of {made}/server.key: ")]
    assert passphrase.environment() == {keys.VARIABLE: WORD}
    assert WORD not in repr(passphrase)
    word()
    certs.read(made, "server")
    assert getpass.call_count == 1


def test_a_new_passphrase_is_typed_twice(tmp_path, typed, word):
    getpass = typed("one", "two", WORD, WORD)
    line = "the two passphrases differ; nothing is written"
    assert message(lambda: certs.new(tmp_path / "certs", 1, encrypt=True)) == line
    assert not (tmp_path / "certs").exists()
    certs.new(tmp_path / "certs", 1, encrypt=True)
    assert getpass.mock_calls == [call(f"new passphrase of {tmp_path}/certs/ca.key: "), call("repeat it: ")] * 2
    word()
    assert certs.read(tmp_path / "certs", "silo-1")


def test_an_encrypted_authority_creates_only_encrypted_keys(tmp_path, word, monkeypatch):
    word()
    certs.new(tmp_path, 1, encrypt=True)
    for work in (
        lambda: certs.new(tmp_path, 2, add=True),
        lambda: certs.renew(tmp_path, ["silo-1"]),
        lambda: certs.revoke(tmp_path, ["server"]),
    ):
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        word("wrong")
        assert f"ca.key: the passphrase from {keys.VARIABLE} does not decrypt it" in message(work)
        monkeypatch.delenv(keys.VARIABLE)
        assert "ca.key: needs a passphrase, and no terminal is available" in message(work)
        assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        word()
        work()
    assert all(keys.encrypted(path.read_bytes()) for path in tmp_path.glob("*.key"))


def test_keys_of_a_plain_authority_can_be_encrypted(tmp_path, typed):
    certs.new(tmp_path, 1)
    getpass = typed(WORD, WORD)
    certs.renew(tmp_path, ["silo-1"], encrypt=True)
    assert getpass.call_count == 2
    assert [path.name for path in tmp_path.glob("*.key") if keys.encrypted(path.read_bytes())] == ["silo-1.key"]


def test_a_missing_or_wrong_passphrase_is_an_error_that_does_not_show_it(made, typed, word, monkeypatch):
    def said():
        text = message(lambda: certs.read(made, "server"))
        assert "wrong" not in text
        return text.removeprefix(f"{made}/server.key: ")

    assert said() == f"needs a passphrase, and no terminal is available; set {keys.VARIABLE}"
    word("wrong")
    assert said() == f"the passphrase from {keys.VARIABLE} does not decrypt it, or it is damaged"
    monkeypatch.delenv(keys.VARIABLE)
    typed("wrong")
    assert said() == "the passphrase from the terminal does not decrypt it, or it is damaged"
    assert said() == "no passphrase was typed"
    for wrong in ("", "a" * 1001):
        word(wrong)
        assert said().startswith(f"{keys.VARIABLE}: invalid passphrase; use 1 to 1000 bytes")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("silo-1", 1),
        ("silo-10", 10),
        *[(name, 0) for name in ("silo-0", "silo-01", "silo-", "silo-1 ", "silo-1\n", "silo-٣", "silo--1")],
        *[(name, 0) for name in ("server", "", "Silo-1", "silo-1-2", "silo-9999999999")],
    ],
)
def test_only_a_silos_name_has_a_rank(name, rank):
    assert keys.rank_of(name) == rank
