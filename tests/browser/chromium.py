"""Drives a headless Chromium through the DevTools protocol, over pipes: Python's standard library alone."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
PATIENCE = 60.0


def find():
    """The browser's path: $CHROMIUM, or the first that is installed; None without one."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser. As a context manager it is closed at the end."""

    def __init__(self, path):
        self.profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_browser, from_us = os.pipe()
        from_browser, to_us = os.pipe()
        flags = ["--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--force-color-profile=srgb", "--disable-dev-shm-usage",
                 "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}"]
        # Its sandbox needs a user that is not root; pages here are our own files.
        if os.geteuid() == 0:
            flags.append("--no-sandbox")

        def as_three_and_four():
            # Through high numbers, since 3 and 4 may be in use here.
            read, write = os.dup(to_browser), os.dup(to_us)
            high_read, high_write = os.dup2(read, 60), os.dup2(write, 61)
            os.dup2(high_read, 3), os.dup2(high_write, 4)

        self.process = subprocess.Popen([path, *flags], preexec_fn=as_three_and_four, close_fds=False,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser), os.close(to_us)
        self.out, self.into = from_us, from_browser
        self.buffer, self.last, self.events = b"", 0, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.out), os.close(self.into)
        self.profile.cleanup()

    def receive(self, seconds):
        """The next message, or None if none comes in `seconds`."""
        until = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.into], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(self.into, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser has ended")
            self.buffer += chunk
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        """A command's result; events that come meanwhile are kept."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        until = time.monotonic() + PATIENCE
        while (left := until - time.monotonic()) > 0:
            answer = self.receive(left)
            if answer is None:
                break
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)
        raise RuntimeError(f"{method}: no answer")

    def open(self, url, width=1280, height=1000, dark=False):
        """A page, loaded."""
        page = Page(self, width, height)
        page.media(dark=dark)
        page.go(url)
        return page


class Page:
    """A tab."""

    def __init__(self, browser, width, height):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")
        probe = pathlib.Path(__file__).with_name("probe.js").read_text(encoding="utf-8")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=probe)
        self.size(width, height)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, dark=False, kind=""):
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, expression):
        """The value of an expression; an exception in it is one here."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "exception"))
        return answer["result"].get("value")

    def until(self, expression):
        """Waits until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.js(expression):
            if time.monotonic() > end:
                raise RuntimeError(f"never came true: {expression}")
            time.sleep(0.05)

    def events(self, *methods):
        """What was reported of this page."""
        mine = [e for e in self.browser.events if e.get("sessionId") == self.session]
        return [e["params"] for e in mine if e["method"] in methods]

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def key(self, name):
        for kind in ["keyDown", "keyUp"]:
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def shot(self, path, whole=True, clip=None):
        """A picture, of the whole page or of the element that `clip` selects."""
        more = {}
        if clip:
            more = {"clip": {**self.js(f"probe.box({json.dumps(clip)})"), "scale": 1}}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole or bool(clip), **more)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
