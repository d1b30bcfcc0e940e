"""The JSON addresses keep what their OpenAPI document says, whatever is asked of them."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cadenza.web import create_app
from tests.campaigns import size
from tests.dashboards import CANARY, furnished
from tests.loop_runs import RUN

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_of_the_document(tmp_path, mode):
    app = create_app(*furnished(tmp_path))
    own = {"headers": {"host": "127.0.0.1"}}
    document = schemathesis.openapi.from_asgi("/api/openapi.json", app, **own)
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) == 6
    for operation in operations:
        if mode.is_negative and not list(operation.iter_parameters()):
            continue

        @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans())
        @settings(max_examples=size(20, 500), suppress_health_check=list(HealthCheck))
        def check(case, known):
            if known and "run_id" in case.path_parameters:
                case.path_parameters["run_id"] = RUN
            answer = case.call_and_validate(**own, checks=CHECKS)
            assert CANARY not in answer.text

        check()
