import json
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from error_messages import message
from fl_labelskew_registry import Batch
from method_totals import total_of
from recipe_texts import cross_silo
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods import combined
from fl_labelskew_plugins.methods.fedavg import FedAvg
from fl_labelskew_plugins.methods.fedlc import FedLC, calibrated_logits
from fl_labelskew_plugins.methods.fedmr import FedMR, intra_class_loss
from fl_labelskew_plugins.methods.fedphp import FedPHP
from fl_labelskew_plugins.methods.fedproc import FedProc
from fl_labelskew_plugins.methods.fedrs import FedRS
from fl_labelskew_plugins.methods.fedshift import FedShift, shifted_logits
from fl_labelskew_plugins.methods.map import MAP
from fl_labelskew_plugins.ops import restricted_logits
from fl_labelskew_plugins.recipe import parse, schema
from fl_labelskew_plugins.runtimes.silo import facts

TEXT = """\
data_args: {dataset: digits}
model_args: {model: mlp}
method_args: {method: [fedshift, fedmr], fedshift: {smoothing: 2.0}, fedmr: {mu1: 0.5}}
"""


@pytest.fixture
def samples(world):
    batch, prior = world.batch(), torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1])

    def view(stage="train"):
        return world.client(stage=stage, shared={"prior": prior})

    def loss(method, stage="train"):
        return method.loss(batch, view(stage))

    return SimpleNamespace(**vars(batch), counts=world.counts, prior=prior, view=view, loss=loss)


def test_a_calibration_inside_the_loss_of_another(samples):
    both = combined.combine({"fedshift": FedShift(), "fedmr": FedMR(FedMR.Params(mu1=0.5))})
    terms = samples.loss(both)
    shifted = shifted_logits(samples.logits, samples.counts, samples.prior, smoothing=1.0)
    assert torch.equal(terms["cross_entropy"], cross_entropy(shifted, samples.labels))
    assert torch.equal(terms["intra"], 0.5 * intra_class_loss(samples.features, samples.labels, num_classes=5))


def test_a_calibration_ends_with_the_upload(samples):
    """MAP's second stage has no calibration. FedPHP's only stage is uploaded, so it has one."""
    plain = cross_entropy(samples.logits, samples.labels)
    lowered = calibrated_logits(samples.logits, samples.counts, tau=1.0)
    restricted = restricted_logits(lowered, samples.counts, alpha=0.5)
    both = combined.combine({"fedlc": FedLC(), "map": MAP()})
    assert [stage.name for stage in both.stages(2)] == ["aggregate", "personalise"]
    assert torch.equal(samples.loss(both, "aggregate")["cross_entropy"], cross_entropy(restricted, samples.labels))
    assert torch.equal(samples.loss(both, "personalise")["cross_entropy"], plain)
    both = combined.combine({"fedlc": FedLC(), "fedphp": FedPHP()})
    assert torch.equal(samples.loss(both, "personalise")["cross_entropy"], cross_entropy(lowered, samples.labels))


def test_calibrations_apply_in_their_written_order(samples):
    parts = {"fedrs": FedRS(), "fedlc": FedLC()}
    first = combined.combine(parts).calibrate(samples.logits, samples.view())
    second = combined.combine(dict(reversed(parts.items()))).calibrate(samples.logits, samples.view())
    scaled = restricted_logits(samples.logits, samples.counts, alpha=0.5)
    lowered = calibrated_logits(samples.logits, samples.counts, tau=1.0)
    assert torch.equal(first, calibrated_logits(scaled, samples.counts, tau=1.0))
    assert torch.equal(second, restricted_logits(lowered, samples.counts, alpha=0.5))
    assert not torch.equal(first, second)


def test_the_order_of_additive_methods_does_not_matter(digits):
    """FedMR and FedProc send prototypes under the same names, and FedMR draws from the client's generator."""
    options = {"fedmr.lite": 4, "fedmr.prototypes": "running", "fedproc.schedule": "constant", "moon.mu": 0.5}
    methods = "moon+fedmr+fedproc+fedlc", "fedproc+fedlc+fedmr+moon"
    one, other = (digits(name, optimizer="Mime", **options) for name in methods)  # Mime computes each loss twice
    for clients in ([0, 1], [1, 2]):
        terms, again = ({k: r.loss_terms for k, r in run.play(clients).items()} for run in (one, other))
        assert terms == again
    assert list(terms[1]) == ["cross_entropy", "fedmr.intra", "fedmr.inter", "fedproc.contrast", "moon.contrast"]
    assert all(terms[1].values())
    first, second = one.server, other.server
    assert all(torch.equal(first.weights[name], value) for name, value in second.weights.items())
    assert {f"{part}/{name}" for part in ("fedmr", "fedproc") for name in ("prototypes", "known")} <= {*first.shared}
    assert not any(name.startswith("moon") for name in first.shared)


