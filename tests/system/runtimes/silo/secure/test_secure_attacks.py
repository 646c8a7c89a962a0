"""Servers and silos that cheat: each attempt ends with one line about the cause, and opens no single upload."""

import contextlib
import os
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from error_messages import message
from fl_labelskew_registry import Federation, LabelSkewError
from masked_rounds import RUN, Hospital, Play, attempt, naive, vectors
from scipy.stats import chisquare

from fl_labelskew_plugins.recipe.sections import CommArgs
from fl_labelskew_plugins.runtimes.silo import certs
from fl_labelskew_plugins.runtimes.silo.secure import account, masks, shares
from fl_labelskew_plugins.runtimes.silo.secure.attempt import OPENING, SecureError, listed
from fl_labelskew_plugins.runtimes.silo.secure.identity import Advert
from fl_labelskew_plugins.runtimes.silo.secure.server import ServerRound
from fl_labelskew_plugins.runtimes.silo.secure.silo import STEPS
from fl_labelskew_plugins.runtimes.silo.summed import SummedAnswers

ABOUT = attempt()
RANKS = range(1, 5)
WHERE = "secure aggregation, round 1: "


@pytest.fixture
def play(hospitals):
    """Four silos; a test runs their steps one by one."""
    return Play(hospitals(4), ABOUT, vectors(RANKS, ABOUT))


def refused(act, *args):
    """The one line of a refusal."""
    line = message(lambda: act(*args), kind=SecureError)
    assert line.startswith(WHERE)
    return line.removeprefix(WHERE)


def again(silo, step):
    """Have a silo forget that it has taken this step: a test asks it in several ways."""
    silo._done = STEPS.index(step)


def test_a_server_that_replaces_or_omits_a_silos_keys(play):
    """It would have the masks that others share with that silo; only the certificate's key can sign them."""
    play.upto(1)
    ours = masks.public(masks.key_pair(7))
    roster = dict(play.server.roster())
    replaced = {"share_key": ours, "mask_key": ours, "seed_key": ours}
    for field, value in replaced.items():
        shown = replace(Advert.unpack(roster[2]), **{field: value})
        why = "the keys of silo 2 are not signed with its certificate's key for this attempt; they were replaced"
        assert refused(play.silos[1].share, roster | {2: shown.pack()}).startswith(why)
        again(play.silos[1], "share")
    del roster[1]
    assert refused(play.silos[1].share, roster) == "the server's list does not contain this silo's keys"


def test_a_server_that_plays_silos_of_its_own(play, tmp_path):
    """Certificates of another authority, of another silo and of the server are none."""
    play.upto(1)
    certs.new(tmp_path / "certs", 3)
    forged = Hospital(tmp_path / "certs", tmp_path, 2).joins(ABOUT).advertise()
    roster = play.server.roster()
    assert refused(play.silos[1].share, roster | {2: forged}) == (
        "silo 2 sent no certificate of this federation's authority"
    )
    odd = Advert.unpack(roster[3])
    version = bytes.fromhex("a003020102")
    assert version in odd.certificate
    odd = replace(odd, certificate=odd.certificate.replace(version, bytes.fromhex("a003020105"))).pack()
    server = ServerRound(ABOUT, play.server._authority)
    for refusal in (refused(play.silos[2].share, roster | {3: odd}), refused(server.advertised, 3, odd)):
        assert refusal.startswith("silo 3 sent no certificate of this federation")
    assert refused(play.silos[3].share, roster | {4: roster[1]}) == "silo 4 sent the certificate of another process"
    assert refused(play.silos[4].share, roster | {1: b"x" * 40}).startswith("silo 1 sent no certificate")


def test_a_server_that_replays_keys(hospitals, play):
    """Keys of an earlier attempt: their secrets may have been revealed."""
    wards = hospitals(4)
    for earlier in (attempt(number=1), attempt(round=1)):
        old = Play(wards, earlier, play.values).upto(1)
        again = Play(wards, ABOUT, play.values).upto(1)
        roster = again.server.roster() | {2: old.server.roster()[2]}
        assert "the keys of silo 2 are not signed" in refused(again.silos[1].share, roster)


