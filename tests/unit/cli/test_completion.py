from click.shell_completion import get_completion_class

from fl_labelskew_plugins.cli.main import main


def completed(line):
    """Completions of a line with an incomplete last word."""
    *words, word = line.split(" ")
    complete = get_completion_class("zsh")(main, {}, "labelskew", "_LABELSKEW_COMPLETE")
    return [item.value for item in complete.get_completions(words, word)]


def test_commands_plugins_and_choices():
    assert completed("rep") == ["report", "reproduce"]
    assert completed("methods fedr") == ["fedrod", "fedrs"]
    assert completed("models resnet") == ["resnet18", "resnet50"]
    assert completed("data check cifar") == ["cifar10", "cifar100"]
    assert completed("export --format ") == ["onnx", "pt2"]
    assert completed("run --res") == ["--resume"]


def test_recipes_by_name_or_by_file():
    assert completed("run quick") == ["quickstart", "quick"]  # the second stands for the shell's own files
    assert {"quickstart", "fedmr/"} <= {*completed("run ")}
    rows = completed("run fedsh")
    assert rows[0] == "fedshift_fmnist"
    assert len(rows) == 37  # one paper is left: its rows
    assert completed("recipes show fedmr/table1_fmnist_p10c2") == completed("reproduce fedmr/table1_fmnist_p10c2")[:-1]
    assert completed("run nothing/like") == ["nothing/like"]


def test_keys_of_recipes(register):
    register("fl_labelskew.methods", "raise SystemExit('imported')")
    assert "acme" in completed("methods ")
    assert completed("run --set tra") == ["train_args.", "tracking_args."]
    assert "train_args.comm_round=" in completed("run --set train_args.")
    assert completed("run --set train_args.comm_r") == ["train_args.comm_round="]
    assert completed("sweep x.yaml --set method_args.tau") == ["method_args.tau="]
    assert completed("run --set nonsense") == []
    assert completed("run --set train_args.nonsense=") == []
