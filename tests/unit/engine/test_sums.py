"""Sums with secure aggregation equal the server's results without it, up to the steps of the ring."""

from dataclasses import replace

import pytest
import torch
from error_messages import message
from fl_labelskew_registry import RunError
from recipe_texts import SKEWED
from rounds import LocalFederation

from fl_labelskew_plugins.engine.sums import VECTOR, as_tensor, as_vector
from fl_labelskew_plugins.methods.fedmr import FedMR

SECURE = "comm_args.secure_aggregation=true"


class Federation(LocalFederation):
    def __init__(self, *overrides):
        super().__init__(SKEWED, *overrides)

    def results(self, round, clients):
        self.round = round
        for client in clients:
            yield client, self.fit(client)

    def sealed(self, round, clients):
        for client, result in self.results(round, clients):
            yield client, self.made.sums.encode_result(client, round, self.server.weights, result)

    def play(self, rounds):
        for round, clients in enumerate(rounds):
            uploads = list((self.results if self.made.sums is None else self.sealed)(round, clients))
            for client, result in uploads:
                self.server.check(client, round, result)
            sizes = [self.made.sizes[k] for k in range(4)]
            assert self.server.run_round(range(4), sizes, iter(uploads), self.made.counts, round=round) == clients
        return self.server


MIXTURES = [
    ["method_args.method=fedrs"],  # uniform
    ["method_args.method=fedshift"],  # population, and an opening
    ["method_args.method=fedmr", "method_args.mu1=0", "method_args.mu2=0.01"],
    ["method_args.method=fd"],
    ["method_args.method=fedproc"],
    ["train_args.federated_optimizer=FedDyn", "method_args.method=fedlc"],
    ["model_args.model=wide_resnet", "model_args.depth=10", "model_args.widen=1", "train_args.batch_size=512"],
]


@pytest.mark.parametrize("mixture", MIXTURES, ids=lambda mixture: "-".join(word.partition("=")[2] for word in mixture))
def test_a_summed_round_equals_a_clear_round_up_to_32_bit_rounding(mixture):
    rounds = [[0, 1, 2, 3]] * (1 if "wide_resnet" in str(mixture) else 2)
    clear, secure = Federation(*mixture), Federation(*mixture, SECURE)
    before, after = clear.play(rounds), secure.play(rounds)
    near = {"rtol": 1e-4, "atol": 2e-5}
    if "fedshift" in str(mixture):  # smoothed counts are rounded in a sum
        near = {"rtol": 0.0, "atol": 5e-3}
    assert before.weights.keys() == after.weights.keys()
    for name, value in before.weights.items():
        assert after.weights[name].dtype == value.dtype
        if "num_batches_tracked" in name:  # never summed, because it reveals the number of samples
            assert after.weights[name] == secure.made.start[name]
            continue
        torch.testing.assert_close(after.weights[name], value, **near)
    assert before.shared.keys() == after.shared.keys()
    for name, value in before.shared.items():
        torch.testing.assert_close(after.shared[name].to(value.dtype), value, **near)
    assert before.opened == after.opened


@pytest.mark.parametrize("came", [[0, 1, 2, 3], [0, 2], [1, 2, 3]])
def test_the_mean_over_some_clients_is_scaled_by_their_number(came):
    """``w + (4 / s) sum of p_k (w_k - w)`` with ``p_k`` the share of all samples: scheme II of Li et al."""
    run = Federation(SECURE)
    start, samples = dict(run.server.weights), sum(run.made.sizes)
    uploads = {client: result.upload for client, result in run.results(0, came)}
    run.states = {}
    after = run.play([came]).weights
    for name, old in start.items():
        expected = old.double()
        for client in came:
            p = run.made.sizes[client] / samples
            expected = expected + 4 / len(came) * p * (uploads[client][name].double() - old.double())
        torch.testing.assert_close(after[name].double(), expected, rtol=0, atol=1e-6)


def test_smoothed_counts_are_summed_as_whole_numbers():
    """Their digits depend on each client's counts: the sum of three clients showed the counts of each of them."""
    clear, secure = (Federation("method_args.method=fedshift", *more).made for more in ([], [SECURE]))
    sums, opening = secure.sums, clear.opening(0).tensors
    assert not torch.equal(opening["smoothed"], opening["smoothed"].round())
    vector = sums.encode_opening(0, opening, 10)
    assert torch.equal(sums.read_opening(vector, 1)[2].tensors["smoothed"], opening["smoothed"].round().float())


def test_only_the_vector_leaves_a_client():
    run = Federation("method_args.method=fedmr", SECURE, "comm_args.secure_bits=16")
    ((client, sealed),) = run.sealed(0, [2])
    assert list(sealed.upload) == [VECTOR]
    assert sealed.upload[VECTOR].dtype == torch.int16
    assert (sealed.contributions, sealed.loss_terms, sealed.personalised) == ({}, {}, None)
    ring = run.made.sums.round
    vector = as_vector(sealed.upload[VECTOR])
    assert torch.equal(as_tensor(vector), sealed.upload[VECTOR])
    sums = ring.decode(vector)
    assert torch.equal(sums["method/counts"], run.made.counts[client].double())


