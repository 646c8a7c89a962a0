"""Messages as bytes: compared with the safetensors library in both directions, and with malformed bytes."""

import hashlib
import itertools
import json
import struct

import pytest
import torch
from error_messages import message
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from wire_tensors import EVERY, META, same

from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.transport import Kind
from fl_labelskew_plugins.runtimes.wire import Header, WireError


def payload(meta=META, tensors=EVERY):
    return bytearray(b"".join(wire.encode(4, 0, 3, 12, meta, tensors))[Header.SIZE :])


def blob(described, data=b"", length=None):
    """A payload made by hand."""
    text = described if isinstance(described, bytes) else json.dumps(described).encode()
    return bytearray(struct.pack("<Q", len(text) if length is None else length) + text + data)


def test_the_digest_of_a_small_message_does_not_reveal_it():
    """An audit log has the SHA-256 of each message; a reader of the log tries all pairs of class counts."""

    def opening(counts):
        parts = wire.encode(Kind.OPENING, 1, 0, -1, {}, {"counts": torch.tensor(counts)})
        return hashlib.sha256(b"".join(parts)).hexdigest()

    digest = opening([17, 4])
    assert not [pair for pair in itertools.product(range(32), range(32)) if opening(pair) == digest]
    assert len({opening([17, 4]) for _ in range(100)}) == 100


def test_reading_copies_nothing():
    buffer = payload({}, {"a": torch.zeros(4)})
    _, tensors = wire.decode(buffer)
    tensors["a"] += 1
    _, again = wire.decode(buffer)
    assert again["a"].tolist() == [1] * 4


def test_writing_copies_only_non_contiguous_tensors():
    tensors = {"rows": torch.randn(4, 6), "columns": torch.randn(4, 6).t()}
    head, *views = wire.encode(1, 1, 0, -1, {}, tensors)
    shared = [torch.frombuffer(view, dtype=torch.float32).data_ptr() for view in views]
    assert shared[0] == tensors["rows"].data_ptr()
    assert shared[1] != tensors["columns"].data_ptr()
    assert len(head) < 400


def test_images_and_kernels_keep_their_memory_format():
    tensors = {
        "last": torch.randn(5, 4, 3, 2).to(memory_format=torch.channels_last),
        "first": torch.randn(5, 4, 3, 2),
        "both": torch.randn(5, 4, 1, 1).to(memory_format=torch.channels_last),
        "neither": torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0),
        "none": torch.empty(0, 4, 3, 2).to(memory_format=torch.channels_last),
    }
    _, *views = wire.encode(1, 1, 0, -1, {}, tensors)
    shared = {torch.frombuffer(view, dtype=torch.float32).data_ptr() for view in views}
    assert {name for name, tensor in tensors.items() if tensor.data_ptr() in shared} == {"last", "first", "both"}
    _, got = wire.decode(payload({}, tensors))
    same(got, tensors)
    assert {name for name, tensor in got.items() if not tensor.is_contiguous()} == {"last"}
    assert got["last"].is_contiguous(memory_format=torch.channels_last)
    assert load(bytes(payload({}, tensors)))["last"].shape == (5, 3, 2, 4)  # as other readers see it


def test_safetensors_reads_our_messages_and_we_read_its():
    got = load(bytes(payload()))
    same({name: got[name] for name in EVERY}, EVERY)
    same(wire.decode(bytes(payload()))[1], EVERY)  # a read-only payload is copied
    contiguous = {name: tensor.detach().contiguous() for name, tensor in EVERY.items()}
    meta, got = wire.decode(bytearray(save(contiguous, metadata={"format": "pt"})))
    assert meta == {}
    same({name: got[name] for name in contiguous}, contiguous)


