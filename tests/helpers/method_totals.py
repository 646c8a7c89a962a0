from fl_labelskew_registry import Total

from fl_labelskew_plugins.engine.aggregate import Addition


def total_of(*sent, round=0) -> Total:
    """The sum of the clients' tensors, as the server computes it."""
    addition = Addition(individual=False)
    for client, tensors in enumerate(sent):
        addition.add(client, tensors)
    return addition.total(len(sent), round)
