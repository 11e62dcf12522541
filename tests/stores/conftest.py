import pytest

pytest.register_assert_rewrite("penstock.testing.store_contract")