def test_a_server_that_shows_each_silo_another_list(play, hospitals):
    """Silo 1 gets other keys of silo 4 than the rest, so messages between them cannot be decrypted."""
    play.upto(1)
    other = Play(hospitals(4), ABOUT, play.values).upto(1)  # the same attempt again, of which silo 4 has other keys
    roster = play.server.roster()
    mixed = play.silos[1].share(roster | {4: other.server.roster()[4]})
    for rank in (2, 3, 4):
        play.server.shared(rank, *play.silos[rank].share(roster))
    play.server.shared(1, *mixed)
    wrong = {rank: sorted(play.silos[rank].check(play.server.dealt(rank))) for rank in RANKS}
    assert wrong == {1: [2, 3, 4], 2: [1], 3: [1], 4: [1]}


def test_a_server_that_replays_shares(play, hospitals):
    """Those of an earlier attempt, or those for another silo."""
    earlier = Play(hospitals(4), attempt(number=1), play.values).upto(2)
    earlier.server.dealt(1)
    play.upto(2)
    dealt = {rank: play.server.dealt(rank) for rank in RANKS}
    assert [*play.silos[1].check(dealt[1] | {2: earlier.server.dealt(1)[2]})] == [2]
    assert [*play.silos[2].check(dealt[2] | {3: dealt[1][3]})] == [3]
    sealed, commitments = dealt[3][4]
    assert [*play.silos[3].check(dealt[3] | {4: (bytes([sealed[0] ^ 1]) + sealed[1:], commitments)})] == [4]
    sealed, commitments = dealt[4][2]
    assert [*play.silos[4].check(dealt[4] | {2: (b"", commitments), 3: (dealt[4][3][0], b"")})] == [2, 3]


def test_a_server_that_changes_commitments(play):
    """A receiver complains, and then masks nothing in this attempt: with its key the server can open its shares."""
    play.upto(2)
    dealt = {rank: play.server.dealt(rank) for rank in RANKS}
    sealed, commitments = dealt[1][2]
    swapped = commitments[65:130] + commitments[:65] + commitments[130:]
    assert [*play.silos[1].check(dealt[1] | {2: (sealed, swapped)})] == [2]
    own = "the server has changed this silo's own commitments"
    assert refused(play.silos[2].check, dealt[2] | {2: dealt[2][1]}) == own
    why = "the server requested the step 'mask' out of order; each step runs once"
    assert refused(play.silos[1].mask, play.values[1], {}) == why


def test_a_server_that_provokes_complaints(play):
    """With the keys of all other silos, it could open the shares of silo 1, and so its vector."""
    play.upto(2)
    dealt = {rank: play.server.dealt(rank) for rank in RANKS}
    answers = {1: play.silos[1].check(dealt[1])}
    for rank in (2, 3, 4):
        sealed, commitments = dealt[rank][1]
        answers[rank] = play.silos[rank].check(dealt[rank] | {1: (bytes([sealed[0] ^ 1]) + sealed[1:], commitments)})
        assert [*answers[rank]] == [1]
    keys = {rank: masks.key_pair(int.from_bytes(answers[rank][1], "big")) for rank in (2, 3, 4)}
    assert [masks.public(key) for key in keys.values()] == [
        Advert.unpack(play.sent[0, rank]).share_key for rank in keys
    ]
    signed = answers[1] | dict.fromkeys(keys, answers[1][1])
    assert refused(play.silos[1].mask, play.values[1], signed) == "silo 2 has not signed that all shares match"
    again(play.silos[1], "mask")
    line = refused(play.silos[1].mask, play.values[1], answers[1])
    assert line == "1 silos share masks, but this silo requires at least 3"


@pytest.mark.parametrize("colluding", [0, 1])
def test_a_server_and_colluding_silos_that_isolate_a_silo(hospitals, colluding):
    """Of five silos with t = 3, ``2t - n = 1`` colluding silo suffices: a limit that the documents state.

    Silos 1, 2 and 3 see correct shares and sign; 4 and 5 complain, which reveals their keys.
    """
    about, ranks = attempt(at_least=3, at_most=5), range(1, 6)
    play = Play(hospitals(5), about, vectors(ranks, about)).upto(2)
    dealt = {rank: play.server.dealt(rank) for rank in ranks}
    signed = {rank: play.silos[rank].check(dealt[rank])[rank] for rank in (1, 2, 3)}
    keys = {1: play.silos[1]._share_secret} if colluding else {}
    for rank in (4, 5):
        sealed, commitments = dealt[rank][2]
        answer = play.silos[rank].check(dealt[rank] | {2: (bytes([sealed[0] ^ 1]) + sealed[1:], commitments)})
        keys[rank] = int.from_bytes(answer[2], "big")
    vector = play.silos[2].mask(play.values[2], signed)
    pairs = {}
    for rank, key in keys.items():
        sealed, commitments = dealt[rank][2]
        way = shares.Way(about, 2, rank, play.silos[2].roster, commitments)
        pairs[rank] = way.opened(sealed, masks.key_pair(key), Advert.unpack(play.sent[0, 2]), 3)
    seed, key = (shares.combined({rank: pair[i] for rank, pair in pairs.items()}) for i in (0, 1))
    masks.add_own(vector, seed, 2, about, remove=True)
    for peer in (1, 3):  # silos 4 and 5 did not sign
        other = Advert.unpack(play.sent[0, peer]).mask_key
        masks.add_shared(vector, masks.key_pair(key), 2, other, peer, about, remove=True)
    assert np.array_equal(vector, play.values[2]) == bool(colluding)


