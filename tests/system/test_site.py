"""The documentation as a site: built without a warning, and complete without a network."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fl_labelskew_registry import catalog

from fl_labelskew_plugins.cli.main import main
from fl_labelskew_plugins.recipe.model import PLUGGED, SECTIONS

ROOT = Path(__file__).parents[2]


def sphinx(docs, out):
    """Build as ``make docs`` does."""
    makefile = (ROOT / "Makefile").read_text()
    (options,) = re.findall(r"^\t\$\(BIN\)/python -m sphinx (.*) docs \S+$", makefile, re.MULTILINE)
    command = [sys.executable, "-m", "sphinx", *options.split(), docs, out]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    ready = ROOT / "docs" / "_build" / "html"  # of make docs
    sources = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.[mp][dy]"), *ROOT.glob("[fr]*/**/*.py")]
    changed = max(file.stat().st_mtime for file in sources)
    if (ready / "index.html").exists() and (ready / "index.html").stat().st_mtime > changed:
        return ready
    out = tmp_path_factory.mktemp("site")
    built = sphinx(ROOT / "docs", out)
    assert built.returncode == 0, built.stderr
    return out


def test_pages_refer_to_no_other_site(site):
    asked = re.compile(r'<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)="([^"]+)"')
    styles = re.compile(r"""(?:url\(|@import) *["']?([^"')]+)""")
    for pattern, ending in ((asked, "html"), (styles, "css")):
        for page in site.rglob(f"*.{ending}"):
            addresses = [address for address in pattern.findall(page.read_text()) if not address.startswith("data:")]
            assert [address for address in addresses if re.match(r"\w+:|//", address)] == [], page


def test_every_method_key_and_command_is_documented(site):
    text = (site / "keys.html").read_text()
    for section, model in SECTIONS.items():
        keys = {*model.model_fields}
        if section in PLUGGED:
            kind = PLUGGED[section].kind
            plugins = [catalog.load(kind, entry.name) for entry in catalog.entries(kind)]
            keys |= {key for plugin in plugins for key in plugin.Params.model_fields}
        assert [key for key in keys if f">{key}</span>" not in text] == [], section
    commands = (site / "commands.html").read_text()
    assert [name for name in main.commands if f"Usage: labelskew {name} " not in commands] == []
    for entry in catalog.entries("methods"):
        if entry.distribution == "fl-labelskew-plugins":
            page = (site / f"methods/{entry.name}.html").read_text()
            assert "Our numbers" in page
            assert entry.name == "fedavg" or "Parameters" in page


def test_a_broken_link_is_an_error(tmp_path):
    for name in ("conf.py", "site_extension.py"):
        shutil.copy(ROOT / "docs" / name, tmp_path)
    text = "# A page\n\n[nowhere](nowhere.md), [no part](#none)\n\n![no picture](none.png)\n"
    (tmp_path / "index.md").write_text(text)
    built = sphinx(tmp_path, tmp_path / "out")
    assert built.returncode != 0
    assert all(name in built.stderr for name in ("nowhere.md", "'none'", "none.png"))
