"""Let a process import our packages and only some of the other installed ones."""

import sys
from importlib.machinery import PathFinder
from importlib.metadata import distribution, packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def allow(*names, without=""):
    """Hide all packages except these distributions and their dependencies; ``without``: a dependency to hide."""
    allowed, todo, owners = set(), [*names], packages_distributions()
    while todo:
        if (name := canonicalize_name(todo.pop())) not in allowed | {without}:
            allowed.add(name)
            needs = map(Requirement, distribution(name).requires or ())
            todo += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]

    class Allowed(PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            of = {canonicalize_name(owner) for owner in owners.get(name, ())}
            hidden = of and not of & allowed and not name.startswith("fl_labelskew")
            return None if hidden else super().find_spec(name, path, target)

    sys.meta_path[sys.meta_path.index(PathFinder)] = Allowed