def test_a_server_that_drops_a_silo_after_its_vector_has_come(play):
    """It claims that silo 4 is lost, to get its key, and has its vector. Silo 4's own mask stays secret."""
    play.upto(4)
    play.lost[4] = 4
    without = (
        "the server reports a sum over silos 1, 2, 3; expected: only silos 1, 2, 3, 4, each at most once, with silo 4"
    )
    assert refused(play.silos[4].agree, [1, 2, 3]) == without
    play.server._added.discard(4)
    play.server._total -= play.sent[3, 4]
    play.agree()
    play.reveal()
    assert play.server.total().tolist() == naive([play.values[rank] for rank in (1, 2, 3)], ABOUT)
    key = masks.key_pair(shares.combined({k: int.from_bytes(play.sent[5, k][4], "big") for k in (1, 2, 3)}))
    bare = play.sent[3, 4].copy()
    for peer in (1, 2, 3):
        masks.add_shared(bare, key, 4, play.server._shown[peer].mask_key, peer, ABOUT, remove=True)
    assert not np.any(bare == play.values[4])
    masks.add_own(bare, play.silos[4]._seed, 4, ABOUT, remove=True)  # only that silo knows it
    assert bare.tolist() == play.values[4].tolist()


def test_a_server_that_asks_for_both_kinds_of_share(play):
    """Of silo 4: it is in the sum for some, lost for others. Signatures of more than two thirds are of one set."""
    play.upto(4)
    whole, without = [1, 2, 3, 4], [1, 2, 3]
    signed = {1: play.silos[1].agree(without), 2: play.silos[2].agree(without), 3: play.silos[3].agree(whole)}
    assert refused(play.silos[1].reveal, signed) == "silo 3 has not signed that the sum includes silos 1, 2, 3"
    del signed[1]
    assert refused(play.silos[3].reveal, signed) == "silo 2 has not signed that the sum includes silos 1, 2, 3, 4"
    signed = {2: signed[2]}
    why = "1 silos have signed that the sum includes silos 1, 2, 3, but this silo requires at least 3"
    assert refused(play.silos[2].reveal, signed) == why


def test_a_server_that_asks_twice(play):
    """A repeated request for shares, signatures or a vector, also after a refusal."""
    play.upto(6)
    silo = play.silos[1]
    calls = {"share": [{}], "check": [{}], "mask": [np.zeros(7, np.uint32), [1, 2, 3]], "agree": [[1, 2, 3]]}
    for step, what in (calls | {"reveal": [{}]}).items():
        why = f"the server requested the step '{step}' out of order; each step runs once"
        assert refused(getattr(silo, step), *what) == why


def test_a_server_that_lies_about_who_is_in_the_sum(play):
    play.upto(4)
    for there in ([1, 2, 3, 4, 5], [2, 3, 4], [1, 1, 2, 3]):
        named = "silos " + ", ".join(map(str, there))
        why = f"the server reports a sum over {named}; expected: only silos 1, 2, 3, 4, each at most once, with silo 1"
        assert refused(play.silos[1].agree, there) == why
        again(play.silos[1], "agree")
    why = "2 silos are in the sum, but this silo requires at least 3"
    assert refused(play.silos[1].agree, [1, 2]) == why
    dealt = play.server.dealt(2)
    again(play.silos[2], "check")
    why = "the server sent shares of silos 1, 2, 3, 4, 7; expected: this silo and others among silos 1, 2, 3, 4"
    assert refused(play.silos[2].check, dealt | {7: dealt[1]}) == why
    again(play.silos[2], "check")
    assert refused(play.silos[2].check, {2: dealt[2], 3: dealt[3]}).startswith("2 silos have shared, but this silo")
    signed = play.server.sharing()
    for sharing in ([1, 2, 3, 4, 5], [2, 3, 4]):
        again(play.silos[1], "mask")
        why = f"the server reports that silos {', '.join(map(str, sharing))} share masks; "
        why += "expected: this silo and others among silos 1, 2, 3, 4"
        assert refused(play.silos[1].mask, play.values[1], dict.fromkeys(sharing, signed[1])) == why
    again(play.silos[1], "mask")
    two = {rank: signed[rank] for rank in (1, 2)}
    assert refused(play.silos[1].mask, play.values[1], two).startswith("2 silos share masks, but this silo requires")


