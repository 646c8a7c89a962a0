import pytest
from recipe_texts import CROSS_SILO, FEDAVG, cross_silo, lines_of, only_line, text_with

from fl_labelskew_plugins.recipe import parse

SUMS, BITS = "comm_args.secure_aggregation", "comm_args.secure_bits"
HIDDEN = f"single uploads, which are hidden with {SUMS}; allowed:"
SINGLE = f"true cannot be used with {SUMS}: FedML's code needs single uploads, which are hidden then; allowed: false"
DEFENCE = ("enable_defense=true", "defense_type=cclip", "bucket_size=2")
BYZANTINE = ("enable_attack=true", "attack_type=byzantine", "byzantine_client_num=1", "attack_mode=random")
NOISE = ("enable_dp=true", "dp_solution_type=cdp", "mechanism_type=laplace", "epsilon=1", "delta=0", "sensitivity=1")
NOISE_SWITCH = " ".join(("dp_args:", *NOISE))
FOUR = ["comm_args.certs=certs", "train_args.client_num_in_total=4", "client_specific_args.data_silo_config=[]"]


def test_conflicts_are_reported_when_each_value_is_valid():
    assert len(lines_of(text_with(train_args={"client_num_in_total": 0, "client_num_per_round": 20}))) == 1
    conflicts = {"train_args": {"client_num_in_total": 2, "client_num_per_round": 20}, "comm_args": {"workers": 2}}
    assert len(lines_of(text_with(**conflicts))) == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("common_args.training_type=cross_silo", "comm_args.backend: sp cannot be used with training_type cross_silo;"),
        ("comm_args.backend=GRPC", "comm_args.backend: GRPC cannot be used with training_type simulation; allowed: "),
        ("comm_args.workers=2", "comm_args.workers: 2 cannot be used with backend sp; allowed: null, or a number with"),
        ("comm_args.min_clients=11", "comm_args.min_clients: 11 is out of range; allowed: an integer from 1 to "),
        ("comm_args.send_contributions=false", "comm_args.send_contributions: false cannot be used with training_type"),
        ("client_specific_args.data_silo_config=[a]", "client_specific_args.data_silo_config: cannot be used with "),
        ("comm_args.round_deadline_s=0", "comm_args.round_deadline_s: 0 is out of range; allowed: a number above 0"),
        ("privacy_args.noise_multiplier=2", "privacy_args: noise_multiplier and clip belong together; set both or ne"),
    ],
)
def test_keys_that_exclude_another_key_or_its_default(override, message):
    assert message in only_line(text_with(), override)


@pytest.mark.parametrize("host", ["10.1.2.3", "0.0.0.0", "silo.example.org", "[fe80::1]"])
@pytest.mark.parametrize("key", ["server_address", "listen_address"])
def test_a_reachable_address_needs_certificates(key, host):
    line = only_line(cross_silo(**{key: f"{host}:8890"}))
    assert line == (
        f"r.yaml: comm_args.certs: missing; {key} {host}:8890 can be reached from other machines; use a folder "
        "of `labelskew certs new`, or an address such as 127.0.0.1:8890"
    )
    assert parse.parse(cross_silo(**{key: f"{host}:8890", "certs": "c"})).comm.certs
    assert parse.parse(text_with(comm_args={key: f"{host}:8890"})).comm.certs is None


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.9.1:65535", "[::1]:8890", "localhost:8890"])
def test_loopback_needs_no_certificates(address):
    assert parse.parse(cross_silo(server_address=address)).comm.server_address == address


@pytest.mark.parametrize(
    "address",
    ["", "x", "127.0.0.1", "127.0.0.1:", ":8890", "a:65536", "a:-1", "::1:80", "[x]:1", "a b:1", "a:1\n", "a:²"],
)
def test_invalid_addresses(address):
    line = only_line(text_with(comm_args={"server_address": address}))
    assert "is not an address; use host:port with a port from 0 to 65535, such as" in line


