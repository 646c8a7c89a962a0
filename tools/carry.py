"""Fills a folder with all that a machine needs that has torch and torchvision, and no network.

    python tools/carry.py                  # into carry/, which git ignores; again after a change of the code
    python tools/carry.py --python 3.11    # for another Python than 3.12

For Linux on x86-64: wheels of our two packages, built from this checkout as ``make wheels`` does, of what they import
to simulate on pictures (FedML, scikit-learn, SciPy, pandas and matplotlib are not among it: whoever draws without
matplotlib is warned, and goes on), of pytest, and Debian's files of Fashion-MNIST. There, in one command:

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
NEEDED = ("click", "pydantic", "pytest", "pyyaml", "randomgen", "rich", "stevedore")
"""Ours need them and torch does not bring them; numpy, jinja2, Pillow and safetensors are there."""
LIMIT = 64
"""MiB that may be carried."""
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def fill(folder: Path, python: str) -> None:
    """Put everything into a new folder."""
    platforms = [word for tag in ("2014", "_2_28") for word in ("--platform", f"manylinux{tag}_x86_64")]
    wanted = ["--only-binary=:all:", "--python-version", python, *platforms, "--dest", str(folder), *NEEDED]
    subprocess.run([*PIP, "download", *wanted], check=True)
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT / "registry"), str(ROOT)], check=True
    )
    shutil.copytree(str(FashionMNIST.default_dir), folder / "fashion-mnist")


def table(folder: Path) -> str:
    """What a folder holds, with its sizes.

    Raises:
        LabelSkewError: it is too much.
    """
    sizes = {str(file.relative_to(folder)): file.stat().st_size for file in sorted(folder.rglob("*.*"))}
    rows = [[name, f"{size / 2**20:.2f}"] for name, size in [*sizes.items(), ("all", sum(sizes.values()))]]
    if sum(sizes.values()) >= LIMIT * 2**20:
        largest = max(sizes, key=sizes.__getitem__)
        raise mistake(folder, f"holds {rows[-1][1]} MiB", f"less than {LIMIT}; the largest file is {largest}")
    return markdown(("file", "MiB"), rows)


@guarded
def main() -> None:
    """Fill the folder and print its content."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of Python there")
    options = parser.parse_args()
    FashionMNIST().check(None, download=False)
    with tempfile.TemporaryDirectory(dir=ROOT, prefix="carry-") as name:
        try:
            fill(Path(name) / "carry", options.python)
        except subprocess.CalledProcessError as error:
            raise RunError(f"pip {error.cmd[len(PIP)]}: exit code {error.returncode}; it has said why") from None
        print(table(Path(name) / "carry"))
        shutil.rmtree(CARRY, ignore_errors=True)
        (Path(name) / "carry").rename(CARRY)


if __name__ == "__main__":
    main()
