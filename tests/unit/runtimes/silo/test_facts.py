import json
import stat
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from error_messages import message
from fl_labelskew_registry import LabelSkewError, RunError
from recipe_texts import SILOS, cross_silo

from fl_labelskew_plugins.data import stats
from fl_labelskew_plugins.data.isic2019 import ISIC2019
from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runtimes.silo import facts as silos
from fl_labelskew_plugins.runtimes.silo.client import SiloClient, digest_inputs, noise_seed, secret
from fl_labelskew_plugins.runtimes.silo.summed import weaknesses

RECIPE = SILOS.replace("method: fedavg", "method: fedshift, count_noise: 2")


def parsed(*overrides):
    return recipes.parse(RECIPE, overrides=overrides)


def test_a_silo_with_separate_data_trains_on_all_of_them(tmp_path):
    x, y = np.random.default_rng(0).random((30, 6), np.float32), np.arange(30) % 3
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    (tmp_path / "silo.yaml").write_text(f"data_args: {{dataset: npz, data_cache_dir: {tmp_path}/mine.npz}}\n")
    files = f"client_specific_args.data_silo_config={[str(tmp_path / 'silo.yaml')] * 3}"
    assert message(lambda: recipes.silo(parsed(files), 2)) == (
        f"{tmp_path}/silo.yaml: data_args.mean: 'data' here but that of digits in the recipe; all silos share one "
        "normalisation: set mean and std in the recipe to numbers, imagenet or data"
    )
    made = recipes.silo(parsed(files, "data_args.mean=data"), 2)
    assert made.normalisation == {"mean": "data", "std": "data"}
    silo = silos.load(made, 1)
    assert silo.facts == silos.Facts(30, (6,), 3)
    assert len(silo.data.test.y) == 9


def test_with_secure_sums_numbers_of_samples_are_not_sent():
    """Nor class counts; the server refuses them, and a silo takes no run for one of other samples than it has."""
    summed = silos.Facts(0, (1, 8, 8), 2, classes="0" * 32)
    reported = json.loads(json.dumps(summed.meta()))
    assert reported == {"input_shape": [1, 8, 8], "num_classes": 2, "classes": "0" * 32}
    assert silos.facts(reported, summed=True) == summed
    for more in ({"samples": 40}, {"counts": [30, 10]}):
        line = message(lambda more=more: silos.facts(reported | more, summed=True), kind=RunError)
        assert "samples, but comm_args.secure_aggregation allows only their sum" in line
    assert "its number of samples is not a whole number above 0" in message(
        lambda: silos.facts(reported), kind=RunError
    )


def of_sums(*overrides):
    """A recipe with secure aggregation, and a silo's function that checks the server's numbers."""
    clients = ["train_args.client_num_in_total=3", "client_specific_args.data_silo_config=[]"]
    text = cross_silo(secure_aggregation=True, certs="certs")
    here = recipes.parse(text, overrides=[*clients, *overrides])
    numbers = {"num_clients": 3, "clients_per_round": 3, "rounds": here.train.comm_round, "epochs": here.train.epochs}
    numbers |= {"num_classes": 10, "num_features": 8, "seed": 0, "min_samples": 0}
    return here, lambda **more: silos.federation(numbers | more, here, silos.Facts(40, (1, 8, 8), 10))


def test_settings_of_sums_are_agreed_and_the_sum_of_samples_is_sent_later():
    (here, federation), (other, _) = of_sums(), of_sums("comm_args.secure_bits=20")
    silos.check_agreement(silos.agreed(here), here)
    line = "comm_args.secure_bits: 32 here and 20 at the server; use the server's"
    assert line in message(lambda: silos.check_agreement(silos.agreed(other), here))
    clear, _ = of_sums("comm_args.secure_aggregation=false")
    with pytest.raises(LabelSkewError, match=r"comm_args.secure_aggregation: .* here and true at the server"):
        silos.check_agreement(silos.agreed(here), clear)
    for samples in (0, 40, 1000):
        assert federation(num_samples=samples).num_samples == samples
    for wrong in ({"num_samples": 39}, {"num_samples": 1000, "min_samples": 40}):
        with pytest.raises(LabelSkewError, match=f"the server's federation: {[*wrong][-1]} is {[*wrong.values()][-1]}"):
            federation(**wrong)


