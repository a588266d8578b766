"""What is known of a job beside its logs: a port that was taken is another one next time."""

from __future__ import annotations

from pathlib import Path

from configs.events import StartEvent
from configs.rundir import AttemptDir
from tasks.diagnose.diagnose import diagnose_attempt
from tasks.diagnose.launcher_words import with_another_port
from tests.tasks.diagnose.torchrun_jobs import failed_record

_TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
    "address. port: 21950, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)


def test_the_next_attempt_of_our_own_job_takes_another_port(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path, 1)
    attempt.job_dir.mkdir()
    (attempt.job_dir / "launcher.log").write_text(_TAKEN)
    verdict = diagnose_attempt(attempt, failed_record())
    assert (verdict.failure_class, verdict.action) == ("NetworkError", "fix_by_user")
    own = with_another_port(verdict, attempt)
    assert (own.failure_class, own.action) == ("NetworkError", "restart_same_nodes")
    assert "another" in own.mitigation
    met = StartEvent(
        time=1.0, step=0, checkpoint=None, world_size=2, device="cpu", precision="fp32",
        num_parameters=1, padded_vocab_size=1,
    )  # fmt: skip
    attempt.events_path.write_text(met.model_dump_json() + "\n")
    assert with_another_port(verdict, attempt) == verdict, "that is a port of the program's own"


def test_other_verdicts_stay(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path, 1)
    verdict = diagnose_attempt(attempt, failed_record(reason="NODE_FAIL lost"))
    assert with_another_port(verdict, attempt) == verdict
