"""Values that are right alone and wrong together."""

import pytest
from recipe_texts import CROSS_SILO, cross_silo, lines_of, only_line, text_with

from fl_labelskew_plugins.recipe import parse


def test_a_judgement_does_not_rest_on_a_value_that_is_wrong():
    assert len(lines_of(text_with(train_args={"client_num_in_total": 0, "client_num_per_round": 20}))) == 1
    assert len(lines_of(text_with(train_args={"nesterov": True, "momentum": 2}))) == 1
    assert len(lines_of(text_with(train_args={"nesterov": True, "momentun": 0.9}))) == 1


def test_nesterov_with_adam():
    line = only_line(text_with(train_args={"nesterov": True, "momentum": 0.9, "client_optimizer": "adam"}))
    assert "does not go with client_optimizer adam" in line


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("common_args.training_type=cross_silo", "comm_args.backend: sp does not go with training_type cross_silo;"),
        ("comm_args.backend=GRPC", "comm_args.backend: GRPC does not go with training_type simulation; allowed: "),
        ("comm_args.workers=2", "comm_args.workers: 2 does not go with backend sp; allowed: null, or a number with"),
        ("comm_args.min_clients=11", "comm_args.min_clients: 11 is out of range; allowed: an integer from 1 to "),
        ("comm_args.send_contributions=false", "comm_args.send_contributions: false does not go with training_type "),
        ("client_specific_args.data_silo_config=[a]", "client_specific_args.data_silo_config: does not go with "),
        ("comm_args.round_deadline_s=0", "comm_args.round_deadline_s: 0 is out of range; allowed: a number above 0"),
    ],
)
def test_keys_that_do_not_go_with_the_runtime(override, message):
    assert message in only_line(text_with(), override)


@pytest.mark.parametrize("host", ["10.1.2.3", "0.0.0.0", "silo.example.org", "[fe80::1]"])
@pytest.mark.parametrize("key", ["server_address", "listen_address"])
def test_an_address_that_others_can_reach_needs_certificates(key, host):
    line = only_line(cross_silo(**{key: f"{host}:8890"}))
    assert line == (
        f"r.yaml: comm_args.certs: missing; {key} {host}:8890 can be reached from other machines; use a folder "
        "of `labelskew certs new`, or an address such as 127.0.0.1:8890"
    )
    assert parse.parse(cross_silo(**{key: f"{host}:8890", "certs": "c"})).comm.certs
    assert parse.parse(text_with(comm_args={key: f"{host}:8890"})).comm.certs is None


def test_as_many_files_as_silos():
    text = text_with(**CROSS_SILO | {"client_specific_args": {"data_silo_config": ["one.yaml"]}})
    assert only_line(text).endswith("data_silo_config: 1 files for 2 clients; allowed: a file for each, or none")