def test_with_noise_a_negative_claim_of_another_silo_makes_no_silo_leave():
    """The sum is then less than this silo's own number; its weight is at most 1."""
    _, federation = of_sums("privacy_args.noise_multiplier=1", "privacy_args.clip=1", "method_args.method=fedavg")
    assert federation(num_samples=39).num_samples == 39


@pytest.fixture
def named():
    """The silos that are named if silos send these sums."""
    recipe = parsed("data_args.input_shape=[2, 1, 1]", "data_args.classes=10")

    def names(*sums):
        census = silos.Census(recipe, None, [0] * len(sums), lambda client, line: None)
        census._sums = dict(enumerate(sums))
        return [client for client, _ in census.unusual_moments(range(len(sums)))]

    return names


def of(mean, std, count=100):
    """Sums of ``count`` values for each of two channels."""
    mean, std = np.zeros(2) + mean, np.zeros(2) + std
    return stats.MomentSums(count, count * mean, count * std**2)


CONSTANT = (1.0, 0.0)  # in the second channel


def test_only_the_server_needs_to_know_when_a_run_stops():
    """So it can resume a stopped run beyond that, with silos of the same recipe as before."""
    agreed = [silos.agreed(parsed(f"train_args.stop={stop}")) for stop in ("null", "{target: 0.9}")]
    assert agreed[0] == agreed[1] != silos.agreed(parsed("train_args.epochs=3"))


def test_a_silo_with_most_samples_need_not_be_the_cause():
    recipe = parsed("data_args.input_shape=[2, 1, 1]", "data_args.classes=10")
    for mean, found in ((20, {0: True}), (3000, {2: False})):
        census = silos.Census(recipe, None, [0] * 3, lambda client, line: None)
        census._sums = {0: of(0, 1, 1900 if found.get(0) else 50), 1: of(0, 1, 30), 2: of(mean, 1, 30)}
        assert dict(census.unusual_moments(range(3))) == found


@pytest.mark.parametrize(
    ("usual", "unusual"),
    [
        (of(0, 1), of(0, 1e6)),
        (of(0, (1, 1e-3)), of(0, (1, 1))),
        (of(0, 1), of((0, 50), 1)),
        (of(0, 1), of(0, 0, 10**9)),  # many equal values
        (of(0, 1, 300), of(8000, 1, 1)),  # one value far away
        (of(0, CONSTANT), of(0, 30)),
        (of(0, CONSTANT), of((0, 1), CONSTANT, 10**9)),  # many other values of a constant
    ],
)
def test_a_silo_that_makes_the_common_mean_or_std_useless_is_named(named, usual, unusual):
    assert named(usual, usual, unusual, usual) == [2]
    assert named(usual, usual) == []
    assert named(usual) == named() == []


def test_silos_with_other_features_are_not_named(named):
    assert named(of(0, 1), of(1, 3), of(0, 1)) == []
    assert named(of(0, CONSTANT), of(0, CONSTANT), of((0, 1e6), 1)) == []  # constant at all others: not compared
    assert named(of(0, 1), of(0, CONSTANT, 2)) == []


def test_channels_that_the_common_mean_and_std_do_not_suit():
    """By hand: (5 - 0) / 0.4 = 12.5 and 0.03 / 0.4 = 0.075."""
    assert silos.unsuitable(((0.0, 0.0), (0.4, 0.4)), of(5, 1)) == [(0, 12.5, 2.5), (1, 12.5, 2.5)]
    ((channel, mean, std),) = silos.unsuitable(((0.0,), (0.4,)), of(0, (0.03, 0.05)))
    assert (channel, mean, std) == (0, 0, pytest.approx(0.075))
    ((channel, _, std),) = silos.unsuitable(((0.0, 0.0), (1.0, 1e-11)), of(0, 1))
    assert (channel, std) == (1, pytest.approx(1e11))
    assert silos.unsuitable(((0.0, 0.0), (1.0, 1e6)), of(0, CONSTANT)) == []


