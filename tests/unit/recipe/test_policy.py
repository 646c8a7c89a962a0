import pytest
from error_messages import message
from recipe_texts import only_line

from fl_labelskew_plugins.recipe import parse, policy
from fl_labelskew_plugins.recipe.mistakes import RecipeError

RECIPE = """\
common_args: {{training_type: cross_silo}}
data_args: {{dataset: digits}}
model_args: {{model: mlp}}
train_args: {{client_num_in_total: 3, comm_round: 5{train}}}
method_args: {{method: {method}}}
comm_args: {{backend: GRPC{comm}}}
client_specific_args: {{data_silo_config: [north.yaml, b.yaml, c.yaml]}}
{more}
"""
COUNTS, SIGMA = "noise_at_least: {count_noise: 4}", "noise_at_least: {upload_sigma: 0.1}"
SUMS = ", secure_aggregation: true, certs: certs"
NOISE = "privacy_args: {noise_multiplier: 1, clip: 1}"
LDP = "dp_args: {enable_dp: true, dp_solution_type: ldp, epsilon: 0.5, sensitivity: 2, "
HOST_LAPLACE = LDP + "mechanism_type: laplace, delta: 0}"
GAUSSIAN = "noise_at_least: {%s: {kind: gaussian, scale: 4}}"
LAPLACE = "noise_at_least: {count_noise: {kind: laplace, scale: 4}}"
BOTH = {
    "method": "fedshift + fedrs, fedrs: {upload_clip: 1, upload_sigma: 0.1}",
    "own": "method_args: {fedshift: {count_noise: 4}}",
}


def shift(own):
    """FedShift with a silo's own parameters."""
    return {"method": "fedshift", "own": f"method_args: {{{own}}}"}


def lines(tmp_path, text, method="fedavg", train="", comm="", more="", own="", overrides=()):
    (tmp_path / "north.yaml").write_text(f"policy: {{{text}}}\n{own}")
    source = RECIPE.format(method=method, train=train, comm=comm, more=more)
    try:
        parse.silo(parse.parse(source, source=tmp_path / "r.yaml", overrides=overrides), 1)
    except RecipeError as error:
        return [line.removeprefix(f"{tmp_path / 'north.yaml'}: policy.") for line in error.mistakes]
    return []


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("methods: [fedmr]", {"method": "fedshift + fedrs"}, 'methods: ["fedmr"] does not allow method_args'),
        ("max_rounds: 4", {}, "max_rounds: 4 does not allow train_args.comm_round 5;"),
        ("min_clients: 3", {}, "min_clients: 3 does not allow comm_args.min_clients 2;"),
        ("send: [weights]", {"comm": ", send_measures: true"}, "measures: comm_args.send_measures true;"),
        ("send: [weights]", {"train": ", proxy_aggregation: class"}, "counts: train_args.proxy_aggregation class;"),
        ("send: [weights]", {"method": "fedshift"}, "counts: smoothed in the opening exchange of fedshift;"),
        ("send: [weights, counts]", {"method": "fedmr"}, "prototypes: sums in the uploads of fedmr;"),
        ("send: [weights, prototypes]", {"method": "fedproc"}, "counts: counts in the uploads of fedproc;"),
        ("send: [weights]", {"train": ", federated_optimizer: SCAFFOLD"}, "optimizer: tensors of SCAFFOLD in addition"),
        ("send: [counts]", {}, 'send: ["counts"] does not allow weights: every upload;'),
        (f"server_fingerprint: {'ab' * 32}", {}, "does not allow a connection without certificates (comm_args.certs);"),
        (SIGMA, {}, "noise_at_least.upload_sigma: 0.1 does not allow noise of 0;"),
        (SIGMA, {"method": "fedrs, upload_clip: 1, upload_sigma: 0.05"}, "of 0.05; set more noise, or change this"),
        (COUNTS, {"method": "fedshift"}, "count_noise: 4 does not allow noise of 0;"),
        (COUNTS, {"method": "fedmr"}, "count_noise: 4 does not allow noise of 0;"),
        (COUNTS, shift("count_noise: 3"), "count_noise: 4 does not allow noise of 3;"),
        (GAUSSIAN % "count_noise", shift("count_noise: 4"), "count_noise: gaussian does not allow laplace noise; set"),
        (LAPLACE, shift("count_noise: 4, count_noise_type: gaussian"), "laplace does not allow gaussian noise;"),
        (GAUSSIAN % "dp", {"more": HOST_LAPLACE}, "noise_at_least.dp: gaussian does not allow laplace noise;"),
        ("noise_at_least: {noise_multiplier: 1}", {}, "noise_at_least.noise_multiplier: 1 does not allow noise of 0;"),
        ("require_secure_aggregation: true", {}, "true does not allow comm_args.secure_aggregation false; use another"),
        ("noise_at_least: {dp: 1}", {}, "noise_at_least.dp: 1 does not allow noise of 0;"),
        ("noise_at_least: {dp: 5}", {"more": HOST_LAPLACE}, "allow noise of 4;"),
    ],
)
def test_recipe_keys_beyond_the_policy_are_refused(tmp_path, text, more, said):
    found = lines(tmp_path, text, **more)
    assert found
    assert said in found[0] or said in found[-1]


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("methods: [fedrs, fedshift]", {"method": "fedshift + fedrs"}),
        ("max_rounds: 4", {"train": ", client_num_per_round: 1"}),  # asked in some of them
        ("max_rounds: 5, min_clients: 3", {"comm": ", min_clients: 3"}),
        ("send: [weights]", {"method": "fedmr, mu2: 0"}),
        ("require_secure_aggregation: true", {"comm": SUMS}),
        ("noise_at_least: {noise_multiplier: 1}", {"comm": SUMS, "more": NOISE}),
        (LAPLACE, shift("count_noise: 4")),
        ("send: [weights]", {"method": "fedmr", "own": "comm_args: {send_contributions: false}"}),
        ("send: [weights, prototypes, counts]", {"method": "fedmr"}),
        ("send: [weights, prototypes]", {"method": "fd"}),
        (f"server_fingerprint: {'ab' * 32}", {"comm": ", certs: certs"}),
        (COUNTS, {"method": "fedavg"}),  # no counts leave
        ("noise_at_least: {count_noise: 4, upload_sigma: 0.1}", BOTH),
        ("noise_at_least: {dp: 4}", {"more": HOST_LAPLACE}),
    ],
)
def test_recipes_within_the_policy_are_accepted(tmp_path, text, more):
    assert lines(tmp_path, text, **more) == []


