"""What mpirun starts for a rank: a fork of forker.py does the work. Arguments: FORKER SCRIPT ARGUMENTS."""

import sys

from forked_python import forked

_, address, script, *argv = sys.argv
code = forked(address, {"script": script, "argv": argv})
sys.exit(code if code >= 0 else 128 - code)