def test_only_a_digest_of_class_names_is_sent_and_class_counts_only_for_weighted_rows():
    digits = silos.load(parsed(), 0)
    assert digits.facts.meta().keys() == {"samples", "input_shape", "num_classes"}
    assert digits.counts.tolist() == np.bincount(digits.data.train.y, minlength=10).tolist()
    one, other = silos.digest(["benign", "malign"]), silos.digest(["malign", "benign"])
    assert one == silos.digest(["benign", "malign"]) != other
    for facts in (silos.Facts(7, (1, 8, 8), 2, classes=one), silos.Facts(7, (5,), 3, (3, 0, 4))):
        assert silos.facts(json.loads(json.dumps(facts.meta()))) == facts
        assert "benign" not in json.dumps(facts.meta())
    answer = silos.load(parsed("train_args.proxy_aggregation=class"), 0).facts
    assert sum(answer.counts) == answer.samples


@pytest.mark.parametrize(
    ("here", "theirs", "says"),
    [
        ("abc", "abc", ""),
        ("abc", "acb", "class 1 is 'b' here and 'c' there (and 1 more differ); use the same data_args.class_names"),
        ("abc", "abd", "class 2 is 'c' here and 'd' there; use the same data_args.class_names, in the same order, ev"),
        ("abc", "ab", "3 classes here and 2 there"),
        ("01", "ab", ""),  # numbers are no names
        ("ab", "01", ""),
    ],
)
def test_the_first_class_that_differs_is_named(here, theirs, says):
    answer = silos.differing(list(here), list(theirs), "there")
    assert answer.startswith(says)
    assert bool(answer) == bool(says)
    for nonsense in (None, "ab", {"a": 1}, [1, 2], [["a"], "b"]):
        assert silos.differing(list(here), nonsense, "there") == ""
    assert silos.differing(["a"], ["\x1b[31m\n" + "x" * 10_000], "there").isprintable()


INVALID = {
    "samples": ("number of samples", [0, True, 2.0, None]),
    "input_shape": ("input shape", [[], [1, -8], [10**9], "8"]),
    "num_classes": ("number of classes", [0, 10**9]),
    "counts": ("class counts", [[1] * 10, [7] + [0] * 8, [9, -2] + [0] * 8]),
    "classes": ("digest of class names", ["a" * 31, ["a"] * 32, "g" * 32]),
}


@pytest.mark.parametrize("key", INVALID)
def test_invalid_facts_are_refused(key):
    words, values = INVALID[key]
    for value in values:
        with pytest.raises(RunError, match=words):
            silos.facts({"samples": 7, "input_shape": [8, 8], "num_classes": 10, key: value})


def test_agreement_covers_settings_that_affect_results():
    server = json.loads(json.dumps(silos.agreed(parsed())))
    same = ["method_args.count_noise=5", "device_args.threads=2"]
    same += ["comm_args.send_measures=true", "data_args.download=true"]
    silos.check_agreement(server, parsed(*same))
    for override, words in [
        ("train_args.learning_rate=0.5", "train_args.learning_rate: 0.5 here and 0.1 at the server; use the"),
        ("common_args.random_seed=3", "common_args.random_seed: 3 here and 0 at the server"),
        ("method_args.smoothing=3", "method_args.smoothing: 3.0 here and 1.0 at the server"),
        ("model_args.hidden=[9]", "model_args.hidden"),
        ("method_args.method=fedavg", "(and "),
    ]:
        assert words in message(lambda override=override: silos.check_agreement(server, parsed(override)))
    for nonsense in (None, [], {"train_args": 3}, {}):
        with pytest.raises(LabelSkewError):
            silos.check_agreement(nonsense, parsed())


def test_a_silo_keeps_its_secret(tmp_path):
    first = secret(tmp_path)
    assert secret(tmp_path) == first
    assert secret(tmp_path / "other") != first
    assert first >> 64  # more than any seed that a server could try
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    (tmp_path / "secret").write_text("?")
    assert "secret: is not a silo's secret; delete the file" in message(lambda: secret(tmp_path))


