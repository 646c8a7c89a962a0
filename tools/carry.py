"""Collect the files for a machine without network that already has torch and torchvision, in one folder.

    python tools/carry.py                  # into carry/, which git ignores; run it again after a change of the code
    python tools/carry.py --python 3.11    # for Python 3.11 instead of 3.12

It contains files for Linux on x86-64: wheels of our two packages, built from this checkout like ``make wheels``;
wheels of the packages for simulations on pictures, and of pytest; and Debian's files of Fashion-MNIST. FedML,
scikit-learn, SciPy, pandas and matplotlib are not included: without matplotlib, a run only warns that it draws no
pictures. On the other machine, run:

    python3 -m pip install -q --no-index --no-deps --upgrade --target /tmp/site carry/*.whl &&
    PYTHONPATH=/tmp/site python3 benchmarks/gpu.py
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fl_labelskew_registry import RunError, mistake

from fl_labelskew_plugins.cli.exits import guarded
from fl_labelskew_plugins.cli.table import markdown
from fl_labelskew_plugins.data.idx import FashionMNIST

ROOT = Path(__file__).parent.parent
CARRY = ROOT / "carry"
PACKAGES = ("click", "pydantic", "pytest", "pyyaml", "randomgen", "rich", "stevedore")
"""Dependencies that torch does not install; numpy, jinja2, Pillow and safetensors must be installed."""
MAX_MIB = 64
"""Maximum size of the folder."""
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def download(folder: Path, python: str) -> None:
    """Download, build and copy all files into a new folder."""
    platforms = [word for tag in ("2014", "_2_28") for word in ("--platform", f"manylinux{tag}_x86_64")]
    options = ["--only-binary=:all:", "--python-version", python, *platforms, "--dest", str(folder), *PACKAGES]
    subprocess.run([*PIP, "download", *options], check=True)
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT / "registry"), str(ROOT)], check=True
    )
    shutil.copytree(str(FashionMNIST.default_dir), folder / "fashion-mnist")


def content_table(folder: Path) -> str:
    """A table of the files with their sizes in MiB.

    Raises:
        LabelSkewError: the folder is too large.
    """
    sizes = {str(file.relative_to(folder)): file.stat().st_size for file in sorted(folder.rglob("*.*"))}
    rows = [[name, f"{size / 2**20:.2f}"] for name, size in [*sizes.items(), ("all", sum(sizes.values()))]]
    if sum(sizes.values()) >= MAX_MIB * 2**20:
        largest = max(sizes, key=sizes.__getitem__)
        raise mistake(folder, f"contains {rows[-1][1]} MiB", f"less than {MAX_MIB}; the largest file is {largest}")
    return markdown(("file", "MiB"), rows)


@guarded
def main() -> None:
    """Parse the options, collect the files and print their sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="Python version of the other machine; default: 3.12")
    options = parser.parse_args()
    FashionMNIST().check(None, download=False)
    with tempfile.TemporaryDirectory(dir=ROOT, prefix="carry-") as name:
        try:
            download(Path(name) / "carry", options.python)
        except subprocess.CalledProcessError as error:
            raise RunError(f"pip {error.cmd[len(PIP)]}: exit code {error.returncode}; see its messages") from None
        print(content_table(Path(name) / "carry"))
        shutil.rmtree(CARRY, ignore_errors=True)
        (Path(name) / "carry").rename(CARRY)


if __name__ == "__main__":
    main()
