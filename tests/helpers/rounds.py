"""Rounds of small federations, through the real local loop and the real server."""

from collections import Counter

from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.engine.turn import fit
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import session


class LocalFederation:
    """The clients and the server of a recipe, for a test that plays their rounds itself."""

    def __init__(self, text, *overrides):
        self.made = made = session.build(parse.parse(text, overrides=overrides))
        self.method, self.trainer = made.method, made.trainer
        self.server = Server(
            made.trainer.model,
            method=made.method,
            federation=made.federation,
            weights=made.start,
            optimizer=made.recipe.optimizer,
            proxy_smoothing=made.recipe.train.proxies_by_class,
            sums=made.sums,
            name=made.trainer.name,
        )
        self.server.open(made.openings())
        self.states, self.selected, self.round = {}, Counter(), 0

    def fit(self, client):
        """A client's part of the round."""
        self.selected[client] += 1
        server, state = self.server, dict(self.states.get(client, {}))
        more = {"shared": server.shared, "state": state, "times_selected": self.selected[client]}
        result = fit(self.trainer, client, self.round, server.weights, **more, personalised=True)
        self.states[client] = result.state
        return result


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