def test_a_server_that_asks_one_round_twice_with_other_sets(hospitals):
    """The difference of two sums would be the vector of one silo; the account also holds after a restart."""
    wards, values = hospitals(5), vectors(range(1, 6), ABOUT)
    Play(wards, ABOUT, values).total()
    again = Play(wards[:4], attempt(number=1), values).upto(4)
    line = refused(again.silos[1].agree, [1, 2, 3, 4])
    file = wards[0].folder / "secure.json"
    assert line == (
        "this silo has opened a sum over silos 1, 2, 3, 4, 5, and is now asked for one over silos 1, 2, 3, 4; "
        f"the two sums would differ by single uploads ({file})"
    )
    same = Play(wards, attempt(number=2), values)  # of the same silos it is the same sum: nothing new
    assert same.total() == naive(values.values(), ABOUT)
    Play(wards[:4], attempt(round=1), values).total()  # another round, another question
    Play(wards[:4], attempt(number=3), values, noisy=lambda silo, vector: vector).total()  # noise hides the difference
    file.write_text("{}")
    with pytest.raises(LabelSkewError, match="is not a valid record of a silo's secure sums; restore"):
        wards[0].joins(ABOUT)


def test_a_server_that_asks_another_question_in_the_same_round(hospitals):
    """Two sums of the same silos, of which one was asked something else: the difference is that of its answers."""
    (ward, *_) = hospitals(1)
    folder = ward.folder / "Dr. Ann's ward"
    folder.mkdir()
    file = account.Account(folder)
    for _ in range(2):  # the same once more, as after a restart
        file.ask("run", 4, "this")
        file.ask("run", 5, "that")
    line = "round 5: the server repeats this round of this run with another question"
    with pytest.raises(SecureError, match=line) as error:
        account.Account(folder).ask("run", 4, "that")
    assert "Ann" in str(error.value)
    assert "Ann" not in error.value.public  # what the server receives
    file.ask("another run", 4, "that")


def test_an_account_that_cannot_be_written(play, monkeypatch):
    def full(number):
        raise OSError(28, "No space left on device")

    play.upto(5)
    monkeypatch.setattr(account.os, "fsync", full)
    assert refused(play.silos[1].reveal, play.server.signatures()).endswith(
        "this silo cannot write its record of sums (No space left on device), so it opens nothing ("
        f"{play.silos[1]._account.file})"
    )


def test_a_silo_that_reveals_wrong_shares_or_none(play, monkeypatch):
    """The server names it, and continues with the others: three of four are enough. It checks each share once."""
    checked, honest = [], shares.fits
    monkeypatch.setattr(shares, "fits", lambda share, rank, known: checked.append(rank) or honest(share, rank, known))
    play.upto(5)
    signatures = dict(play.server.signatures())
    given = {rank: play.silos[rank].reveal(signatures) for rank in RANKS}
    assert (
        refused(play.server.revealed, 1, {1: given[1][1]})
        == "silo 1 revealed too few or too many shares: silos 2, 3, 4"
    )
    checked.clear()
    play.server.revealed(1, given[1] | {2: bytes([1] * 32), 3: bytes(32), 4: b""})
    for rank in (2, 3, 4):
        play.server.revealed(rank, given[rank])
    assert play.server.total().tolist() == naive(play.values.values(), ABOUT)
    assert play.server.cheats == {1: "revealed wrong shares"}
    assert checked == [1, 2, 3]  # the shares of silo 1, once three silos have revealed theirs


