"""Reads a report back: the HTML with the standard library's parser, the page as a real browser lays it out."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from require import need

VOID = {"meta", "br", "img", "link", "input", "hr", "path", "use", "rect"}
MEASURE = Path(__file__).parent / "data" / "measure.html"


class Page(HTMLParser):
    """tags and attributes as they stand; text; tables by caption or label: rows of (text, value of <data> or None)."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.text, self.tables = [], [], "", {}
        self.sections, self.data = {}, []
        self._open, self._rows, self._caption, self._section = [], None, "", None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        given = dict(attributes)
        if tag not in VOID:
            self._open.append(tag)
        if tag == "section":
            self._section = given["id"]
        if given.get("role") == "region":
            self._rows = self.tables.setdefault(given["aria-label"], [])
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._rows:
            self._rows[-1].append(["", None])
        elif tag == "data":
            self.data.append([given["value"], ""])
            if self._rows:
                self._rows[-1][-1][1] = float(given["value"])

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, text):
        if "style" in self._open:
            return
        self.text += text
        self.sections[self._section] = self.sections.get(self._section, "") + text
        if "data" in self._open:
            self.data[-1][1] += text
        if self._rows and self._rows[-1] and ("td" in self._open or "th" in self._open):
            self._rows[-1][-1][0] += (" " if "small" in self._open else "") + text


def chromium() -> str:
    """The browser, or a skip that says how to lift it; a failure where HA_SWEEP_REQUIRE names it."""
    found = shutil.which("chromium")
    need("chromium", found is not None, "apt-get install chromium")
    return found


def browse(browser: str, profile, url: str, *flags: str) -> str:
    """What a headless browser with an empty profile writes to standard output for a page."""
    quiet = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    arguments = [browser, *quiet.split(), "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}"]
    done = subprocess.run([*arguments, *flags, url], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def measure(browser: str, folder, profile, width: int, *flags: str) -> tuple[dict, list[str]]:
    """Layout facts of folder/report.html in a frame `width` CSS pixels wide, and the paths that were asked for."""
    (folder / "measure.html").write_text(MEASURE.read_text().replace("WIDTH", str(width)))
    with serve(folder) as (url, asked):
        dom = browse(
            browser,
            profile,
            f"{url}/measure.html",
            "--hide-scrollbars",
            "--virtual-time-budget=10000",
            "--dump-dom",
            *flags,
        )
    found = re.search(r'<pre id="out">(.*?)</pre>', dom, re.DOTALL)
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return json.loads(text), asked


@contextmanager
def serve(folder):
    """A loopback server of a folder: its URL, and the paths it was asked for."""
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
