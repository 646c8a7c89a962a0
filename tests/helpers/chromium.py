"""Debian's headless Chromium through its own debugging pipe: one page, what it says, and what it asks for."""

import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


class Browser:
    """A browser with one tab; ``events`` holds everything that it has reported of it."""

    def __init__(self, folder):
        theirs, self._out = os.pipe()
        self._in, answers = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4
        command = ["bash", "-c", f'exec "$@" 3<&{theirs} 4>&{answers}', "bash", CHROMIUM, *FLAGS]
        self._process = subprocess.Popen(
            [*command, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"],
            pass_fds=[theirs, answers],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(answers)
        self.events, self._buffer, self._number, self._session = [], b"", 0, None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        """The answer to one command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path):
        """Load a file and wait until it stands."""
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        while not self.reported("Page.loadEventFired"):
            self.events.append(self._next())

    def evaluate(self, script):
        """The value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def reported(self, *methods):
        """The parameters of events of these kinds."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def complaints(self):
        """Whatever the console has been told, by the page or by the browser."""
        return self.reported("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")

    def requests(self):
        """Every address that was asked for."""
        return [each["request"]["url"] for each in self.reported("Network.requestWillBeSent")]

    def _next(self, timeout=60):
        end = time.monotonic() + timeout
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], max(0, end - time.monotonic()))[0], "Chromium does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "Chromium has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def close(self):
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)