def test_silos_of_which_too_few_reveal_right_shares(play):
    play.upto(5)
    signatures = dict(play.server.signatures())
    for rank in (1, 2, 3):
        wrong = {3: bytes(32)} if rank == 2 else {}
        play.server.revealed(rank, play.silos[rank].reveal(signatures) | wrong)
    assert refused(play.server.total) == "only 2 shares of the seed of silo 1 can be used, but 3 are needed"
    assert play.server.cheats == {2: "revealed wrong shares"}


@pytest.mark.parametrize("victims", [[2], [2, 3, 4]])
def test_a_silo_that_deals_wrong_shares(play, monkeypatch, victims):
    """Before the first mask, the receivers name dealers of wrong shares; the server excludes these."""
    play.upto(1)
    roster = play.server.roster()
    deal = shares.dealt

    def wrong(*args):
        dealt, commitments = deal(*args)
        return {rank: share + (rank in victims) for rank, share in dealt.items()}, commitments

    monkeypatch.setattr(shares, "dealt", wrong)
    play.server.shared(1, *play.silos[1].share(roster))
    monkeypatch.undo()
    for rank in (2, 3, 4):
        play.server.shared(rank, *play.silos[rank].share(roster))
    play.check()
    assert play.server.cheats == {1: f"sent silo {victims[-1]} shares that do not fit its commitments"}
    assert refused(play.server.sharing).endswith(" got wrong shares")
    assert not play.server._added
    assert not any((silo._account.file).exists() for silo in play.silos.values())  # so it can be repeated


def test_a_silo_whose_shares_are_of_a_larger_polynomial(play, monkeypatch):
    """Its secret could not be put together from the shares of a threshold of silos."""
    play.upto(1)
    deal = shares.dealt
    monkeypatch.setattr(shares, "dealt", lambda secret, least, *more: deal(secret, least + 1, *more))
    dealt = play.silos[1].share(play.server.roster())
    assert refused(play.server.shared, 1, *dealt) == "silo 1 did not send 3 commitments for each of its secrets"
    monkeypatch.undo()
    for rank in (2, 3, 4):
        play.server.shared(rank, *play.silos[rank].share(play.server.roster()))
    assert [*play.silos[2].check(play.server.dealt(2) | {1: (dealt[0][2], dealt[1])})] == [1]


def test_a_silo_that_complains_of_silos_that_did_not_deal(play):
    play.upto(2)
    play.server.dealt(1)
    for wrong in ({5: bytes(32)}, {1: bytes(32), 2: bytes(32)}, {}):
        why = f"silo 1 complained about {listed(wrong)}; expected: other silos among silos 1, 2, 3, 4"
        assert refused(play.server.checked, 1, wrong) == why
    assert refused(play.server.checked, 1, {1: b"none"}) == "the signature of silo 1 does not match its shares"


@pytest.mark.parametrize("key", [None, bytes(32), b"\xff" * 32, b"", bytes(31) + b"\7"])
def test_a_silo_that_complains_without_reason(play, key):
    """With its own key or with another key; the attempt continues without it."""
    play.upto(2)
    for rank in (1, 2, 3):
        play.server.checked(rank, play.silos[rank].check(play.server.dealt(rank)))
    key = play.silos[4]._share_secret.to_bytes(32, "big") if key is None else key
    assert refused(play.server.checked, 4, {1: key}) == "silo 4 complained about silo 1, but the shares of silo 1 match"
    assert [*play.server.cheats] == [4]
    assert [*play.server.sharing()] == [1, 2, 3]


def test_a_silo_that_sends_shares_for_some_silos_only(play):
    play.upto(1)
    dealt, commitments = play.silos[1].share(play.server.roster())
    why = "silo 1 must send exactly one pair of shares to each of silos 1, 2, 3, 4"
    assert refused(play.server.shared, 1, {1: dealt[1]}, commitments) == why
    assert refused(play.server.shared, 1, dealt | {2: dealt[2][:-1]}, commitments) == why
    why = "silo 1 did not send 3 commitments for each of its secrets"
    assert refused(play.server.shared, 1, dealt, commitments[65:]) == why


