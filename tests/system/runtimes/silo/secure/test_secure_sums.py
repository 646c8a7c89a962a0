"""Sums of masked vectors, against sums that are computed naively; whoever is lost, and whenever."""

import itertools
import os
from types import SimpleNamespace

import numpy as np
import pytest
from error_messages import message
from fl_labelskew_registry import RunError
from masked_rounds import Play, attempt, naive, vectors

from fl_labelskew_plugins.engine.ring import parts, unit
from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.runtimes.silo.secure import masks, shares
from fl_labelskew_plugins.runtimes.silo.secure.asking import ServerSums
from fl_labelskew_plugins.runtimes.silo.secure.attempt import OPENING, SecureError, Sizes, number_of_test
from fl_labelskew_plugins.runtimes.silo.secure.identity import Advert
from fl_labelskew_plugins.runtimes.transport import Kind


@pytest.mark.parametrize("bits", [16, 17, 24, 32])
def test_sum_over_all_silos(hospitals, bits):
    about = attempt(bits=bits, length=200_000)
    values = vectors(range(1, 4), about)
    play = Play(hospitals(3), about, values)
    assert play.total() == (sum(row.astype(np.uint64) for row in values.values()) % 2**bits).tolist()
    sent = play.sent[3, 1]
    assert sent.dtype == (np.uint16 if bits == 16 else np.uint32)
    assert int(sent.max()) < 2**bits
    assert np.mean(sent == values[1]) < 0.001  # nothing of it is in the clear


@pytest.mark.parametrize("bits", [16, 20, 32])
def test_wide_values_are_summed_modulo_64_bits(hospitals, bits):
    """Two wide values with overflowing first halves, and a narrow one."""
    numbers = {1: [2**63, 2**32 - 1], 2: [2**63 + 5, 1], 3: [7, 2**40]}
    values = {}
    for rank, row in numbers.items():
        wide = np.array(row, np.uint64).view(unit(bits))
        values[rank] = np.concatenate([wide, np.array([2**bits - rank], unit(bits))])
    play = Play(hospitals(3), attempt(bits=bits, length=len(values[1]), wide=2), values)
    wide, narrow = parts(np.array(play.total(), unit(bits)), 2)
    assert wide.tolist() == [12, 2**32 + 2**40]
    assert narrow.tolist() == [2**bits - 6]


def test_any_silos_lost_at_any_step(hospitals):
    """One or two silos lost at every step: the sum of the others if they are enough, else an error."""
    silos, least = 4, 3
    about = attempt(length=3, at_least=least)
    values = vectors(range(1, silos + 1), about)
    wards = hospitals(silos)
    for step, number in itertools.product(range(6), (1, 2)):
        for gone in itertools.combinations(range(1, silos + 1), number):
            for ward in wards:
                (ward.folder / "secure.json").unlink(missing_ok=True)  # each is another run
            play = Play(wards, about, values, lost=dict.fromkeys(gone, step))
            left = [rank for rank in values if rank not in gone]
            if len(left) < least:
                with pytest.raises(SecureError, match=r"silos .*(at least|the sum needs)"):
                    play.total()
                continue
            added = left if step < 4 else values
            assert play.total() == naive([values[rank] for rank in added], about), (step, gone)
            assert play.server.lost == (list(gone) if step == 3 else [])


def test_silos_lost_at_different_steps(hospitals):
    about = attempt(length=5)
    values = vectors(range(1, 7), about)
    play = Play(hospitals(6), about, values, lost={1: 0, 2: 3})
    assert play.total() == naive([values[rank] for rank in (3, 4, 5, 6)], about)


def test_repeated_with_new_masks(hospitals):
    """Too few are left, so nothing is opened; the remaining silos then send the same vectors under other masks."""
    about = attempt()
    wards, values = hospitals(4), vectors(range(1, 5), about)
    first = Play(wards, about, values, lost={3: 3, 4: 3})
    few = "secure aggregation, round 1: 2 silos have sent a vector, but at least 3 are needed"
    assert message(first.total, kind=SecureError) == few
    second = Play(wards[:3], attempt(number=1), values, noisy=lambda silo, vector: vector)
    assert second.total() == naive([values[rank] for rank in (1, 2, 3)], about)
    assert not np.array_equal(first.sent[3, 1], second.sent[3, 1])


@pytest.mark.parametrize(("silos", "at_least"), [(5, 3), (5, 5), (4, 3)])
def test_any_threshold_shares_are_enough(silos, at_least):
    needed = attempt(at_least=at_least).threshold(range(1, silos + 1))
    secret, ranks = 2**255 + 19, [2, 3, 5, 7, 11][:silos]
    dealt, commitments = shares.dealt(secret, needed, ranks, os.urandom)
    for chosen in itertools.combinations(ranks, needed):
        assert shares.combined({rank: dealt[rank] for rank in chosen}) == secret
    assert shares.combined({rank: dealt[rank] for rank in ranks[: needed - 1]}) != secret
    assert len(commitments) == needed
    assert all(shares.fits(share, rank, commitments) for rank, share in dealt.items())
    assert not any(shares.fits(share + 1, rank, commitments) for rank, share in dealt.items())
    assert not any(shares.fits(share, rank + 1, commitments) for rank, share in dealt.items())


