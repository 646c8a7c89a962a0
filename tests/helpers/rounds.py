"""Rounds of small federations, through the real local loop and the real server."""

from fl_labelskew_plugins.engine.turn import fit


def play(trainer, server, states, number, clients, sizes, *, asked=None, counts=None):
    """One round of these clients, of whom more may have been ``asked``; ``states`` are replaced."""
    results = []
    for client in clients:
        state = states.get(client, {})
        result = fit(trainer, client, number, server.weights, shared=server.shared, state=state, times_selected=1)
        server.check(client, number, result)
        states[client] = result.state
        results.append((client, result))
    asked = list(clients if asked is None else asked)
    server.run_round(asked, [sizes[k] for k in asked], iter(results), counts)