def test_a_silo_that_sends_a_vector_outside_the_ring(hospitals):
    about = attempt(bits=20)
    values = vectors(RANKS, about)
    play = Play(hospitals(4), about, values).upto(3)
    signed = play.server.sharing()
    for wrong in (values[1][:-1], values[1].astype(np.float32), values[1].reshape(1, -1)):
        assert refused(play.server.masked, 1, wrong) == "the vector of silo 1 must have 7 numbers of the ring"
    assert refused(play.server.masked, 1, values[1] | 2**20) == "the vector of silo 1 has values of more than 20 bits"
    assert refused(play.server.masked, 6, values[1]) == "silo 6 sent a vector without a request"
    play.server.masked(1, values[1])
    assert refused(play.server.masked, 1, values[1]) == "silo 1 sent a second vector"
    why = "the vector of this silo has values of more than 20 bits"
    assert refused(play.silos[1].mask, values[1] | 2**20, signed) == why


def test_a_silo_that_comes_too_late(play):
    play.upto(6)
    late = {"advertised": [play.sent[0, 1]], "shared": play.sent[1, 1], "checked": [{}], "masked": [play.sent[3, 1]]}
    for name, what in late.items():
        assert refused(getattr(play.server, name), 1, *what) == "a message of silo 1 arrived too late"


def test_a_silo_that_signs_another_set(play):
    play.upto(4)
    play.server.included()
    signature = play.silos[1].agree([1, 2, 3])
    why = "the signature of silo 1 does not match the sum over silos 1, 2, 3, 4"
    assert refused(play.server.agreed, 1, signature) == why
    assert refused(play.server.agreed, 2, signature) == why.replace("silo 1 does", "silo 2 does")


def test_keys_that_are_not_points(hospitals):
    """A silo that signs such keys is named by the server; a server that passes them on is refused."""
    wards = hospitals(4)
    play = Play(wards, ABOUT, vectors(RANKS, ABOUT)).upto(1)
    good = Advert.unpack(play.sent[0, 2]).points
    why = "silo 2 sent keys that are not three points of the curve"
    for wrong in (bytes(65), b"\4" + b"\1" * 64, b"\4" + bytes(64), good[1]):
        advert = wards[1].identity.advert(2, wrong, *good[1:], ABOUT).pack()
        assert refused(ServerRound(ABOUT, wards[0].authority).advertised, 2, advert) == why
        silo = wards[0].joins(ABOUT)
        assert refused(silo.share, play.server.roster() | {1: silo.advertise(), 2: advert}) == why


def test_a_silo_that_shows_the_key_of_another(hospitals):
    wards = hospitals(4)
    play = Play(wards, ABOUT, vectors(RANKS, ABOUT)).upto(1)
    first, second = (Advert.unpack(play.sent[0, rank]).points for rank in (1, 2))
    advert = wards[1].identity.advert(2, *second[:2], first[0], ABOUT).pack()
    server = ServerRound(ABOUT, wards[0].authority)
    server.advertised(1, play.sent[0, 1])
    assert refused(server.advertised, 2, advert) == "silo 2 sent a key of silo 1"
    assert refused(play.silos[3].share, play.server.roster() | {2: advert}) == "the server's list contains a key twice"


def test_a_server_that_names_another_state(hospitals):
    """After two sums, and one that was not opened."""
    ours = account.Account(hospitals(3)[0].folder)
    for round in (0, 1):
        ours.check_state(RUN, round, round - 1, round + 1)
        ours.ask(RUN, round, "question")
        ours.open(attempt(round), [1, 2, 3])
    ours.check_state(RUN, 1, 0, 2)  # the server has lost the sum
    for before, times in ((-1, 3), (0, 3), (2, 3), (1, 2), (1, 4), (2, 4)):
        line = f"round 3: the server continues from round {before + 1} and has selected this silo {times} times"
        with pytest.raises(SecureError, match=line):
            ours.check_state(RUN, 2, before, times)
    ours.ask(RUN, 2, "question")
    ours.check_state(RUN, 2, 1, 3)
    with pytest.raises(SecureError, match="the server asks for round 4 before the sum of round 3 was opened"):
        ours.check_state(RUN, 3, 1, 3)
    with pytest.raises(SecureError, match="round 2: the server asks for a round before round 3, but has already"):
        ours.check_state(RUN, 1, 0, 2)


