import json

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.store.database import config_to_keep, shown, url_of

SECRETS = [
    ("postgresql://ada:hunter2@host:5432/runs", "postgresql://ada:***@host:5432/runs"),
    ("postgresql+psycopg://ada:hun%40ter2@host/runs", "postgresql+psycopg://ada:***@host/runs"),
    ("postgresql://ada@host/runs?password=hunter2&connect_timeout=3", None),
    ("postgresql://host/runs?user=ada&sslpassword=hunter2", None),
    ("postgresql://ada:a/hunter2@host/runs", "postgresql://ada:***@host/runs"),
    ("postgresql://ada@host/runs?password=a&password=hunter2", None),
]


@pytest.mark.parametrize(("location", "wanted"), SECRETS)
def test_password_is_neither_shown_nor_kept(location, wanted):
    if wanted is not None:
        assert shown(location) == wanted
    kept = config_to_keep(json.dumps({"run_name": "r", "store": location}))
    for text in (shown(location), shown(url_of(location)), kept):
        assert "hunter2" not in text
        assert "hun%40ter2" not in text
        assert "ada" in text
    assert json.loads(kept) == {"run_name": "r", "store": shown(location)}
    url = url_of(shown(location))  # what was shown connects without a password
    assert (url.password, url.drivername, url.database) == (None, "postgresql+psycopg", "runs")
    assert not {"password", "sslpassword"} & set(url.query)


def test_password_reaches_the_driver():
    word = "hunter@2"
    assert url_of("postgresql://ada:hunter%402@host/runs").password == word
    assert url_of("postgresql://ada@host/runs?password=hunter%402").query["password"] == word


@pytest.mark.parametrize(
    "location", ["postgresql://ada:p@hunter2:x@host/runs", "post gres://ada:hunter2@host/runs"]
)
def test_url_that_cannot_be_read_is_not_quoted(location):
    for read in (url_of, shown):
        with pytest.raises(ConfigurationError, match="got one that cannot be read") as caught:
            read(location)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
    with pytest.raises(ConfigurationError):
        config_to_keep(json.dumps({"store": location}))
