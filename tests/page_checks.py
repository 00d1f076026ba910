"""What tests of pages share: a browser, sizes of windows, and measures taken inside a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_FLAGS = [
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]

DESKTOP, PHONE = (1240, 900), (375, 800)

# Contrast of WCAG 2 between a colour of the first element of each kind and what lies behind it.
CONTRAST = """
([selectors, property]) => selectors.map(selector => {
  const element = document.querySelector(selector);
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => v / 255).map(
      v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  let behind = property === 'color' ? element : element.parentElement;
  while (behind && (parse(getComputedStyle(behind).backgroundColor)[3] ?? 1) < 1)
    behind = behind.parentElement;
  const one = light(parse(getComputedStyle(element)[property]));
  const two = light(parse(getComputedStyle(behind).backgroundColor));
  return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
})
"""


# What a page's policy refused of markup, a script of its own and another host.
REFUSED = """
async html => {
  const found = [];
  document.addEventListener('securitypolicyviolation',
    event => found.push(event.effectiveDirective));
  document.body.insertAdjacentHTML('beforeend', html);
  const script = document.createElement('script');
  script.textContent = 'document.title = "run"';
  document.body.append(script);
  await fetch('http://127.0.0.1:9/').catch(() => {});
  await new Promise(done => setTimeout(done, 100));
  return found.sort();
}
"""


@contextmanager
def chromium() -> Iterator:
    """Headless Chromium; a test without one is skipped.

    Within the block no test can start an event loop of its own.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no chromium on PATH: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    flags = [*_FLAGS, "--no-sandbox"] if os.geteuid() == 0 else _FLAGS
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()