def test_no_two_answers_of_a_silo_share_their_noise():
    """Counts with noise of strength 20 and of 40, and of one sample less: neither gives the true ones away."""

    def counts(noise, without=0):
        recipe = parsed("method_args.method=fedshift", f"method_args.count_noise={noise}")
        silo = silos.load(recipe, 0)
        train = silo.data.train
        silo = replace(silo, data=replace(silo.data, train=replace(train, x=train.x[without:], y=train.y[without:])))
        seed = noise_seed(2**100, digest_inputs(recipe, silo))
        made = session.assemble(recipe, silo.data, *silo.indices(0), [silo.facts.samples], secret=seed)
        return made.opening(0).tensors["smoothed"], Turn(made.trainer, 0).view.counts

    one, true = counts(20.0)
    other, _ = counts(40.0)
    held = true > 100  # far from 0, where noisy counts are cut off
    assert int(held.sum()) >= 3
    assert ((2 * one - other - true)[held].abs() > 2).any()
    fewer, _ = counts(20.0, without=1)
    assert (one - fewer)[held].abs().sum() > 2
    assert counts(20.0)[0].tolist() == one.tolist()  # asked again, the same answer
    seeds = [noise_seed(5, b"a", "q"), noise_seed(6, b"a", "q"), noise_seed(5, b"b", "q"), noise_seed(5, b"a", "r")]
    assert len({*seeds}) == 4
    assert noise_seed(5, b"a", "q") == seeds[0]


def test_every_setting_of_an_answer_changes_its_noise():
    def digest(*overrides):
        silo_recipe = parsed("method_args.method=fedrs", "method_args.upload_clip=1", *overrides)
        return digest_inputs(silo_recipe, silos.load(silo_recipe, 0))

    plain = digest()
    assert digest() == plain
    assert digest("tracking_args.run_dir=elsewhere", "comm_args.reconnect_s=3") == plain
    for override in (
        "method_args.upload_sigma=0.1",
        "train_args.epochs=3",
        "model_args.hidden=[9]",
        "common_args.random_seed=5",
        "device_args.precision=bf16",
        "partition_args.classes_per_client=5",
    ):
        assert digest(override) != plain, override


def test_settings_of_pictures_that_are_read_later_change_the_noise(tmp_path):
    """Another crop gives another answer, and two answers with the same noise would reveal their difference."""
    ISIC2019(ISIC2019.Params()).fake(tmp_path, samples=80, seed=0)

    def digest(crop):
        data = ["data_args.dataset=isic2019", f"data_args.data_cache_dir={tmp_path}", f"data_args.crop={crop}"]
        silo_recipe = parsed(*data, "partition_args.partition_method=iid", "model_args.model=fecnn")
        return digest_inputs(silo_recipe, silos.load(silo_recipe, 0))

    assert digest(32) == digest(32)
    assert digest(32) != digest(33)


def test_weak_settings_of_sums_cause_a_warning():
    warning = "train_args.weight_decay: the server can compute numbers of samples"
    for decay, warned in ((0, False), (0.001, True)):
        lines = weaknesses(parsed("method_args.method=fedavg", f"train_args.weight_decay={decay}"))
        assert any(warning in line for line in lines) == warned
    noise = ["comm_args.secure_aggregation=true", "privacy_args.noise_multiplier=1", "privacy_args.clip=1"]
    noise += ["comm_args.certs=certs"]
    for threshold, warned in ((3, True), (4, False)):
        more = ["train_args.client_num_in_total=5", f"comm_args.secure_threshold={threshold}"]
        lines = weaknesses(parsed("method_args.method=fedavg", *noise, *more))
        assert any("a server and one silo that cooperate" in line for line in lines) == warned


def test_answers_with_other_noise_are_different_answers():
    """Silos, or two folders of one silo, may share a ledger; the secret and the rank decide the noise."""
    silos = [
        SimpleNamespace(inputs_digest=b"data", _secret=secret, rank=rank) for secret, rank in ((5, 1), (6, 1), (5, 2))
    ]
    answers = [SiloClient.answer_digest(silo, "question") for silo in silos]
    assert len({*answers, SiloClient.answer_digest(silos[0], "another question")}) == 4
    assert SiloClient.answer_digest(silos[0], "question") == answers[0]


def test_class_counts_of_a_silo_do_not_change_within_a_run():
    recipe = parsed("data_args.input_shape=[1, 8, 8]", "data_args.classes=10", "train_args.proxy_aggregation=class")
    census = silos.Census(recipe, None, [0, 0, 0], lambda client, line: None)
    first = silos.Facts(40, (1, 8, 8), 10, counts=(4,) * 10)
    census.add(0, first)
    census.check(0, first)
    for other in ((40, *(0,) * 9), None):
        with pytest.raises(RunError, match="its class counts have changed; begin a new run"):
            census.check(0, replace(first, counts=other))
