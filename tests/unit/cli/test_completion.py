from click.shell_completion import get_completion_class
from commands import call
from run_folders import folder, resolved

from fl_labelskew_plugins.cli.completion import COMMANDS
from fl_labelskew_plugins.cli.main import main


def completed(line, *, shell="zsh"):
    """What a line may go on with, whose last word is being typed."""
    *words, word = line.split(" ")
    complete = get_completion_class(shell)(main, {}, "labelskew", "_LABELSKEW_COMPLETE")
    return [item.value for item in complete.get_completions(words, word)]


def test_commands_plugins_and_choices():
    assert completed("rep") == ["report", "reproduce"]
    assert completed("methods fedr") == ["fedrod", "fedrs"]
    assert completed("models resnet") == ["resnet18", "resnet50"]
    assert completed("data check cifar") == ["cifar10", "cifar100"]
    assert completed("completion ") == ["bash", "zsh", "fish"]
    assert completed("run --res") == ["--resume"]


def test_recipes_by_name_and_by_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "deep.yml").touch()
    assert completed("run quick") == ["quickstart"]
    assert {"quickstart", "fedmr/", "mine.yaml", "sub/deep.yml"} <= {*completed("run ")}
    assert completed("run su") == completed("survey sub/") == ["sub/deep.yml"]
    rows = completed("run fedsh")
    assert rows[0] == "fedshift_fmnist"
    assert len(rows) == 36  # one paper is left: its rows
    assert completed("recipes show fedmr/table1_fmnist_p10c2") == completed("reproduce fedmr/table1_fmnist_p10c2")
    assert completed("run nothing/like") == ["nothing/like"]  # the shell completes files


def test_folders_of_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("runs/a-1", "runs/a-2", "b"):
        folder(tmp_path / name, resolved(), [0.5])
    (tmp_path / "runs" / "no-run").mkdir()
    assert completed("status ") == ["b", "runs/a-1", "runs/a-2"]
    assert completed("run --resume runs/a") == ["runs/a-1", "runs/a-2"]
    assert completed("audit show ru") == ["runs/a-1", "runs/a-2"]


def test_keys_of_recipes(register):
    register("fl_labelskew.methods", "raise SystemExit('imported')")
    assert "acme" in completed("methods ")
    assert completed("run --set tra") == ["train_args.", "tracking_args."]
    assert "train_args.comm_round=" in completed("run --set train_args.")
    assert completed("run --set train_args.comm_r") == ["train_args.comm_round=", "train_args.comm_round=10"]
    assert completed("sweep x.yaml --set method_args.tau") == ["method_args.tau=", "method_args.tau=1.0"]
    assert completed("run --set nonsense") == []
    assert completed("run --set train_args.nonsense=") == []


def test_completion_prints_the_script_of_each_shell():
    for shell, place in COMMANDS.items():
        assert "_LABELSKEW_COMPLETE" in call("completion", shell).output
        assert f"  {place}\n" in call("completion", "--help").output
    assert "is not one of 'bash', 'zsh', 'fish'" in call("completion", "tcsh", code=2).stderr
