"""Where silos find the server."""

import pytest
from fl_labelskew_registry import LabelSkewError
from recipe_texts import cross_silo, only_line, text_with

from fl_labelskew_plugins.recipe import parse


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.9.1:65535", "[::1]:8890", "localhost:8890"])
def test_loopback_needs_none(address):
    assert parse.parse(cross_silo(server_address=address)).comm.address() == address


@pytest.mark.parametrize(
    "address",
    ["", "x", "127.0.0.1", "127.0.0.1:", ":8890", "a:65536", "a:-1", "::1:80", "[x]:1", "a b:1", "a:1\n", "a:²"],
)
def test_addresses_that_are_none(address):
    line = only_line(text_with(comm_args={"server_address": address}))
    assert "is no address; use host:port with a port from 0 to 65535, such as" in line


def test_the_hosts_file_of_addresses(tmp_path):
    path = tmp_path / "ip.csv"
    text = cross_silo(grpc_ipconfig_path="ip.csv", certs="c")
    comm = parse.parse(text, source=tmp_path / "r.yaml").comm
    with pytest.raises(LabelSkewError, match="cannot be read: No such file"):
        comm.address()
    head = "eid,rank,grpc_server_ip,grpc_server_port\n"
    for rows, address in {
        "1,1,10.0.0.1,8891\n0,0,10.0.0.9,8890\n": "10.0.0.9:8890",
        "0, 0, ::1, 1\n": "[::1]:1",
    }.items():
        path.write_text(head + rows)
        assert comm.address() == address
    for content, message in {
        head + "1,1,a,1\n": "has 0 rows of rank 0",
        head + "0,0,a,1\n1,0,a,2\n": "has 2 rows of rank 0",
        head + "0,0,a,b\n": "rank 0: 'a:b' is no address",
        head + "0,0\n": "rank 0: ':' is no address",
        "": "has 0 rows of rank 0",
    }.items():
        path.write_text(content)
        with pytest.raises(LabelSkewError) as error:
            comm.address()
        assert str(error.value).startswith(f"comm_args.grpc_ipconfig_path: {path}: {message}")
        assert "\n" not in str(error.value)
    path.write_bytes(b"\xff\xfe\0")
    with pytest.raises(LabelSkewError, match="is no CSV text"):
        comm.address()
