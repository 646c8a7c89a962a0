import gc
import os

import pytest
import torch
from wire_tensors import EVERY

from fl_labelskew_plugins.runtimes.silo.streams import assemble, cut
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.wire import decode, encode
from fl_labelskew_plugins.tensors import PIECE, evict, pieces


def test_buffers_beyond_the_limit_are_on_disk(tmp_path):
    spool = Spool(3000, tmp_path)
    first, second, third = spool.buffer(2000), spool.buffer(2000), spool.buffer(1000)
    assert spool.held == 3000
    for buffer in (first, second, third):
        buffer[:4] = b"abcd"
        assert bytes(buffer[:5]) == b"abcd\0"
    assert os.listdir(tmp_path) == []
    assert len(spool.buffer(0)) == 0


def test_tensors_hold_their_buffer(tmp_path):
    spool = Spool(10_000, tmp_path)
    _, buffer = assemble(cut(encode(1, 1, 0, 0, {}, EVERY), 100), lambda header: None, spool)
    held = spool.held
    assert held == len(buffer)
    _, tensors = decode(buffer)
    kept = tensors["conv/weight"]
    del buffer, tensors
    gc.collect()
    assert spool.held == held
    assert torch.equal(kept, EVERY["conv/weight"])
    del kept
    assert spool.held == 0


def resident():
    """MB of files that are in this process's memory."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssFile:")) / 1000


def test_one_piece_of_a_tensor_on_disk_is_in_memory(tmp_path):
    count = 20 * PIECE  # 80 MB
    sent = {"bytes": torch.randint(256, (count,), dtype=torch.uint8), "one": torch.ones(1)}
    before = resident()
    _, buffer = assemble(cut(encode(1, 1, 0, 0, {}, sent), 2**20), lambda header: None, Spool(0, tmp_path))
    arrived = decode(buffer)[1]
    assert resident() - before < 8
    at = 0
    for piece in pieces(arrived["bytes"]):
        assert torch.equal(piece, sent["bytes"][at : at + len(piece)])
        at += len(piece)
        assert resident() - before < 16
    assert at == count
    assert torch.equal(arrived["bytes"], sent["bytes"])
    assert resident() - before > 60
    evict(arrived["one"])
    assert resident() - before < 8
    assert arrived["one"].item() == 1


@pytest.mark.parametrize("name", EVERY)
def test_pieces_cover_the_whole_tensor(name, monkeypatch):
    monkeypatch.setattr("fl_labelskew_plugins.tensors.PIECE", 5)
    parts = list(pieces(EVERY[name]))
    whole = EVERY[name].is_contiguous()
    assert all(len(piece) <= 5 for piece in parts) or not whole
    assert torch.equal(torch.cat([piece.reshape(-1) for piece in parts]), EVERY[name].reshape(-1))
    images = torch.randn(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    assert torch.equal(torch.cat(list(pieces(images))), images.permute(0, 2, 3, 1).reshape(-1))


def test_a_full_disk_is_an_error(tmp_path):
    with pytest.raises(OSError, match=r"File too large|No space left"):
        Spool(0, tmp_path).buffer(2**60)
    with pytest.raises(OSError, match="No such file or directory"):
        Spool(0, tmp_path / "missing").buffer(1)
