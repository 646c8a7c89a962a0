from types import SimpleNamespace

import pytest
from fl_labelskew_registry import RunError
from recipe_texts import SILOS, simulation

from fl_labelskew_plugins.flower import server_app


def test_mistakes_in_the_settings_of_a_run_are_one_message(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(simulation(SILOS))
    settings = SimpleNamespace(run_config={"set": "train_args.comm_rond=2 train_args.epoch=1"})
    with pytest.raises(RunError) as raised:
        server_app(recipe)(None, settings)
    errors = [line.removeprefix("error: ") for line in capsys.readouterr().err.splitlines()]
    assert [line.partition(";")[0] for line in errors] == [
        "--set train_args.comm_rond: unknown key",
        "--set train_args.epoch: unknown key",
    ]
    assert str(raised.value).splitlines() == errors