@pytest.mark.parametrize("switch", ["security_args: enable_defense=true defense_type=rfa", NOISE_SWITCH])
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ("method_args.method=fedmr", "method fedmr: FedML checks and protects only weights, but clients also send "),
        ("train_args.federated_optimizer=SCAFFOLD", "federated_optimizer SCAFFOLD: FedML checks and protects only we"),
        ("train_args.proxy_aggregation=class", "proxy_aggregation class: FedML may drop clients; allowed: false"),
    ],
)
def test_switches_of_fedml_need_uploads_with_only_weights(switch, changes, what):
    section, *pairs = switch.split()
    overrides = [f"{section[:-1]}.{pair}" for pair in pairs]
    line = only_line(text_with(FEDAVG), changes, *overrides)
    assert f"{overrides[0].removesuffix('=true')}: true cannot be used with {what}" in line


def test_one_file_per_silo_is_required():
    text = text_with(**CROSS_SILO | {"client_specific_args": {"data_silo_config": ["one.yaml"]}})
    assert only_line(text).endswith("data_silo_config: 1 files for 2 clients; allowed: one file per client, or none")


def test_poisoned_samples_are_not_augmented():
    flipping = {"enable_attack": True, "attack_type": "label_flipping", "ratio_of_poisoned_client": 0.5}
    flipping |= {"original_class_list": [1], "target_class_list": [2]}
    text = text_with(FEDAVG, security_args=flipping, train_args={"augment": ["flip"]})
    assert "train_args.augment: cannot be used with attack_type label_flipping" in only_line(text)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([f"security_args.{key}" for key in BYZANTINE], f"security_args.enable_attack: {SINGLE}"),
        ([f"security_args.{key}" for key in DEFENCE], f"security_args.enable_defense: {SINGLE}"),
        ([f"dp_args.{key}" for key in NOISE], f"dp_args.enable_dp: {SINGLE}"),
        (["comm_args.max_update_ratio=5"], f"comm_args.max_update_ratio: 5 needs {HIDDEN} null, or omit it"),
        (
            ["tracking_args.diagnostics=[class_accuracy, client_drift, label_heatmap]"],
            f"tracking_args.diagnostics: class_accuracy, client_drift: need {HIDDEN} other diagnostics",
        ),
        (
            [f"{BITS}=16", "train_args.client_num_in_total=5000"],
            f"{BITS}: 16 are too few for the sums of more than 4096 clients; allowed: more, up to 32",
        ),
        ([f"{BITS}=8"], f"{BITS}: 8 is out of range; allowed: an integer of at least 16 and at most 32"),
        (["comm_args.secure_clip=0"], "comm_args.secure_clip: 0 is out of range; allowed: a number above 0, or null"),
    ],
)
def test_a_server_with_sums_has_no_single_uploads(overrides, line):
    assert only_line(text_with(), f"{SUMS}=true", *overrides) == f"--set {line}"


@pytest.mark.parametrize("key", ["train_args.client_num_per_round", "comm_args.secure_threshold"])
def test_sums_without_noise_are_over_all_clients(key):
    overrides = [f"{SUMS}=true", "train_args.client_num_in_total=5", f"{key}=4"]
    what = "4 of 5 clients: sums over different clients can be compared and reveal single uploads"
    allowed = "5, noise (privacy_args.noise_multiplier), or no secure aggregation"
    assert only_line(text_with(FEDAVG), *overrides) == f"--set {key}: {what}; allowed: {allowed}"
    parse.parse(text_with(FEDAVG), overrides=[*overrides, f"{key}=5"])
    parse.parse(text_with(FEDAVG), overrides=[*overrides, "privacy_args.noise_multiplier=1", "privacy_args.clip=1"])