def test_no_order_of_requests_gives_a_sum_over_different_states(hospitals, monkeypatch):
    """A server that acts at random: it asks, opens, withholds and restarts; a state is named by all that led to it."""
    monkeypatch.setattr(account, "write_text", lambda path, text, **_: path.write_text(text))  # quick
    random, sums, wards = Random(0), 0, hospitals(3)
    for run in map(str, range(100)):
        silos = [SimpleNamespace(book=account.Account(ward.folder), states={-1: ()}) for ward in wards]
        for silo in silos:
            silo.book.file.unlink(missing_ok=True)
            silo.upload = silo.summed = None
        for _ in range(60):
            act, some = random.random(), silos if random.random() < 0.6 else [random.choice(silos)]
            if act < 0.4:
                round, model = random.randrange(6), random.randrange(2)
                opened = {*random.choice(silos).book._read().runs.get(run, {})} - {round}
                before, times = max(opened, default=-1), len(opened) + 1  # as one of them expects
                for silo in some:
                    with contextlib.suppress(SecureError):
                        silo.book.check_state(run, round, before, times)
                        silo.book.ask(run, round, f"{model} {before} {times}")
                        silo.states[round] = round, model, silo.states[before]
                        silo.upload = round, model
            elif act < 0.7 and silos[0].upload and len({silo.upload for silo in silos}) == 1:
                round, _ = silos[0].upload
                assert len({silo.states[round] for silo in silos}) == 1
                sums += 1
                for silo in silos:
                    silo.summed = round
            else:
                for silo in some:
                    if silo.summed is not None and act < 0.95:
                        silo.book.open(replace(attempt(silo.summed), run=run), [1, 2, 3])
                    silo.summed = None
    assert sums > 50


def test_a_server_that_changes_the_number_of_all_samples(hospitals):
    """Numbers that fall until this silo refuses one would show how many samples it has; also after a restart."""
    folder = hospitals(3)[0].folder
    account.Account(folder).count(RUN, 1438)
    account.Account(folder).count(RUN, 1438)
    with pytest.raises(LabelSkewError, match="700 training samples of all silos, but it reported 1438") as error:
        account.Account(folder).count(RUN, 700)
    assert error.value.exit_code == 2
    account.Account(folder).count("f" * 16, 700)
    # within one process, also for another run
    silo = SimpleNamespace(_total=0)
    for total in (0, 1438, 1438, 0):
        SummedAnswers.check_total(silo, {"num_samples": total})
    for total in (1437, 9999):
        with pytest.raises(LabelSkewError, match="another number of all training samples than before; restart"):
            SummedAnswers.check_total(silo, {"num_samples": total})


def test_a_server_cannot_change_the_federation_of_a_run():
    """With other features, shared tensors of any size would be allowed."""
    given = Federation(3, 3, 4, 1, 10, 16, num_samples=0, min_samples=0, seed=0)
    opened = []
    record = SimpleNamespace(question_of=lambda run, round: "", ask=lambda *asked: opened.append(asked), count=print)
    silo = SimpleNamespace(recipe=SimpleNamespace(comm=CommArgs()), run_name=RUN, inputs_digest=b"", client=0)
    answers = SimpleNamespace(silo=silo, _account=record, _data_digest="")
    session = SimpleNamespace(federation=given, reported_tests=lambda client: 0)
    SummedAnswers.open(answers, session, given)
    assert len(opened) == 1
    for change in ({"num_features": 10**8}, {"min_samples": 1}):
        with pytest.raises(LabelSkewError, match="describes the federation of this run differently than before"):
            SummedAnswers.open(answers, session, replace(given, **change))


@pytest.mark.parametrize(("asked", "some", "free"), [([0, 3], 5, False), ([0, 1, 2, 3], 5, True), ([0], 4, True)])
def test_a_run_is_over_only_after_all_its_rounds(asked, some, free, hospitals):
    """A server could say that a run is over after its first or only its last round, and begin another one."""
    record, left = account.Account(hospitals(3)[0].folder), []
    for round in (OPENING, *asked):
        record.ask(RUN, round, "x")
    record.leave = lambda: left.append(1)
    session = SimpleNamespace(federation=SimpleNamespace(rounds=4, clients_per_round=some, num_clients=5))
    silo, lines = SimpleNamespace(run_name=RUN, session=session), []
    SummedAnswers.finished(SimpleNamespace(silo=silo, _account=record, _warn=lambda *text: lines.append(text)))
    assert (bool(left), bool(lines)) == (free, not free)


