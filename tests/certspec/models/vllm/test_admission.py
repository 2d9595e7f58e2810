"""A wish that a server can't serve is refused by name, whether it stands in the environment, in a
request's parameters, or in a body where it would be lost."""

import sys
import types
from types import SimpleNamespace

import pytest

import certspec.models.vllm as plugin
from certspec.errors import InvalidArgument
from certspec.models.vllm.admission import check_environment, refuse_lost, refuse_unserved
from certspec.models.vllm.attaching import Attaching
from tests.support.toy_vllm import params

RELAXED = {"certspec_rule": "top:4"}
THINKS = {"certspec_thinking_rule": "top:4", "certspec_thinking_tokens": "7,8"}


@pytest.fixture(autouse=True)
def no_wishes(monkeypatch):
    for name in ("ATTACH", "RULES", "TRACE", "THINKING_TOKENS"):
        monkeypatch.delenv(f"CERTSPEC_{name}", raising=False)


class TheirWorker(Attaching):
    pass


def server(v2=False, drafts=True, method="standard", worker="vllm.v1.worker.cpu_worker.CPUWorker"):
    return SimpleNamespace(
        use_v2_model_runner=v2,
        speculative_config=SimpleNamespace(rejection_sample_method=method) if drafts else None,
        parallel_config=SimpleNamespace(worker_cls=worker),
        model_config=SimpleNamespace(get_vocab_size=lambda: 40),
    )


OURS = {"worker": "certspec.models.vllm.attaching.CpuWorker"}


@pytest.mark.parametrize(
    ("config", "extra", "named"),
    [
        (server(drafts=False, v2=True), RELAXED, "speculative-config.*top:4"),
        (server(drafts=False, **OURS), THINKS, "speculative-config.*top:4"),
        (server(), RELAXED, "CERTSPEC_ATTACH=1.*top:4.*V1"),
        (server(worker="nowhere.at.All"), RELAXED, "CERTSPEC_ATTACH=1"),
        (server(v2=True, method="synthetic"), RELAXED, "'synthetic'"),
        (server(method="fly", **OURS), RELAXED, "'fly'"),
        (server(**OURS), {**THINKS, "certspec_thinking_tokens": "39,40"}, "below 40, got 39,40"),
    ],
)
def test_a_rule_that_the_server_cannot_serve_is_refused_and_strict_is_not(config, extra, named):
    with pytest.raises(ValueError, match=named):
        refuse_unserved(config, params(extra))
    for other in (None, {}, {"other": 1}, {"certspec_rule": "strict"}):
        refuse_unserved(config, params(other))
    refuse_unserved(config, SimpleNamespace())  # pooling


def test_a_rule_is_let_in_where_something_verifies_by_it(monkeypatch):
    theirs = server(worker=f"{TheirWorker.__module__}.TheirWorker")
    monkeypatch.setitem(sys.modules, TheirWorker.__module__, sys.modules[__name__])
    for config in (server(v2=True), server(**OURS), theirs):
        refuse_unserved(config, params(RELAXED))
    for name in ("ATTACH", "RULES", "TRACE"):
        with monkeypatch.context() as patched:
            patched.setenv(f"CERTSPEC_{name}", "1")
            refuse_unserved(server(), params(RELAXED))


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("CERTSPEC_TRACES", "x", "expected CERTSPEC_TRACE, got CERTSPEC_TRACES='x'"),
        ("CERTSPEC_TRACE_DIR", "x", "expected CERTSPEC_TRACE,"),
        ("CERTSPEC_RULE", "strict", "expected CERTSPEC_RULES"),
        ("certspec_rules", "strict", "expected CERTSPEC_RULES"),
        ("CERTSPECTRACE", "x", "expected CERTSPEC_TRACE"),
        ("CERTSPEC_THINKING", "7,8", "expected CERTSPEC_THINKING_TOKENS"),
        ("CERTSPEC_ATTACH", "true", "CERTSPEC_ATTACH: expected 1 or 0, got 'true'"),
        ("CERTSPEC_RULES", "strict additiv:1", "CERTSPEC_RULES: .*additiv"),
        ("CERTSPEC_THINKING_TOKENS", "7", "thinking_tokens.*'7'"),
    ],
)
def test_a_variable_that_would_be_ignored_keeps_the_server_from_starting(
    monkeypatch, name, value, named
):
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidArgument, match=named):
        plugin.register()


def test_good_variables_and_other_peoples_are_let_be():
    check_environment({})
    good = {"CERTSPEC_ATTACH": "0", "CERTSPEC_RULES": "strict tree:2", "CERTSPEC_TRACE": "here"}
    other = {"CERTSPEC_VLLM_PYTHON": "x", "CERTSPEC_DRAFT_API_KEY": "x", "CERTSPEC_FUZZ": "1"}
    check_environment({**good, **other, "CERTSPEC_THINKING_TOKENS": "7,8", "PATH": "/bin"})


def body(extra=None, **beside):
    return SimpleNamespace(vllm_xargs=extra, model_extra=beside or None)


def test_a_rule_in_a_body_where_it_would_be_lost_is_refused():
    for good in (body(), body(RELAXED), body(RELAXED, user="x", extra_args={"other": 1})):
        refuse_lost(good)
    refuse_lost(body({"other": 1}), is_beam_search=True)
    for lost, named in (
        (body(certspec_rule="top:4"), "certspec_rule: expected it in vllm_xargs"),
        (body(extra_args=RELAXED), "extra_args.certspec_rule: expected it in vllm_xargs"),
    ):
        with pytest.raises(InvalidArgument, match=named):
            refuse_lost(lost)
    with pytest.raises(InvalidArgument, match=r"certspec_rule: expected no beam search.*top:4"):
        refuse_lost(body(RELAXED), is_beam_search=True)


def test_what_vllm_checks_at_admission_is_checked_by_the_plugin_as_well(monkeypatch):
    class InputProcessor:
        vllm_config = server()

        def _validate_params(self, given, tasks):
            return given, tasks

    class CompletionRequest:
        vllm_xargs, model_extra = RELAXED, None

        def to_sampling_params(self, most):
            return params(RELAXED, temperature=most)

        def to_beam_search_params(self, most):
            return most

    for name, kind in (
        ("vllm.v1.engine.input_processor", InputProcessor),
        ("vllm.entrypoints.openai.completion.protocol", CompletionRequest),
    ):
        module = types.ModuleType(name)
        setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, name, module)

    class VLLMValidationError(Exception):
        """A plain ValueError is answered with status 500."""

    errors = types.ModuleType("vllm.exceptions")
    errors.VLLMValidationError = VLLMValidationError
    monkeypatch.setitem(sys.modules, errors.__name__, errors)
    plugin.register()
    wrapped = InputProcessor._validate_params
    plugin.register()
    assert InputProcessor._validate_params is wrapped
    plain = params()
    assert InputProcessor()._validate_params(plain, "tasks") == (plain, "tasks")
    with pytest.raises(VLLMValidationError, match="CERTSPEC_ATTACH=1"):
        InputProcessor()._validate_params(params(RELAXED), "tasks")
    assert CompletionRequest().to_sampling_params(0.0).extra_args == RELAXED
    with pytest.raises(VLLMValidationError, match=r"temperature 0 .* got 1"):
        CompletionRequest().to_sampling_params(1.0)
    with pytest.raises(VLLMValidationError, match="beam search"):
        CompletionRequest().to_beam_search_params(3)
