import base64


def mutate(path, old, new):
    """Replace bytes within the only block of a PEM file."""
    first, *lines, last = path.read_bytes().splitlines(keepends=True)
    content = base64.b64decode(b"".join(lines))
    assert old in content
    path.write_bytes(first + base64.encodebytes(content.replace(old, new)) + last)
