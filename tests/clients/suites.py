"""What all suites share: servers of the tiny model."""
from harness import ask
from prometheus import Metrics
from server import Server


class ServerSuite:
    """Checks are methods check_*, in their order, whose docstrings say what holds."""
    flags = ()  # of the server that all checks use

    def __init__(self, place, report):
        self.place, self.report = place, report
        self.servers = []

    def open(self):
        """Starts what the checks need; Missing if something is not on this machine."""
        self.server = self.start(*self.flags)
        self.url = self.server.url

    def start(self, *flags, model=None):
        """Another server, which ends with the suite."""
        log = self.place.folder / f"{type(self).__name__}_{len(self.servers)}.log"
        server = Server(self.place.program, model or self.place.model.path, *flags, log=log)
        self.servers.append(server)
        return server

    def close(self):
        failures = []
        for server in self.servers:
            try:
                server.stop()
            except Exception as failure:  # the others are to end too
                failures.append(failure)
        if failures:
            raise failures[0]

    def metrics(self, server=None):
        _, _, text = ask((server or self.server).url + "/metrics")
        return Metrics(text)
