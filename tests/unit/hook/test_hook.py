import signal
import sys
import warnings

import pytest

from fl_labelskew_plugins import hook


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("/x/bin/fedml run recipes/a.yaml", True),
        ("/x/bin/fedml run --set a.b=c a.YML --quiet", True),
        ("fedml run --dry-run --resume=runs/x", True),
        ("fedml run fedmr/table1_fmnist_p10c2", True),
        ("fedml run quickstrat", True),  # our command suggests the nearest recipe
        ("fedml run", False),
        ("fedml run --help", False),
        ("fedml run list", False),
        ("fedml run lst", False),
        ("fedml run list -r x.yaml", False),
        ("fedml run -v r.yaml list", False),
        ("fedml run stop -k=a/b", False),
        ("fedml launch job.yaml", False),
        ("fedml -h run r.yaml", False),
        ("-X /x/bin/labelskew", True),
        ("-m fl_labelskew_plugins.cli.main run a.yaml", True),
        ("train.py run a.yaml", False),
        ("train.py fedml run a.yaml", False),
        ("train.py data/labelskew", False),
        ("", False),
    ],
)
def test_install_replaces_only_commands_of_this_package(line, ours, monkeypatch):
    called, before = [], signal.getsignal(signal.SIGINT)
    monkeypatch.setitem(sys.modules, hook.CLI, None)  # the replacement is removed at the end
    monkeypatch.setattr(sys, "orig_argv", ["python", *line.split()])
    monkeypatch.setattr(hook, "_quiet_imports", lambda: called.append(1))
    hook.install()
    took = signal.signal(signal.SIGINT, before)
    assert (bool(called), took is hook.end) == (ours, ours)
    assert (getattr(sys.modules[hook.CLI], "cli", None) is hook.cli) == (ours and "fedml run" in line)


def test_warning_filters_apply_only_to_the_host():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        hook._quiet_imports()
        for module in ("requests", "fedml.core.x", "mine.requests_like"):
            warnings.warn_explicit("w", UserWarning, "f.py", 1, module=module)
    assert len(seen) == 1
