"""The model that the runners' tests share."""

from typing import Any

import pytest

from tests.support.small_models import make_model


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model()
