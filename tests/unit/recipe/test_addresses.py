import pytest
from recipe_texts import cross_silo, only_line, text_with

from fl_labelskew_plugins.recipe import parse


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.9.1:65535", "[::1]:8890", "localhost:8890"])
def test_loopback_needs_no_certificates(address):
    assert parse.parse(cross_silo(server_address=address)).comm.server_address == address


@pytest.mark.parametrize(
    "address",
    ["", "x", "127.0.0.1", "127.0.0.1:", ":8890", "a:65536", "a:-1", "::1:80", "[x]:1", "a b:1", "a:1\n", "a:²"],
)
def test_invalid_addresses(address):
    line = only_line(text_with(comm_args={"server_address": address}))
    assert "is not an address; use host:port with a port from 0 to 65535, such as" in line