class Confident(FedAvg):
    """A method with a term of the calibrated logits, a calibration and an opening."""

    sends: ClassVar = {"n": "counts"}

    def opening_shapes(self, federation):
        return {"n": (1,)}

    def opening(self, client):
        return {"n": client.counts.sum().reshape(1)}

    def open(self, total):
        return {"all": total.tensors["n"]}

    def calibrate(self, logits, client):
        return logits * client.shared["all"]

    def terms(self, batch, client):
        client.scratch["calls"] = client.scratch.get("calls", 0) + 1
        client.state["calls"] = torch.tensor(client.scratch["calls"])
        return {"confidence": self.calibrate(batch.logits, client).logsumexp(1).mean()}


def test_a_part_has_its_own_state_and_all_calibrations(samples):
    both = combined.combine({"one": Confident(), "fedlc": FedLC(), "two": Confident()})
    assert both.additive()
    assert both.sends == {"one/n": "counts", "two/n": "counts"}
    assert both.opening_shapes(None) == {"one/n": (1,), "two/n": (1,)}
    client = samples.view()
    sent = both.opening(client)
    assert sent.keys() == {"one/n", "two/n"}
    client.shared = both.open(total_of({"one/n": torch.tensor([2.0]), "two/n": torch.tensor([0.5])}))
    terms = both.loss(Batch(samples.inputs, samples.features, samples.logits, samples.labels), client)
    lowered = calibrated_logits(samples.logits * 2, samples.counts, tau=1.0) * 0.5
    assert torch.equal(terms["one.confidence"], lowered.logsumexp(1).mean())
    assert torch.equal(terms["one.confidence"], terms["two.confidence"])
    assert {**client.state} == {"one/calls": 1, "two/calls": 1}


def test_a_combination_has_the_properties_of_its_parts():
    logits = combined.combine({"fedrs": FedRS(), "fedlc": FedLC()})
    assert logits.logits_only()
    assert not logits.protects()
    assert not logits.personalises()
    assert not logits.uses("contribute")  # so the host's switches may be on
    both = combined.combine({"fedshift": FedShift(), "fedmr": FedMR()})
    assert not both.logits_only()
    assert both.uses("contribute")
    assert both.uses("opening")
    assert not both.uses("stages", "personalised")
    assert "Manifold Reshaping" in both.paper
    assert not FedProc().additive()
    assert FedProc(FedProc.Params(schedule="constant")).additive()
    assert FedProc(FedProc.Params(mu=0)).additive()


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("[flda, moon]", "flda cannot be combined with moon: flda changes more than logits"),
        ("[fedmr, map]", "map cannot be combined with fedmr: map changes more than logits and terms of the loss"),
        ("fedrs+map", "fedrs and map both correct logits for missing classes; use one of them"),
        ("fedlc+fedshift", "fedlc and fedshift both correct logits for class counts; use one of them"),
        ("fedlc+fedvls", "fedlc and fedvls both correct logits for class counts; use one of them"),
        ("fedlc+fedgela", "fedgela cannot be combined: its loss does not use calibrated logits; use only fedgela"),
        ("fedlc+fedlx", "'fedlx' is unknown; allowed: ccvr, fd, fedavg, "),
        ("fedlc+fedlc", "fedlc occurs twice; allowed: each method once"),
        ("[1, fedmr]", '[1, "fedmr"] is not a method; allowed: a name, or a list of two names or more'),
    ],
)
def test_meaningless_combinations_are_refused(method, line):
    text = message(lambda: parse.parse(TEXT, overrides=[f"method_args.method={method}"]))
    assert f"--set method_args.method: {line}" in text


@pytest.mark.parametrize("same", ["fedshift+fedmr", " fedshift + fedmr", "[fedshift, fedmr]", "[fedmr, fedshift]"])
def test_the_same_methods_keep_the_files_parameters(same):
    keys = parse.parse(TEXT, overrides=[f"method_args.method={same}"]).resolved()["method_args"]
    assert (keys["fedshift"]["smoothing"], keys["fedmr"]["mu1"]) == (2.0, 0.5)


def test_a_dotted_key_reaches_a_parameter_of_one_of_them():
    """The other keys of the file stay; the order of overrides does not matter, and the file's methods are replaced."""
    keys = parse.parse(TEXT, overrides=["method_args.fedmr.mu2=0.25"]).resolved()["method_args"]
    assert (keys["fedshift"]["smoothing"], keys["fedmr"]["mu1"], keys["fedmr"]["mu2"]) == (2.0, 0.5, 0.25)
    overrides = ["method_args.fedmr.mu2=0.25", "method_args.method=fedlc+fedmr", "method_args.fedlc.tau=5"]
    for order in (overrides, overrides[::-1]):
        keys = parse.parse(TEXT, overrides=order).resolved()["method_args"]
        assert (keys["fedlc"]["tau"], keys["fedmr"]["mu1"], keys["fedmr"]["mu2"]) == (5.0, 0.01, 0.25)


def test_the_weights_of_the_last_method_apply_and_are_recorded():
    both = combined.combine({"fedshift": FedShift(), "fedmr": FedMR()})
    assert both.aggregation == "samples"
    assert both.deviations()[-1] == "uploads are weighted as in fedmr (samples), not as in fedshift (population)"
    assert combined.combine({"fedmr": FedMR(), "fedshift": FedShift()}).aggregation == "population"
    both = combined.combine({"fedlc": FedLC(), "fedmr": FedMR()})
    assert not any("uploads are weighted" in line for line in both.deviations())
    assert "denominator" not in parse.parse(TEXT).resolved()["method_args"]["fedshift"]


