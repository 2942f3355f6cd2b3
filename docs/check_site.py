"""Check the built site in headless Chromium, on a phone and on a laptop.

    python docs/make_pages.py && mkdocs build && python docs/check_site.py site

Loads every page 390 and 1280 pixels wide. Lists elements that are wider than their column, and
display equations at most 10 pixels high. Without Chromium the script checks nothing.
"""

import functools
import html
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

WIDTHS = 390, 1280
# PAGES and WIDTHS are replaced below.
SCRIPT = """
<!DOCTYPE html><pre id="found">not finished</pre><script>
const problems = [];
const WIDE = "table, pre, img, svg, mjx-container, textarea, input, iframe";
async function check(page, width) {
  const frame = document.createElement("iframe");
  Object.assign(frame.style, { width: `${width}px`, height: "800px", border: "0" });
  frame.src = page;
  document.body.append(frame);
  await new Promise((resolve) => { frame.onload = resolve; });
  const { MathJax, document: { documentElement } } = frame.contentWindow;
  await MathJax?.startup?.promise;
  await new Promise((resolve) => setTimeout(resolve, 300));
  const column = documentElement.querySelector(".md-content__inner");
  const say = (what, size, element) => {
    const text = element.textContent.trim().slice(0, 60);
    problems.push(`${page} at ${width}: ${what} of ${Math.round(size)} px: ${text}`);
  };
  for (const element of column.querySelectorAll(WIDE)) {
    const size = element.getBoundingClientRect().width;
    // On a phone the theme lets code use the margins of the page.
    const most = element.tagName === "PRE" ? width : column.clientWidth + 1;
    if (size > most) say(`${element.tagName} in a column of ${column.clientWidth}`, size, element);
  }
  for (const element of column.querySelectorAll(".arithmatex")) {
    if (!MathJax?.startup) break;  // the site was built without npm
    const size = element.querySelector("svg")?.getBoundingClientRect() ?? { width: 0, height: 0 };
    const isLow = element.tagName === "DIV" ? size.height <= 10 : size.height <= 4;
    if (isLow || size.width <= 4) say("an equation", Math.min(size.height, size.width), element);
  }
  if (documentElement.scrollWidth > width) say("a page", documentElement.scrollWidth, column);
  frame.remove();
}
(async () => {
  for (const page of PAGES) {
    for (const width of WIDTHS) {
      await check(page, width).catch((error) => problems.push(`${page}: ${error}`));
    }
  }
  document.getElementById("found").textContent = JSON.stringify(problems);
})();
</script>
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serve files without a log."""

    def log_message(self, *_: object) -> None:
        pass


def dump_page(chromium: str, site: pathlib.Path, address: str, *options: str) -> str:
    """Return the HTML of a page of a site after its scripts ran."""
    handler = functools.partial(Quiet, directory=site)
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        tempfile.TemporaryDirectory() as profile,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", *options),
            f"--user-data-dir={profile}",
            f"http://127.0.0.1:{server.server_address[1]}/{address}",
        ]
        try:
            run = subprocess.run(command, capture_output=True, timeout=600, check=True)
        finally:
            server.shutdown()
    return run.stdout.decode()


def check(site: pathlib.Path, chromium: str) -> list[str]:
    """Return the problems of all pages of a site."""
    pages = sorted(f"/{path.parent.relative_to(site)}/" for path in site.rglob("index.html"))
    pages = ["/" if page == "/./" else page for page in pages]
    script = SCRIPT.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(WIDTHS))
    page = site / "check.html"
    page.write_text(script, "utf-8")
    options = "--virtual-time-budget=600000", "--window-size=1400,900"
    try:
        dom = dump_page(chromium, site, page.name, *options)
    finally:
        page.unlink()
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)[1]
    print(f"{len(pages)} pages at {' and '.join(map(str, WIDTHS))} pixels")
    return json.loads(html.unescape(found))


if __name__ == "__main__":
    if chromium := shutil.which("chromium"):
        problems = check(pathlib.Path(sys.argv[1]), chromium)
        print("\n".join(problems))
        sys.exit(bool(problems))
    print("Chromium is not installed: the pages were not checked")
