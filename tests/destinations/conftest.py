"""The contract's assertions are shown as fully as those of the tests themselves."""

import pytest

pytest.register_assert_rewrite("penstock.testing.destination_contract")
