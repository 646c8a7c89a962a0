"""Encrypted keys, and the ways of a passphrase to them."""

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from fl_labelskew_registry import LabelSkewError
from mistakes import message

from fl_labelskew_plugins.runtimes.silo import certs, issuing, keys, revocation
from fl_labelskew_plugins.runtimes.silo.keys import Passphrase

WORD = "correct horse, größer"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of encrypted keys; not to be changed."""
    folder = tmp_path_factory.mktemp("keys") / "certs"
    issuing.new(folder, 1, encrypt=True, passphrase=open_with(WORD))
    return folder


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    """No variable, no terminal."""
    monkeypatch.delenv(keys.VARIABLE, raising=False)
    monkeypatch.setattr(keys, "_terminal", lambda: False)


@pytest.fixture
def typed(monkeypatch):
    """A terminal at which these words are typed; what it asked for."""
    questions = []

    def type_(*words):
        left = iter(words)

        def getpass(question):
            questions.append(question)
            if (word := next(left, None)) is None:
                raise EOFError
            return word

        monkeypatch.setattr(keys, "_terminal", lambda: True)
        monkeypatch.setattr(keys.getpass, "getpass", getpass)
        return questions

    return type_


def open_with(word):
    """A passphrase of a file descriptor."""
    reading, writing = os.pipe()
    os.write(writing, word if isinstance(word, bytes) else f"{word}\n".encode())
    os.close(writing)
    return Passphrase(reading)


def test_every_key_is_encrypted_and_read_back_plain(made):
    for path in made.glob("*.key"):
        content = path.read_bytes()
        assert content.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
        assert path.stat().st_mode & 0o777 == 0o600
        private = serialization.load_pem_private_key(content, WORD.encode())  # by nothing of ours
        plain = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        if path.stem != "ca":
            assert certs.read(made, path.stem, open_with(WORD)).key == plain


def test_a_key_that_somebody_else_encrypted_is_read_too(tmp_path):
    issuing.new(tmp_path, 1)
    path = tmp_path / "silo-1.key"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    hidden = serialization.BestAvailableEncryption(WORD.encode())
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, hidden)
    )
    assert certs.read(tmp_path, "silo-1", open_with(WORD)).key == keys.pem(key)
    with pytest.raises(LabelSkewError, match=r"silo-1\.key: does not open with the passphrase of --passphrase-fd"):
        certs.read(tmp_path, "silo-1", open_with("wrong"))


def test_a_plain_key_asks_for_nothing(tmp_path, typed):
    questions = typed()
    issuing.new(tmp_path, 1)
    certs.read(tmp_path, "silo-1")
    assert questions == []


def test_the_descriptor_goes_before_the_variable_and_that_before_the_terminal(made, typed, monkeypatch):
    questions = typed(WORD)
    certs.read(made, "server")
    assert questions == [f"passphrase of {made}/server.key: "]
    monkeypatch.setenv(keys.VARIABLE, WORD)
    certs.read(made, "server")
    monkeypatch.setenv(keys.VARIABLE, "wrong")
    certs.read(made, "server", open_with(WORD))
    assert len(questions) == 1


def test_one_passphrase_is_asked_for_once_and_goes_on_to_processes_of_ours(made, typed):
    questions = typed(WORD)
    passphrase = Passphrase()
    assert passphrase.environment() == {}
    certs.read(made, "server", passphrase)
    certs.read(made, "silo-1", passphrase)
    assert len(questions) == 1
    assert passphrase.environment() == {keys.VARIABLE: WORD}
    assert WORD not in repr(passphrase)


def test_a_new_passphrase_is_typed_twice(tmp_path, typed):
    questions = typed("one", "two", WORD, WORD)
    with pytest.raises(LabelSkewError, match="the two passphrases differ; nothing is written"):
        issuing.new(tmp_path / "certs", 1, encrypt=True)
    assert not (tmp_path / "certs").exists()
    issuing.new(tmp_path / "certs", 1, encrypt=True)
    assert questions == [f"new passphrase of {tmp_path}/certs/ca.key: ", "once more: "] * 2
    assert certs.read(tmp_path / "certs", "silo-1", open_with(WORD))


def test_an_encrypted_authority_makes_encrypted_keys_alone_and_opens_for_everything(tmp_path):
    issuing.new(tmp_path, 1, encrypt=True, passphrase=open_with(WORD))
    for work in (
        lambda passphrase: issuing.new(tmp_path, 2, add=True, passphrase=passphrase),
        lambda passphrase: issuing.renew(tmp_path, ["silo-1"], passphrase=passphrase),
        lambda passphrase: revocation.revoke(tmp_path, ["server"], passphrase=passphrase),
    ):
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        with pytest.raises(LabelSkewError, match=r"ca\.key: does not open with the passphrase of --passphrase-fd \d+"):
            work(open_with("wrong"))
        with pytest.raises(LabelSkewError, match=r"ca\.key: needs a passphrase, and there is no terminal"):
            work(None)
        assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        work(open_with(WORD))
    assert all(keys.encrypted(path.read_bytes()) for path in tmp_path.glob("*.key"))


def test_keys_of_a_plain_authority_can_be_encrypted(tmp_path, typed):
    issuing.new(tmp_path, 1)
    questions = typed(WORD, WORD)
    issuing.renew(tmp_path, ["silo-1"], encrypt=True)
    assert len(questions) == 2
    assert [path.name for path in tmp_path.glob("*.key") if keys.encrypted(path.read_bytes())] == ["silo-1.key"]


@pytest.mark.parametrize("word", [b"\n", b"", b"a\0b\n", b"a" * 1001 + b"\n", b"a" * 5000])
def test_what_is_no_passphrase_is_said(made, word):
    with pytest.raises(LabelSkewError, match=r"^--passphrase-fd \d+: is no passphrase; use 1 to 1000 bytes"):
        certs.read(made, "server", open_with(word))


def test_where_a_passphrase_is_missing_or_wrong_is_said(made, typed, monkeypatch):
    def said(passphrase=None):
        text = message(lambda: certs.read(made, "server", passphrase))
        assert "wrong" not in text
        return text.removeprefix(f"{made}/server.key: ")

    missing = f"needs a passphrase, and there is no terminal to ask for it; set {keys.VARIABLE}, or use --passphrase-fd"
    assert said() == missing
    assert said(Passphrase(987)) == "--passphrase-fd 987: cannot be read: Bad file descriptor"
    monkeypatch.setenv(keys.VARIABLE, "wrong")
    assert said() == f"does not open with the passphrase of {keys.VARIABLE}, or it is damaged"
    monkeypatch.setenv(keys.VARIABLE, "")
    assert said().startswith(f"{keys.VARIABLE}: is no passphrase")
    monkeypatch.delenv(keys.VARIABLE)
    typed("wrong")
    assert said() == "does not open with the passphrase of the terminal, or it is damaged"
    assert said() == "no passphrase was typed"


def test_a_file_that_others_can_read_is_warned_of(tmp_path):
    path = Path(tmp_path / "secret")
    path.touch()
    for mode, warnings in ((0o600, []), (0o400, []), (0o640, [f"{path}: can be read by others; use chmod 600"])):
        path.chmod(mode)
        assert list(keys.readable_by_others(path)) == warnings
