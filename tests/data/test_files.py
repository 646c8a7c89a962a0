"""Files that torchvision fetches. No network here: its class is replaced by one that fails, or does as it would."""

import pytest
import torchvision
from datasets import load
from mistakes import message

from fl_labelskew_plugins.data.cifar import CIFAR10
from fl_labelskew_plugins.data.idx import MNIST


@pytest.mark.parametrize("kind", [MNIST, CIFAR10])
def test_download(tmp_path, monkeypatch, kind):
    def fail(root, *, train, download):
        raise RuntimeError("Error downloading\n  all mirrors failed")

    def write(root, *, train, download):
        kind().fake(tmp_path / "made", samples=50, seed=0)
        top = kind.below.partition("/")[0]
        (tmp_path / "made" / top).rename(tmp_path / top)

    def read():
        return kind().load(tmp_path, download=True, seed=0)

    monkeypatch.setattr(torchvision.datasets, kind.kind, fail)
    kind().check(tmp_path, download=True)
    source = kind.source.removesuffix(", or download: true")
    assert message(read) == (
        f"data set {kind.kind}: the download to {tmp_path} failed (RuntimeError: Error downloading all mirrors "
        f"failed); get the files from {source}"
    )
    monkeypatch.setattr(torchvision.datasets, kind.kind, lambda root, *, train, download: None)
    assert f"data set {kind.kind}: no {next(iter(kind().files().values()))}" in message(read)
    monkeypatch.setattr(torchvision.datasets, kind.kind, write)
    assert len(read().train.y) == 40
    monkeypatch.setattr(torchvision.datasets, kind.kind, fail)  # what is there is not fetched again
    assert len(read().train.y) == 40
    assert len(load(kind, tmp_path).test.y) == 10