def test_measures_of_clients_are_reported_as_means():
    run = Federation(SECURE)
    results = dict(run.results(0, [0, 3]))
    run.play([[0, 3]])
    losses = [sum(result.loss_terms.values()) for result in results.values()]
    right, samples = map(sum, zip(*(result.personalised for result in results.values()), strict=True))
    assert run.server.reported == pytest.approx({"loss": sum(losses) / 2, "accuracy": right / samples}, abs=1e-5)
    silent = run.made.sums.encode_update(0, 0, run.made.start, results[0], measures=False)
    assert run.made.sums.round.decode(silent)["measured"].tolist() == [0.0] * 4


def test_the_weight_of_a_client_is_at_most_1():
    """Another client may claim a negative number of samples."""
    sums = Federation(SECURE).made.sums
    total = sums.trainer.federation.num_samples
    assert sums.share(total // 2) == total // 2 / total
    assert sums.share(2 * total) == 1


def test_impossible_measures_are_omitted():
    """One client of three reports more right answers than samples, or that 50 clients reported their loss."""
    made = Federation(SECURE).made
    vector = made.sums.round.zeros()
    for measured in ([0.5, 1, 3, 12], [0.5, 1, 40, 12]), ([0.5, 50, 3, -12],), ([0.5, -1, -3, 12],):
        total = made.sums.round.zeros()
        for numbers in measured:
            zeros = made.sums.round.decode(vector) | {"measured": torch.tensor(numbers, dtype=torch.float64)}
            made.sums.round.add(total, made.sums.round.encode(zeros, share=0, where="", words={}))
        read = made.sums.read(total, made.start, 3, 0)[2]
        assert read == ({"loss": 0.5} if len(measured) == 2 else {})


@pytest.mark.parametrize(
    ("method", "name"), [("fedmr", "sums"), ("fedmr", "counts"), ("fd", "outputs"), ("fd", "held")]
)
def test_a_client_that_denies_a_tensor_sent_by_all(method, name):
    """The sum then has no senders, or a negative number; the run continues, or ends with an error."""
    run = Federation(f"method_args.method={method}", SECURE)
    for denied in (2, 3):
        total = run.made.sums.round.zeros()
        for client, result in run.results(0, [0, 1]):
            run.made.sums.round.add(total, run.made.sums.encode_update(client, 0, run.made.start, result))
        nothing = run.made.sums.round.decode(run.made.sums.round.zeros())
        minus = nothing | {f"sent/{name}": torch.tensor(-float(denied))}
        run.made.sums.round.add(total, run.made.sums.round.encode(minus, share=0, where="", words={}))
        if denied == 2:
            run.server.run_sum([0, 1], total)
            continue
        with pytest.raises(RunError, match=f"{name} is the sum of -1 clients; allowed: 0 to 2; start a new run"):
            run.server.run_sum([0, 1], total)


def test_a_tensor_that_no_client_sent_is_missing(monkeypatch):
    seen = []
    monkeypatch.setattr(FedMR, "combine", lambda self, total, shared: seen.append(total) or shared)
    run = Federation("method_args.method=fedmr", SECURE)
    for senders in ([], [1]):
        vectors = run.made.sums.round.zeros()
        for client, result in run.results(0, [0, 1]):
            kept = result if client in senders else replace(result, contributions={})
            run.made.sums.round.add(vectors, run.made.sums.encode_update(client, 0, run.made.start, kept))
        run.server.run_sum([0, 1], vectors)
    assert [total.clients for total in seen] == [2, 2]
    assert seen[0].tensors == {}
    assert seen[1].tensors["counts"].tolist() == run.made.counts[1].tolist()


def test_an_empty_sum_changes_nothing():
    run = Federation(SECURE)
    assert run.server.run_sum([], run.made.sums.round.zeros()) == []
    assert run.server.weights is run.made.start


def test_changes_beyond_the_clip_and_non_finite_weights_are_one_line_errors_of_the_client():
    run = Federation(SECURE, "comm_args.secure_clip=0.001")
    line = message(lambda: list(run.sealed(2, [1])), kind=RunError)
    assert line.startswith("round 3: client 1: the change of body.1.weight reaches 0.")
    assert line.endswith(", but the maximum is 0.001; use a larger comm_args.secure_clip")
    ((_, result),) = run.results(0, [1])
    result.upload["classifier.bias"][0] = torch.nan
    with pytest.raises(RunError, match=r"^round 1: client 1: classifier.bias is not finite, training diverged; use a "):
        run.made.sums.encode_result(1, 0, run.made.start, result)


@pytest.mark.parametrize("upload", [{}, {VECTOR: torch.zeros(3, dtype=torch.int32)}, {"w": torch.zeros(2)}])
def test_an_upload_that_is_not_a_vector_is_refused(upload):
    run = Federation(SECURE)
    ((client, result),) = run.sealed(0, [1])
    run.server.check(client, 0, result)
    with pytest.raises(RunError, match=r"^round 1: upload of client 1 is not a vector of \d+ integers of 32 bits$"):
        run.server.check(client, 0, replace(result, upload=upload))
