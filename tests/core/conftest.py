import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the texts of all goldens; never a truth.json",
    )


@pytest.fixture
def update_golden(request):
    return request.config.getoption("--update-golden")
