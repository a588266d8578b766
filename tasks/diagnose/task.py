"""Prefect task of the diagnose stage."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.diagnose_schema import DiagnoseConfig
from configs.errors import ConfigError, InputError, OverlandError
from configs.records import AttemptRecord, Verdict
from configs.rundir import AttemptDir, RunDir, write_record
from configs.schema import RunConfig
from tasks.diagnose.answer import answer
from tasks.diagnose.compress import compress
from tasks.diagnose.diagnose import diagnose_attempt
from tasks.diagnose.failure_agent import is_unsure
from tasks.diagnose.filter_rules import JobKind, rules_for
from tasks.diagnose.launcher_words import with_another_port
from tasks.diagnose.learned_rules import learned_rules
from tasks.diagnose.log_agent import learn_filter_rules
from tasks.diagnose.logs import attempt_log_files, read_log
from tasks.diagnose.second_look import look_further
from tasks.diagnose.sources import source_of
from tasks.diagnose.verdict_page import verdict_page
from tasks.diagnose.verdicts import make_verdict


@task(name="diagnose-attempt", cache_policy=NO_CACHE)
def diagnose(config: RunConfig, number: int) -> Verdict:
    """Read the ended attempt's logs and write its verdict; keeps one that is there already.

    When the diagnosis itself fails, the verdict is Unknown and says so: the run goes by that.
    """
    attempt = RunDir(config.resolved_run_dir()).attempt(number)
    verdict = attempt.verdict()
    if verdict is None:
        record = attempt.record()
        if record is None or record.outcome is None:
            raise OverlandError(f"attempt {number} has not ended: there is nothing to diagnose")
        verdict = _diagnose(attempt, record, config)
        write_record(attempt.verdict_path, verdict)
        _show(attempt, verdict)
    get_run_logger().info("attempt %d: %s", number, verdict.failure_class)
    return verdict


@task(name="learn-filter-rules", cache_policy=NO_CACHE)
def learn_from_logs(config: RunConfig, number: int) -> None:
    """Ask the language model, where it may be asked, which lines of an attempt's log are routine.

    What is learnt serves later jobs of this kind. A model that is away, or wrong, costs nothing.
    """
    settings = config.diagnose
    attempt = RunDir(config.resolved_run_dir()).attempt(number)
    log = attempt.rank_log(0)
    if settings.endpoint is None or not settings.log_agent or not log.is_file():
        return
    kind, folder = _job_kind(config), _rules_folder(settings)
    try:
        from infra.language_model import LanguageModel  # its client is an extra

        with LanguageModel(settings) as model:
            learnt = learn_filter_rules(
                model,
                read_log(log),
                kind=kind,
                job=config.name,
                folder=folder,
                known=rules_for(kind, folder),
                samples=settings.log_agent_samples,
            )
    except Exception:
        get_run_logger().warning("no filter rules were learnt", exc_info=True)
        return
    get_run_logger().info(
        "%d filter rules learnt, %d proposals refused", len(learnt.rules), len(learnt.refused)
    )


@task(name="diagnose-logs", cache_policy=NO_CACHE)
def diagnose_logs(path: str) -> list[dict[str, Any]]:
    """The verdict on each input at the path: a log, or a directory of logs of any job."""
    found = []
    for item in answer([path]):
        if isinstance(item, InputError):
            raise item
        get_run_logger().info("%s: %s", item.file, item.failure_class)
        for why in item.unreadable.values():
            get_run_logger().warning("%s", why)
        found.append(item.model_dump(by_alias=True))
    return found


def _job_kind(config: RunConfig) -> JobKind:
    """What makes other jobs print like this one."""
    return JobKind(framework="megatron-core", name=config.name, launcher=config.launcher.kind)


def _rules_folder(settings: DiagnoseConfig) -> Path:
    return settings.resolved_store() / "filter_rules"


def _diagnose(attempt: AttemptDir, record: AttemptRecord, config: RunConfig) -> Verdict:
    """The verdict, by past cases and a model too where rules are unsure and these can be had."""
    verdict = with_another_port(_by_rules(attempt, record, config.diagnose), attempt)
    if not is_unsure(verdict):
        return verdict
    try:
        return _look_further(verdict, attempt, config)
    except Exception as error:
        get_run_logger().exception("attempt %d: the rules' verdict stands alone", attempt.number)
        why = f"past cases and model were not asked: {type(error).__name__}: {error}"
        return verdict.model_copy(update={"evidence": [*verdict.evidence, why]})


def _look_further(verdict: Verdict, attempt: AttemptDir, run_config: RunConfig) -> Verdict:
    config = run_config.diagnose
    files = attempt_log_files(attempt.path)
    sources = [source_of(file, str(file.relative_to(attempt.path))) for file in files]
    with ExitStack() as stack:
        model = None
        if config.endpoint is not None:
            from infra.language_model import LanguageModel  # its client is an extra

            model = stack.enter_context(LanguageModel(config))
        return look_further(
            verdict,
            compress(sources, rules_for(_job_kind(run_config), _rules_folder(config))),
            config,
            model,
        )


def _by_rules(attempt: AttemptDir, record: AttemptRecord, config: DiagnoseConfig) -> Verdict:
    """The rules' verdict. Raised here, an error would end the run now and again at each of its starts."""
    try:
        try:
            return diagnose_attempt(attempt, record, learned_rules(config.resolved_store()))
        except ConfigError:  # learned rules that somebody has edited
            get_run_logger().warning("learned rules are left out", exc_info=True)
            return diagnose_attempt(attempt, record)
    except Exception as error:
        get_run_logger().exception("the diagnosis of attempt %d failed", attempt.number)
        return make_verdict(
            "Unknown",
            method="diagnosis_failed",
            confidence=0.0,
            evidence=[f"diagnosis: {type(error).__name__}: {error}"],
            mitigation="The diagnosis itself failed, which is a bug: report it, with the logs.",
        )


def _show(attempt: AttemptDir, verdict: Verdict) -> None:
    """Put the verdict on the flow run's page; a Prefect server that is away keeps no run from going on."""
    key = f"verdict-{attempt.path.parent.parent.name}-{attempt.number}".lower()
    try:
        create_markdown_artifact(
            verdict_page(attempt.number, verdict),
            key="".join(c if c.isascii() and c.isalnum() else "-" for c in key),
            description=f"{verdict.failure_class} in attempt {attempt.number}",
        )
    except Exception:
        get_run_logger().warning("Prefect's page lacks the verdict", exc_info=True)