def test_tensors_that_are_not_aligned_are_read():
    data = b"\1" + struct.pack("<d", 2.5) + struct.pack("<i", -3)
    described = {
        "flag": {"dtype": "BOOL", "shape": [], "data_offsets": [0, 1]},
        "double": {"dtype": "F64", "shape": [1], "data_offsets": [1, 9]},
        "int": {"dtype": "I32", "shape": [1, 1], "data_offsets": [9, 13]},
    }
    for spaces in range(8):  # the blob itself may begin anywhere
        _, got = wire.decode(blob(json.dumps(described).encode() + b" " * spaces, data))
        assert got["flag"].item() is True
        assert got["double"].tolist() == [2.5]
        assert got["int"].tolist() == [[-3]]
        assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in got.values())


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (bytearray(), "a payload of 0 bytes"),
        (blob({}, length=3 * 2**30), f"a JSON header of {3 * 2**30} bytes in a payload of 10; at most"),
        (blob({}, length=2**64 - 1), "a JSON header of"),
        (blob(b" " * (wire.MAX_JSON + 1)), "a JSON header of"),
        (blob(b"\xff{}"), "JSON that is not well-formed"),
        (blob(b"[" * 100_000), "JSON that is not well-formed"),
        (blob(b"[]"), "JSON that is not a mapping"),
        (blob(b'{"a": {}, "a": {}}'), "JSON with a duplicate name"),
        (blob(b'{"a": ' + b"9" * 5000 + b"}"), "JSON with a number of more than 20 digits"),
        (blob(b'{"a": NaN}'), "JSON with a number that is not finite"),
        (blob(b'{"a": 1e999}'), "JSON with a number that is not finite"),
        (blob({"__metadata__": []}), "a __metadata__ that is not a mapping"),
        (blob({"__metadata__": {"meta": "[1]"}}), "JSON that is not a mapping"),
        (blob({"__metadata__": {"channels_last": "[1]"}}), "channels_last that is not a list of names"),
        (blob({"__metadata__": {"channels_last": '["a", "a"]'}}), "channels_last that is not a list of names"),
        (blob({"__metadata__": {"channels_last": '["a"]'}}), "channels_last that does not name tensors of four"),
        (
            blob({"__metadata__": {"channels_last": '["a"]'}, "a": entry()}, b"\0" * 8),
            "channels_last that does not name tensors of four dimensions",
        ),
        (blob({"__metadata__": {"meta": '{"a": -Infinity}'}}), "JSON with a number that is not finite"),
        (blob({"__metadata__": {"meta": '{"a": "\\ud800"}'}}), "JSON that is not well-formed"),
        (blob({f"t{k}": 0 for k in range(wire.MAX_TENSORS + 1)}), "8193 tensors; at most 8192 are allowed"),
        (blob({"": entry()}, b"\0" * 8), "a tensor whose name is not"),
        (blob({"a" * 256: entry()}, b"\0" * 8), "a tensor whose name is not"),
        (blob({"a": {"dtype": "F32", "shape": [2]}}), "tensor a without exactly"),
        (blob({"a": entry(more=1)}, b"\0" * 8), "tensor a without exactly"),
        (blob({"a": entry("C64")}, b"\0" * 8), "tensor a of a dtype other than"),
        (blob({"a": entry(["F32"])}, b"\0" * 8), "tensor a of a dtype other than"),
        (blob({"a": entry(shape=[-2])}, b"\0" * 8), "tensor a with a shape that is not"),
        (blob({"a": entry(shape=[True, 2])}, b"\0" * 8), "tensor a with a shape that is not"),
        (blob({"a": entry(shape=[1] * 17)}, b"\0" * 8), "tensor a with a shape that is not"),
        (blob({"a": entry(shape=[0, 2**62, 2**62], offsets=[0, 0])}), "tensor a with a shape that is too large"),
        (blob({"a": entry(shape=[2**61], offsets=[0, 2**63])}), "tensor a with a shape that is too large"),
        (blob({"a": entry(offsets=[0])}, b"\0" * 8), "tensor a with data_offsets that are not"),
        (blob({"a": entry(offsets=[0, 7])}, b"\0" * 7), "tensor a with data_offsets that do not fit"),
        (blob({"a": entry(offsets=[8, 16])}, b"\0" * 16), "tensor a that overlaps another one or follows a gap"),
        (blob({"a": entry(), "b": entry()}, b"\0" * 8), "tensor b that overlaps another one or follows a gap"),
        (blob({"a": entry(shape=[2**28], offsets=[0, 2**30])}, b"\0" * 8), f"tensors of {2**30} bytes in 8 bytes"),
        (blob({"a": entry()}, b"\0" * 9), "tensors of 8 bytes in 9 bytes"),
        (blob({"a": entry("BOOL", [2], [0, 2])}, b"\1\2"), "tensor a with boolean values other than 0 and 1"),
    ],
)
def test_invalid_messages_are_refused_in_one_sentence(made, said):
    line = message(lambda: wire.decode(made), kind=WireError)
    assert line.startswith(said)
    assert len(line) < 300
    assert line.isprintable()


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(garbage):
    with pytest.raises(WireError):
        wire.decode(bytearray(garbage))
    with pytest.raises(WireError):
        wire.decode(blob(garbage))
    with pytest.raises(WireError):
        Header.unpack(garbage)


VALID = bytes(payload())


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.binary(max_size=3), st.integers(0, 5)), max_size=5))
def test_mutated_messages_are_refused_or_read(edits):
    made = VALID
    for at, new, removed in edits:
        made = made[:at] + new + made[at + removed :]
    try:
        meta, tensors = wire.decode(bytearray(made))
    except WireError:
        return
    json.dumps(meta)
    for tensor in tensors.values():
        tensor.double().sum()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), VALUES, max_size=3))
def test_arbitrary_json_is_refused(described):
    try:
        wire.decode(blob(json.dumps(described).encode(), b"\0" * 8))
    except WireError:
        return
    assert set(described) <= {"__metadata__"}


def test_unsupported_tensors_are_not_sent():
    with pytest.raises(TypeError, match=r"a is torch\.complex64, which cannot be sent"):
        payload({}, {"a": torch.zeros(1, dtype=torch.complex64)})
    with pytest.raises(ValueError, match="not JSON compliant"):
        payload({"loss": float("nan")})
    for tensors in ({"a\n": torch.zeros(1)}, {"__metadata__": torch.zeros(1)}):
        with pytest.raises(WireError, match="printable names"):
            payload({}, tensors)
    with pytest.raises(WireError, match="at most 8192 and 1048576"):
        payload({"text": "a" * wire.MAX_JSON})


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"", "0 bytes where a message begins"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "bytes that are not a message of this package"),
        (b"FLLS\2\0" + b"\0" * 26, "a message of format 2; use the version"),
    ],
)
def test_another_header_is_refused(start, said):
    assert message(lambda: Header.unpack(start), kind=WireError).startswith(said)
