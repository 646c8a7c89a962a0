"""Which SuperNode is which silo. A silo keeps its number for the whole run, also after ``--resume``."""

import hashlib
import json
import re
from pathlib import Path

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine.files import read_text, write_text
from fl_labelskew_plugins.machine.text import clean

FILE = "nodes.json"
KEY = "node"
"""In HELLO: the proof of the silo's identity."""


def proof(secret: int) -> str:
    """A digest of the secret in a silo's folder: Flower's node ids change when a SuperNode restarts."""
    return hashlib.blake2b(secret.to_bytes(16, "big"), digest_size=16, person=b"flower node").hexdigest()


class Bindings:
    """The proof of each silo, in a file of the server's run folder. Raises LabelSkewError for an invalid file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self._proofs: dict[str, str] = {}
        try:
            self._proofs = {str(rank): str(known) for rank, known in json.loads(read_text(self.file)).items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, AttributeError) as error:
            use = "restore the file, or delete it to bind the silos again"
            raise LabelSkewError(f"{self.file}: cannot be read: {clean(error)}; {use}") from None

    def bind(self, rank: int, value: object) -> bool:
        """Bind a silo at its first HELLO; afterwards, return whether ``value`` is its proof."""
        if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{32}", value):
            return False
        if str(rank) not in self._proofs:
            self._proofs[str(rank)] = value
            write_text(self.file, json.dumps(self._proofs, indent=1) + "\n")
        return self._proofs[str(rank)] == value