@pytest.mark.host
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_of_the_host_equals_its_computation(mechanism):
    from fedml.core.dp.mechanisms import gaussian, laplace

    made = {"gaussian": gaussian.Gaussian, "laplace": laplace.Laplace}[mechanism]
    noise = LDP + f"mechanism_type: {mechanism}, delta: 0.1}}"
    own = parse.parse(RECIPE.format(method="fedavg", train="", comm="", more=noise))
    assert policy.host_noise(own) == pytest.approx(made(0.5, 0.1, 2).scale)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_round: 3", "max_round: unknown key; allowed: methods, max_rounds, "),
        ("max_rounds: 0", "max_rounds: 0 is out of range; allowed: an integer of at least 1, or null"),
        ("methods: [fedmrr]", "methods: 'fedmrr' is unknown; allowed: "),
        ("send: [weight]", "send: item 1: 'weight' is unknown; allowed: a list, each weights, prototypes, "),
        ("server_fingerprint: AB", "server_fingerprint: 'AB' has the wrong form; allowed: text, or null"),
        ("noise_at_least: {sigma: 3}", "noise_at_least: sigma: unknown key; allowed: count_noise, upload_sigma, dp"),
        ("noise_at_least: {dp: 0}", "noise_at_least: dp: 0 is out of range; allowed: a number above 0, or {kind: lap"),
        ("noise_at_least: {dp: {kind: lap}}", 'noise_at_least: dp: {"kind": "lap"} is of the wrong type; allowed: a'),
        ("noise_at_least: 3", "noise_at_least: 3 is of the wrong type; allowed: {count_noise: a number above 0, or "),
    ],
)
def test_a_policy_is_checked_like_every_section(tmp_path, text, said):
    (line,) = lines(tmp_path, text)
    assert line.startswith(said)
    assert lines(tmp_path, "1") != []


def test_neither_recipe_nor_override_can_change_a_policy(tmp_path):
    plain = RECIPE.format(method="fedavg", train="", comm="", more="")
    assert "policy: unknown section; allowed: common_args" in only_line(plain + "policy: {max_rounds: 9}")
    assert only_line(plain, "policy.max_rounds=9").startswith("--set policy.max_rounds: unknown section")
    (line,) = lines(tmp_path, "max_rounds: 5", overrides=["train_args.comm_round=6"])
    assert line.startswith("max_rounds: 5 does not allow")


def test_a_policy_is_only_in_the_silos_file(tmp_path):
    (tmp_path / "north.yaml").write_text("policy: {max_rounds: 5, account: answers.json}")
    (tmp_path / "r.yaml").write_text(RECIPE.format(method="fedavg", train="", comm="", more=""))
    assert parse.check(tmp_path / "north.yaml") == "ok, silo 1 of r.yaml"
    own = parse.silo(parse.load(tmp_path / "r.yaml"), 1)
    assert own.policy.account == str(tmp_path / "answers.json")
    assert "policy" not in own.resolved()
    (tmp_path / "north.yaml").write_text("policy: {max_rounds: 1}")
    assert "max_rounds: 1 does not allow" in message(lambda: parse.check(tmp_path / "north.yaml"))
