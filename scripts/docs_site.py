#!/usr/bin/env python3
"""Builds the documentation site with mdBook, and checks every link of the pages that come out.

    scripts/docs_site.py MDBOOK OUT

The pages in docs/ link to files elsewhere in the repository, and mdBook shows only what is in one folder. So the pages and the files
that they may link to are first copied to OUT-source, at the same places. Exit code 1: a link leads nowhere. Python's standard library alone.
"""

import html.parser
import posixpath
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The files that the site may show or link to.
PATHS = ["*.md", "LICENSE", "docs", "experiments", "schemas"]


def stage(source):
    """Copies the files to `source`, as mdBook wants them."""
    shutil.rmtree(source, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PATHS],
                            cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        # mdBook shows README.md as index.html, but does not change the links to it.
        to = source / "src" / re.sub(r"README\.md$", "index.md", name)
        to.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            text = (ROOT / name).read_text(encoding="utf-8")
            to.write_text(re.sub(r"(\]\([^)\s]*)README\.md", r"\1index.md", text), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / name, to)
    docs = source / "src" / "docs"
    shutil.move(docs / "book.toml", source / "book.toml")
    summary = (docs / "SUMMARY.md").read_text(encoding="utf-8")
    moved = re.sub(r"\]\(([^)]+)\)", lambda link: f"]({posixpath.normpath('docs/' + link[1])})", summary)
    (source / "src" / "SUMMARY.md").write_text(moved, encoding="utf-8")
    (docs / "SUMMARY.md").unlink()


class Page(html.parser.HTMLParser):
    """The links of a page, and the ids of its elements."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id":
                self.ids.add(value)


def broken_links(site):
    """The links of the site's pages that lead to no file or to no element."""
    # The page for wrong addresses links from the server's root.
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            to = Path(posixpath.normpath(path.parent / urllib.parse.unquote(parts.path))) if parts.path else path
            if not to.is_file():
                yield f"{path.relative_to(site)}: {link} leads to no file"
            elif parts.fragment and to in pages and urllib.parse.unquote(parts.fragment) not in pages[to].ids:
                yield f"{path.relative_to(site)}: {link} leads to no heading"


def main():
    mdbook, site = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
    source = site.with_name(site.name + "-source")
    stage(source)
    shutil.rmtree(site, ignore_errors=True)
    subprocess.run([mdbook, "build", source, "--dest-dir", site], check=True)
    broken = list(broken_links(site))
    print(*broken, sep="\n", end="\n" if broken else "")
    print(f"{site / 'index.html'}: {len(list(site.rglob('*.html')))} pages, {len(broken)} broken links")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