@pytest.mark.parametrize("value", ["participants", "population"])
def test_weights_without_effect_are_refused(value):
    override = f"method_args.fedshift={{denominator: {value}}}"
    assert message(lambda: parse.parse(TEXT, overrides=[override])) == (
        "recipe.yaml: method_args.method: fedshift.denominator chooses the weights of the uploads, but the last "
        "method, fedmr, decides them; remove fedshift.denominator, or put fedshift last"
    )
    last = parse.parse(TEXT, overrides=[override, "method_args.method=[fedmr, fedshift]"])
    assert last.resolved()["method_args"]["fedshift"]["denominator"] == value
    assert last.method.aggregation == ("samples" if value == "participants" else "population")


@pytest.fixture
def silo(tmp_path):
    """The federation's recipe as silo 1 runs it, with its own section."""
    path = tmp_path / "federation.yaml"
    path.write_text(cross_silo())
    both = ["method_args.method=fedshift+fedmr", "method_args.fedmr.mu1=0.5", "method_args.fedshift.smoothing=2"]
    whole = parse.load(path, both)

    def parsed(section):
        (tmp_path / "one.yaml").write_text(f"data_args: {{dataset: digits}}\nmethod_args: {section}\n")
        return whole, parse.silo(whole, 1)

    return parsed


def test_a_silo_sets_its_own_noise_under_the_parts_name(silo, samples):
    whole, one = silo("{fedshift: {count_noise: 4.0}}")
    shift, mr = one.method.parts["fedshift"].params, one.method.parts["fedmr"].params
    assert (shift.count_noise, shift.smoothing, mr.mu1) == (4.0, 2.0, 0.5)
    assert one.method.report(None)["privacy"]["epsilon"] == 0.5
    server = facts.agreed(whole)
    facts.check_agreement(server, one)
    assert "count_noise" not in server["method_args"]["fedshift"]
    server["method_args"]["fedshift"]["smoothing"] = 1.0
    assert "method_args.fedshift" in message(lambda: facts.check_agreement(server, one))
    # a new method instead of a wrapped one: calibrated once
    assert torch.equal(samples.loss(one.method)["cross_entropy"], samples.loss(whole.method)["cross_entropy"])
    assert silo("{}")[1].resolved() == whole.resolved()


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("{count_noise: 4.0}", "count_noise: unknown key; allowed: fedshift"),
        ("{fedmr: {mu1: 1.0}}", "fedmr: unknown key; allowed: fedshift"),
        ("{fedshift: {smoothing: 1.0}}", "fedshift.smoothing: unknown key; allowed: count_noise, count_noise_type"),
        ("{fedshift: {count_noise: -1}}", "fedshift.count_noise: -1 is out of range"),
        ("{fedshift: 4}", "fedshift: 4 is not a mapping of keys to values; allowed: count_noise, "),
    ],
)
def test_a_silo_sets_nothing_else(silo, section, line):
    assert f"one.yaml: method_args.{line}" in message(lambda: silo(section))


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["method_args.fedmr=3"], "fedmr: 3 is not a mapping; allowed: the parameters of fedmr"),
        (["method_args.fedmr.mu1=-1"], "fedmr.mu1: -1 is out of range"),
        (["method_args.fedmr.mu3=1"], "fedmr.mu3: unknown key; allowed: mu1, mu2"),
        (["method_args.fedlc.tau=1"], "fedlc: unknown key; allowed: method, fedshift, fedmr"),
        (["method_args.fedmr.mu1.x=1"], "fedmr.mu1.x: unknown key; allowed: mu1, mu2"),
        (["method_args.fedrm.mu1=1"], "fedrm.mu1: unknown key; allowed: method, fedshift, fedmr"),
        (["method_args.fedmr=3", "method_args.fedmr.mu1=1"], "fedmr: 3 is not a mapping; allowed: the"),
        (["method_args.mu1=1"], "mu1: unknown key; allowed: method, fedshift, fedmr"),
    ],
)
def test_parameters_are_grouped_by_method_name(overrides, line):
    assert f"--set method_args.{line}" in message(lambda: parse.parse(TEXT, overrides=overrides))


def test_a_recipe_is_unchanged_by_a_round_trip():
    loaded = parse.parse(TEXT)
    assert loaded.method_name == "fedshift+fedmr"
    again = parse.parse(loaded.dump())
    assert again.resolved() == loaded.resolved()
    alone = parse.parse(TEXT, overrides=["method_args.method=fedlc"])  # without parameters of the combination
    assert alone.resolved()["method_args"].keys() == {"method", "tau", "missing", "denominator"}


def test_the_schema_knows_lists():
    key = schema.json_schema()["$defs"]["recipe"]["properties"]["method_args"]["properties"]["method"]
    assert key["anyOf"][2]["minItems"] == 2
    assert "fedmr" in json.dumps(key)
