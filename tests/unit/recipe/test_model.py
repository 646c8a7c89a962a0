import pytest
from recipe_texts import FEDAVG, lines_of, only_line, text_with

from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe.conflicts import quorum
from fl_labelskew_plugins.recipe.model import different

NUMBER = {"value": 74.97, "paper": "FedMR", "table": "Table 1"}


@pytest.mark.parametrize("rounds", [1, 6, 7])
@pytest.mark.parametrize("every", [0, 1, 3])
def test_tests_after_every_nth_and_the_last_round(every, rounds):
    text = text_with(validation_args={"frequency_of_the_test": every}, train_args={"comm_round": rounds})
    recipe = parse.parse(text)
    tested = {rounds - 1} | (set(range(0, rounds, every)) if every else set())
    assert {r for r in range(rounds) if recipe.tests(r)} == tested


def test_a_dump_loads_to_an_equal_recipe(tmp_path):
    attack = {"enable_attack": True, "attack_type": "byzantine", "byzantine_client_num": 1, "attack_mode": "zero"}
    tracking = {"run_dir": "2020-01-01: # 'é"}
    odd = text_with(FEDAVG, data_args={"data_cache_dir": "1e5"}, tracking_args=tracking, security_args=attack)
    first = parse.parse(odd, source="odd.yaml")
    path = tmp_path / "recipe.yaml"
    path.write_text(first.dump(), encoding="utf-8")
    again = parse.load(path)
    assert again.resolved() == first.resolved()
    assert again.security == first.security
    assert first.dump().startswith("# fedml run odd.yaml\ncommon_args: {")


def test_differences_name_the_key_and_ignore_tracking_and_addresses_of_processes():
    def resolved(*overrides):
        return parse.parse(text_with(), overrides=overrides).resolved()

    a, b = resolved(), resolved("method_args.mu1=0.2", "tracking_args.run_dir=x", "dp_args.epsilon=1")
    assert different(a, a) == []
    assert different(a, b) == different(b, a) == ["method_args.mu1", "dp_args.epsilon"]
    mpi = resolved("comm_args.backend=MPI", "comm_args.workers=2")
    assert different(mpi, resolved("comm_args.backend=MPI", "comm_args.round_deadline_s=5")) == []
    assert different(mpi, a) == ["comm_args.backend"]


def test_a_round_of_two_clients_needs_two_uploads():
    assert quorum(parse.parse(text_with())) == 2
    assert quorum(parse.parse(text_with(), overrides=["train_args.client_num_per_round=1"])) == 1
    assert quorum(parse.parse(text_with(comm_args={"min_clients": 7}))) == 7


def test_one_number_or_several_survive_the_dump():
    assert parse.parse(text_with()).expected == ()
    (one,) = parse.parse(text_with(expected=NUMBER)).expected
    assert (one.value, one.measure, one.tolerance) == (74.97, "accuracy", 2.0)
    rounds = NUMBER | {"measure": "rounds_to", "value": 149, "target": 54.31}
    loaded = parse.parse(text_with(expected=[NUMBER, rounds]))
    assert [each.value for each in loaded.expected] == [74.97, 149]
    assert parse.parse(loaded.dump()).expected == loaded.expected
    assert loaded.resolved() == parse.parse(text_with()).resolved()  # not part of the run


def test_wrong_numbers_are_one_line_each():
    lines = lines_of(text_with(expected=[NUMBER | {"measure": "acuracy"}, {"value": -1, "table": "1", "papr": "x"}, 3]))
    assert lines[0].startswith("r.yaml: expected[1].measure: 'acuracy' is unknown; allowed: accuracy, best_accuracy")
    assert lines[1].startswith("r.yaml: expected[2].papr: unknown key; allowed: value, measure,")
    assert "r.yaml: expected[2].value: -1 is out of range; allowed: a number of at least 0" in lines
    line = "r.yaml: expected[3]: 3 is not a mapping of keys to values; allowed: a mapping with value"
    assert lines[-1].startswith(line)
    expected = "r.yaml: expected: target is needed with measure: rounds_to, and not allowed with other measures"
    assert only_line(text_with(expected=NUMBER | {"measure": "rounds_to"})) == expected
