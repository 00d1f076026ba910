"""A browser for the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from page_checks import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """One for all tests of a module."""
    with chromium() as found:
        yield found
