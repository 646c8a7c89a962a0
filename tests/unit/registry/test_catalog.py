"""The catalogue, with real ``.dist-info`` folders on the path of a process of their own."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from fl_labelskew_registry import PluginError, catalog

GOOD = "from fl_labelskew_registry import Method\nclass A(Method):\n    class Params:\n        model_validate = None\n"
KINDS = {kind: contract.__name__ for kind, contract in catalog.CONTRACTS.items()}
PROPERTY, STATIC, CLASS = "@property\n    ", "@staticmethod\n    ", "@classmethod\n    "


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that acts as a separate site-packages, with an empty ``HOME``."""
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(path)

    class Site:
        def dist(self, name, methods, metadata=True, group="fl_labelskew.methods", **modules):
            info = path / f"{name.replace('-', '_')}-1.0.dist-info"
            info.mkdir()
            if metadata:
                (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            lines = "".join(f"{key} = {value}\n" for key, value in methods)
            (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
            for module, source in modules.items():
                (path / f"{module}.py").write_text(source)

        def run(self, source):
            """Output of a separate process."""
            environment = os.environ | {"PYTHONPATH": str(path), "HOME": str(tmp_path / "home")}
            done = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(source)],
                env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")
            return json.loads(done.stdout)

    made = Site()
    made.path = path
    yield made
    for name in [name for name, module in sys.modules.items() if f"{path}/" in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def loaded(kind, name):
    """The class's name, or the error's text."""
    try:
        return catalog.load(kind, name).__name__
    except PluginError as error:
        return f"error: {error}"


def load(*names):
    return [loaded("methods", name) for name in names]


def entries():
    return [[entry.name, entry.distribution, entry.target] for entry in catalog.entries("methods")]


def test_an_entry_names_its_distribution_and_target_without_an_import(site):
    site.dist("acme-methods", [("acme", "acme:A")], acme="raise SystemExit('imported')")
    found = entries()
    assert ["acme", "acme-methods", "acme:A"] in found
    assert ["fedlc", "fl-labelskew-plugins", "fl_labelskew_plugins.methods.fedlc:FedLC"] in found
    assert found == sorted(found)


def test_a_name_claimed_twice_is_refused_and_other_names_remain(site):
    # Several names between the two claims, and they come from distributions that are no neighbours on the path.
    site.dist("aaa", [("acme", "aaa:A"), ("first", "aaa:A")], aaa=GOOD)
    site.dist("mmm", [("middle", "aaa:A")])
    site.dist("zzz", [("other", "aaa:A"), ("acme", "zzz:A")], zzz=GOOD)
    assert load("acme", "first", "middle", "other") == [
        "error: name 'acme' in methods is claimed by aaa (aaa:A) and zzz (zzz:A); uninstall one of them",
        *["A"] * 3,
    ]
    assert [name for name, *_ in entries()].count("acme") == 2


@pytest.mark.parametrize(
    ("target", "source", "message"),
    [
        ("bad:A", "raise ValueError('two\\nlines')", "does not import: ValueError: two"),
        ("bad:A", "raise SystemExit('gone')", "does not import: SystemExit: gone"),
        ("bad:B", GOOD, "does not import: AttributeError: module 'bad' has no attribute 'B'"),
        ("bad:A", "class A: pass", "must be a subclass of fl_labelskew_registry.Method"),
        ("bad:A", "def A(): pass", "must be a subclass of fl_labelskew_registry.Method"),
        ("bad:A", "from fl_labelskew_registry import Method\nclass A(Method): pass", "has no Params: "),
        ("bad:A", "from fl_labelskew_registry import Method\nclass A(Method): Params = 3", "has no Params: add a"),
    ],
)
def test_a_broken_plugin_gives_one_line_with_its_distribution_and_hides_no_other(site, target, source, message):
    site.dist("bad-methods", [("broken", target)], bad=source)
    site.dist("good-methods", [("acme", "good:A")], good=GOOD)
    error, good = load("broken", "acme")
    assert error.startswith(f"error: method 'broken' of distribution bad-methods ({target}) {message}")
    assert "\n" not in error
    assert good == "A"
    assert {"broken", "acme", "fedmr"} <= {name for name, *_ in entries()}


def test_a_distribution_without_metadata_hides_no_other(site):
    site.dist("torn", [("torn", "good:A")], metadata=False, good=GOOD)
    assert ["torn", "unknown", "good:A"] in entries()
    assert load("torn") == ["A"]


def test_a_plugin_installed_a_moment_ago_is_found(site):
    # stevedore's cache on disk would still answer from before.
    site.dist("acme-methods", [("acme", "acme:A")], acme=GOOD)
    read = """
        import json
        from fl_labelskew_registry import load
        print(json.dumps([load("methods", name).__name__ for name in %s]))
    """
    assert site.run(read % ["acme"]) == ["A"]
    entry_points = site.path / "acme_methods-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text("[fl_labelskew.methods]\nacme = acme:B\nnewer = acme:A\n")
    (site.path / "acme.py").write_text(GOOD + "class B(A):\n    pass\n")
    assert site.run(read % ["acme", "newer"]) == ["B", "A"]


@pytest.mark.parametrize(
    ("group", "meant"),
    [
        ("fl_labelskew.method", ["methods"]),
        ("fl-labelskew.methods", ["methods"]),
        ("fl_labelskew.datasets_", ["datasets"]),
        ("fl_labelskew.x", ["methods", "optimizers", "partitioners", "datasets", "models", "runtimes", "trackers"]),
    ],
)
def test_unknown_names_and_groups_are_reported_with_the_nearest(site, group, meant):
    site.dist("acme-methods", [("acme", "acme:A")], group=group, acme="raise SystemExit('imported')")
    line = f"acme-methods registers 'acme' in the group {group}, which does not exist; use "
    line += " or ".join(f"fl_labelskew.{kind}" for kind in meant)
    error, other = load("acme", "FedLCC")
    assert error.startswith("error: unknown name 'acme' in methods; known: ccvr, fd, fedavg, ")
    assert error.endswith(f"; {line}")
    assert other.endswith(" (nearest: fedlc)")
    assert "nearest" not in error
    for kind in ("methods", "datasets", "models"):
        assert catalog.misplaced(kind) == ([line] if kind in meant else [])


MISSPELT = [
    ("methods", "calibrates", "calibrate"),
    ("methods", "personalized", "personalised"),
    ("methods", "beforeRound", "before_round"),
    ("optimizers", "steps", "step"),
    ("models", "builds", "build"),
]


def near(contract, what, name, meant):
    return f"{contract} has no {what} {name}; did you mean {meant}? If it is a helper of your own, name it _{name}"


@pytest.fixture
def refused(register):
    """The error message for a plugin with this body of the base class."""

    def refused(kind, body):
        contract = KINDS[kind]
        source = f"from fl_labelskew_registry import {contract}\nclass A({contract}):\n"
        source += f"    class Params:\n        model_validate = None\n    {body}\nclass B(A):\n    pass\n"
        module = register(f"fl_labelskew.{kind}", source, target="B")
        return loaded(kind, "acme").removeprefix(f"error: {kind[:-1]} 'acme' of distribution acme ({module}:B): ")

    return refused


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        *[(kind, f"def {name}(self): pass", near(KINDS[kind], "hook", name, hook)) for kind, name, hook in MISSPELT],
        ("methods", "agregation = 'uniform'", near("Method", "attribute", "agregation", "aggregation")),
        ("methods", "def stages(self): pass", "stages must accept (epochs), but its signature is ()"),
        (
            "methods",
            "def after_aggregation(self, weights, shared): pass",
            "after_aggregation gets server instead of shared since version 1.0 of the contract; use server.shared",
        ),
        ("methods", STATIC + "def loss(batch): pass", "loss must accept (batch, client), but its signature is (batch)"),
        ("methods", "loss = 3", "loss must be a method of the class, got int"),
        ("methods", PROPERTY + "def protects(self): return 1", "protects must be a method of the class, got property"),
        (
            "partitioners",
            "def split(self, labels, groups, clients): pass",
            "split must accept (labels, groups, clients, rng), but its signature is (labels, groups, clients)",
        ),
        # a class's own helpers, other names of parameters, and more of them
        ("methods", "def margins(self, counts): pass", "B"),
        ("methods", "def _calibrates(self): pass", "B"),
        ("methods", PROPERTY + "def stage(self): pass", "B"),
        ("methods", "calibrations = ()", "B"),
        ("methods", "def loss(self, b, c, scale=1): pass\n    def losses(self): pass", "B"),
        ("methods", "def loss(self, *args): pass", "B"),
        ("methods", STATIC + "def calibrate(logits, client): pass", "B"),
        ("methods", CLASS + "def calibrate(cls, logits, client): pass", "B"),
        ("methods", "class Loss: pass", "B"),
        ("datasets", "def load(self, folder, **more): pass", "B"),
    ],
)
def test_a_hook_that_would_not_be_called_is_refused(refused, kind, body, message):
    assert refused(kind, body) == message
