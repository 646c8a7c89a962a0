import hashlib
import itertools

import pytest
from error_messages import message
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_tensors import EVERY, META, same

from fl_labelskew_plugins.runtimes.silo.streams import Hashing, assemble, cut
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.wire import Header, WireError, decode, encode


@pytest.mark.parametrize("size", [32, 33, 100, 4096, 2**20])
def test_messages_are_split_and_joined(size):
    messages = [encode(kind, 0, 3, 12, META, EVERY) for kind in (1, 2)]
    chunks = iter([chunk for parts in messages for chunk in cut(parts, size)])
    for kind in (1, 2):
        header, buffer = assemble(chunks, lambda header: None, Spool())
        assert header.kind == kind
        same(decode(buffer)[1], EVERY)
    assert assemble(chunks, lambda header: None, Spool()) is None


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        ([Header(1, 1, 0, 0, 5).pack() + b"123456"], "more bytes than its header states"),
        ([Header(1, 1, 0, 0, 5).pack() + b"123", b"456"], "more bytes than its header states"),
        ([Header(1, 1, 0, 0, 5).pack() + b"123"], "fewer bytes than its header states"),
        ([Header(1, 1, 0, 0, 5).pack() + b"123", b"", b"45"], "a chunk of no bytes"),
    ],
)
def test_invalid_chunks_are_refused(chunks, said):
    assert message(lambda: assemble(iter(chunks), lambda header: None, Spool()), kind=WireError).startswith(said)


def test_a_message_that_is_not_admitted_takes_no_memory():
    def admit(header):
        raise WireError(f"{header.length} bytes")

    spool = Spool()
    spool.buffer = None  # would not be callable
    chunks = iter([Header(1, 1, 0, 0, 2**62).pack()])
    assert message(lambda: assemble(chunks, admit, spool), kind=WireError) == f"{2**62} bytes"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 10**4), max_size=9), st.sampled_from([{}, EVERY]))
def test_the_hash_of_a_message_does_not_depend_on_its_chunks(cuts, tensors):
    raw = b"".join(encode(4, 0, 3, 12, META, tensors))
    places = [0, *sorted({cut for cut in cuts if cut < len(raw)}), len(raw)]
    chunks = [raw[a:b] for a, b in itertools.pairwise(places)]
    hashing = Hashing(iter(chunks * 2))
    for _ in range(2):  # one message after the other
        assert [next(hashing) for _ in chunks] == chunks
        assert hashing.digest() == hashlib.sha256(raw).hexdigest()