def test_a_silo_adds_one_vector_to_a_round(hospitals):
    """The difference of two sums, before and after its data or settings have changed, would be about this silo."""
    folder = hospitals(3)[0].folder
    first, other = vectors([1, 2], attempt(0)).values()
    assert not np.array_equal(first, other)
    assert np.array_equal(account.Account(folder).only(attempt(0), first), first)
    assert np.array_equal(account.Account(folder).only(attempt(0), other), first)
    assert np.array_equal(account.Account(folder).only(attempt(OPENING), other), other)
    assert np.array_equal(account.Account(folder).only(attempt(1), other), other)
    assert (folder / "secure_vector_round.npz").stat().st_mode & 0o777 == 0o600
    assert np.array_equal(account.Account(folder).only(attempt(OPENING), first), other)
    (folder / "secure_vector_round.npz").write_bytes(b"PK")
    with pytest.raises(SecureError, match=r"its vector is damaged.* \(.*secure_vector_round.npz\)"):
        account.Account(folder).only(attempt(1), first)


def test_what_the_server_receives_of_a_silo_is_uniform(hospitals):
    """Chi-squared, over many runs in which the silo sends the same: all bytes of its vector, and pairs across runs."""
    about = attempt(length=80, bits=16)
    wards = hospitals(3)
    same = {rank: np.arange(about.length, dtype=np.uint16) for rank in (1, 2, 3)}
    received = []
    for number in range(125):
        play = Play(wards, replace(about, number=number), same).upto(4)
        received.append(play.sent[3, 1])
    values = np.stack(received)
    high, low = (values >> 8).ravel(), (values & 255).ravel()
    differences = (values[1:] - values[:-1]).ravel() >> 8  # of uint16, modulo the ring
    positions = [(values[:, place] >> 12) for place in range(about.length)]
    tests = [np.bincount(bytes, minlength=256) for bytes in (high, low, differences)]
    tests += [np.bincount(nibble, minlength=16) for nibble in positions]
    assert min(chisquare(counts).pvalue for counts in tests) > 1e-4 / len(tests)
    clear = np.bincount((np.stack([same[1]] * 125) & 255).ravel(), minlength=256)
    assert chisquare(clear).pvalue < 1e-9  # the test sees what is not uniform


def test_two_silos_whose_data_are_swapped_look_alike(hospitals, monkeypatch):
    """Two runs; in the second, silos 1 and 2 send each other's vectors, and the mask that they share makes up for it.

    That mask is drawn from a key that neither has revealed: to the server every value of it is as likely as another.
    Everything that it has received, bit for bit, and the sum, are then the same.
    """
    about, wards = attempt(length=11), hospitals(4)
    values = vectors(RANKS, about)
    swapped = {**values, 1: values[2], 2: values[1]}
    shared = masks.add_shared

    def made_up(vector, key, rank, other, peer, attempt, *, remove=False):
        shared(vector, key, rank, other, peer, attempt, remove=remove)
        if {rank, peer} == {1, 2} and not remove:
            vector += values[rank] - swapped[rank]

    def run(values, lost):
        random = np.random.default_rng(5)
        for ward in wards:
            for file in ward.folder.glob("secure*"):
                file.unlink()
        play = Play(wards, about, values, lost=lost, random=random.bytes)
        total = play.total()
        signed = {(0, rank): Advert.unpack(play.sent[0, rank]).points for rank in RANKS}  # signatures are drawn, too
        return total, play.sent | signed | dict.fromkeys(
            play.sent.keys() & {(step, rank) for step in (2, 4) for rank in RANKS}
        )

    for lost in ({}, {3: 3}, {4: 5}):
        first = run(values, lost)
        plain = run(swapped, lost)
        assert plain[0] == first[0]  # the sum is the same in any case
        assert not np.array_equal(plain[1][3, 1], first[1][3, 1])
        monkeypatch.setattr(masks, "add_shared", made_up)
        second = run(swapped, lost)
        monkeypatch.setattr(masks, "add_shared", shared)
        assert second[0] == first[0]
        assert second[1].keys() == first[1].keys()
        for what, sent in first[1].items():
            # the roster contains signatures, and the commitments belong to the shares
            other = second[1][what]
            if what[0] == 1:
                assert sent[1] == other[1]
            elif what[0] == 3:
                assert np.array_equal(sent, other)
            else:
                assert sent == other


def test_fewer_shares_than_the_threshold_reveal_nothing():
    """For each secret that might be, there is a polynomial through the shares that colluding silos have."""
    dealt, _ = shares.dealt(7, 3, RANKS, os.urandom)
    seen = {shares.combined({1: dealt[1], 2: dealt[2], 3: guess}) for guess in range(500)}
    assert len(seen) == 500