OPTIMIZER = "train_args.federated_optimizer"
MORE = "sends more than weights, and the sums of both can reveal data of one client"
OTHERS = "FedAvg, FedProx, FedOpt, FedDyn, FedSAM, FedLESAM"
FEW = "0.3: the sum of prototypes would cover few clients; allowed: 1"


@pytest.mark.parametrize(
    ("overrides", "end"),
    [
        *[
            (f"{OPTIMIZER}={name} train_args.momentum=0", f"--set {OPTIMIZER}: {name} {MORE}; allowed: {OTHERS}")
            for name in ("SCAFFOLD", "FedDC", "Mime", "FedNova")
        ],
        ("train_args.proxy_aggregation=class", "reveal class counts of single clients; allowed: model"),
        ("method_args.method=fedmr method_args.share_prototypes=0.3", f"method_args.share_prototypes: {FEW}"),
        ("method_args.method=fedshift+fedmr method_args.fedmr.share_prototypes=0.3", f"share_prototypes: {FEW}"),
    ],
)
def test_sums_that_reveal_data_are_refused(overrides, end):
    line = only_line(text_with(FEDAVG), f"{SUMS}=true", *overrides.split())
    assert line.endswith(f"{end}, or no secure aggregation")


def test_masks_need_certificates_and_three_silos():
    assert lines_of(cross_silo(secure_aggregation=True)) == [
        f"r.yaml: comm_args.certs: missing; with {SUMS} silos must sign their keys, or the server could replace "
        "them; use a folder of `labelskew certs new`",
        f"r.yaml: {SUMS}: true needs at least 3 silos per round: smaller sums protect no client; allowed: false",
    ]
    recipe = parse.parse(cross_silo(secure_aggregation=True), source="r.yaml", overrides=FOUR)
    assert recipe.only_sums
    assert not parse.parse(text_with(), overrides=[f"{SUMS}=true"]).only_sums  # nobody is to be hidden from


@pytest.mark.parametrize(
    ("threshold", "line"),
    [
        (5, "5 is out of range; allowed: 3 to 4, more than half of client_num_per_round"),
        (2, "2 is out of range; allowed: an integer of at least 3, or null"),
    ],
)
def test_threshold_of_a_secure_sum(threshold, line):
    overrides = [*FOUR, f"comm_args.secure_threshold={threshold}"]
    assert only_line(cross_silo(secure_aggregation=True), *overrides) == f"--set comm_args.secure_threshold: {line}"


def test_sums_do_not_reveal_samples_per_silo():
    own = "client_specific_args.data_silo_config=[a.yaml,b.yaml,c.yaml,d.yaml]"
    overrides = [*FOUR, own, "data_args.dataset=npz", "data_args.data_cache_dir=x.npz"]
    why = f"with {SUMS} silos do not send the sums for a common mean and std; write"
    numbers = "numbers for each channel or feature, or one for all, such as mean: [0.5] and std: [0.25]"
    text = cross_silo(secure_aggregation=True)
    assert lines_of(text, *overrides) == [f"r.yaml: data_args.mean: missing: {why} {numbers}"]
    pictures = [*overrides[:-2], "data_args.dataset=image_folder", "data_args.mean=data"]
    line = f"--set data_args.mean: 'data': {why} mean: imagenet (pictures in colour), or {numbers}"
    assert lines_of(text, *pictures) == [line]
    parse.parse(text, source="r.yaml", overrides=[*overrides, "data_args.mean=[0.5]", "data_args.std=[0.5]"])


@pytest.mark.parametrize(("bits", "clip"), [(16, 4.0), (24, 8.0), (32, 16.0)])
def test_largest_change_of_a_parameter(bits, clip):
    overrides = [f"{SUMS}=true", f"comm_args.secure_bits={bits}"]
    assert parse.parse(text_with(), overrides=overrides).comm.largest_change == clip
    assert parse.parse(text_with(), overrides=[*overrides, "comm_args.secure_clip=3"]).comm.largest_change == 3
