"""A database of its own for each test of the journal in PostgreSQL."""

from collections.abc import Iterator

import pytest

from tests.support.journals import PostgresPlace


@pytest.fixture
def place() -> Iterator[PostgresPlace]:
    made = PostgresPlace()
    yield made
    made.remove()