def test_shares_by_hand(monkeypatch):
    """``f(x) = 5 + 2 x + 3 x^2`` at 1, 2 and 4; its commitments are 5 G, 2 G and 3 G."""
    factors = iter([2, 3])
    monkeypatch.setattr(masks, "scalar", lambda random: next(factors))
    dealt, commitments = shares.dealt(5, 3, [1, 2, 4], os.urandom)
    assert dealt == {1: 10, 2: 21, 4: 61}
    assert commitments == [masks.public(masks.key_pair(factor)) for factor in (5, 2, 3)]
    assert shares.combined(dealt) == 5
    assert shares.fits(21, 2, commitments)
    # the order of P-256: one less times G is -G, the point with the same first half
    negative = masks.public(masks.key_pair(masks.ORDER - 1))
    assert negative[:33] == masks.public(masks.key_pair(1))[:33]
    assert negative[33:] != masks.public(masks.key_pair(1))[33:]


@pytest.mark.parametrize("text", [b"", bytes(65), b"\4" + bytes(64), b"\2" + bytes(32), b"\4" + b"\1" * 64])
def test_commitments_that_are_not_points_match_no_share(text):
    dealt, commitments = shares.dealt(7, 3, [1, 2, 3], os.urandom)
    for place in range(3):
        assert not shares.fits(dealt[1], 1, [*commitments[:place], text, *commitments[place + 1 :]])
    for share in (0, masks.ORDER, masks.ORDER + dealt[1]):
        assert not shares.fits(share, 1, commitments)


@pytest.mark.parametrize(
    ("ranks", "at_least", "line"),
    [
        ([1, 2], 2, "2 silos take part, but the sum needs 3 (comm_args.secure_threshold)"),
        ([1, 2, 3, 4], 5, "4 silos take part, but the sum needs 5 (comm_args.secure_threshold)"),
        ([1, 2, 3, 4, 5, 6], 3, "6 silos take part, but at most 5 are allowed in the sum"),
        ([1, 2, 3, 4, 5, 6, 7, 8], 5, "8 silos take part, but at most 7 are allowed in the sum"),
        ([1, 2, 100], 3, "silo 100 takes part, but the federation has only 99 silos"),
    ],
)
def test_thresholds_that_are_refused(ranks, at_least, line):
    said = message(lambda: attempt(at_least=at_least, at_most=7).threshold(ranks), kind=SecureError)
    assert said == f"secure aggregation, round 1: {line}"


def test_a_mask_differs_for_every_context():
    """Of one secret: no two attempts, rounds or silos have a mask alike, and none of it depends on the length."""
    drawn = {}
    for about, rank in itertools.product([attempt(), attempt(1), attempt(0, 1)], [1, 2]):
        vector = np.zeros(70_000, np.uint32)
        masks.add_own(vector, 7, rank, about)
        drawn[about, rank] = vector
        masks.add_own(vector.copy(), 7, rank, about, remove=True)
    for one, other in itertools.combinations(drawn.values(), 2):
        assert np.mean(one == other) < 0.001
    vector = drawn[attempt(), 1].copy()
    masks.add_own(vector, 7, 1, attempt(), remove=True)
    assert not vector.any()


def test_the_key_of_a_lost_silo_opens_masks_of_one_attempt_only(hospitals):
    """What is revealed of a silo that was lost is of no use in the next round: its keys are others."""
    wards = hospitals(4)
    first = Play(wards, attempt(0), vectors(range(1, 5), attempt(0)), lost={4: 3}).upto(6)
    revealed = {rank: int.from_bytes(first.sent[5, rank][4], "big") for rank in (1, 2, 3)}
    secret = shares.combined(revealed)
    key = masks.public(masks.key_pair(secret))
    assert key == Advert.unpack(first.sent[0, 4]).mask_key
    second = Play(wards, attempt(1), vectors(range(1, 5), attempt(1))).upto(6)
    assert key != Advert.unpack(second.sent[0, 4]).mask_key


def test_right_answers_are_summed_over_all_silos_of_the_opening_only(hospitals):
    wards = hospitals(4)
    opening, test = attempt(round=OPENING), attempt(round=number_of_test(0))
    values = vectors(range(1, 5), opening)
    Play(wards, opening, values).total()
    for lost in (2, 3, 4, 5):  # at these steps
        play = Play(wards, test, values, lost={4: lost})
        with pytest.raises(SecureError, match=r"test after round 1: 3 silos .* at least 4 are needed"):
            play.total()
    with pytest.raises(SecureError, match="a sum over silos 1, 2, 3, 4, and is now asked for one over silos 1, 2, 3;"):
        Play(wards[:3], test, values).upto(5)  # a server that leaves one out from the beginning
    assert Play(wards, test, values).total() == naive(values.values(), test)


@pytest.mark.parametrize(("kind", "attempts"), [(Kind.MASKED, 3), (Kind.REVEALED, 3), (Kind.CHECKED, 5)])
def test_attempts_that_fail_after_vectors_were_masked_end_the_run(kind, attempts):
    """Also if each attempt is of other silos: such a vector is charged to the ledger of its silo."""
    warned = []
    members = SimpleNamespace(quorum=9, excluded="", resume="to resume: ...", warn=warned.append)
    sums = ServerSums(members, None, None, {}, Audit(), sizes=lambda round: Sizes(3, 9, 9))

    def fails(*args):
        sums._kind = kind
        raise SecureError("2 silos have sent a vector")

    sums.total = fails
    groups = iter([[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5], [0, 1, 2, 6], [0, 1]])
    with pytest.raises(RunError, match="2 silos have sent a vector; to resume"):
        sums.sum_with_retries("run", 1, lambda without: next(groups), None)
    assert len(warned) == attempts - 1
