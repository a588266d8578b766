"""What can never run is refused at its submission, in a sentence."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import ranks_job, with_settings
from job_helpers import python_job, slurm_config, wait_for_end

from configs.errors import LaunchError
from infra.launch import make_launcher
from infra.launch.base import JobState

pytestmark = [pytest.mark.slow, pytest.mark.soak]


@pytest.mark.parametrize(
    ("settings", "nodes", "words"),
    [
        ({"partition": "nowhere"}, 1, r"partition 'nowhere' does not exist: the server has .*main"),
        ({}, 9, r"can n?ever .*9 node\(s\)"),
        ({"memory_per_node_gib": 9999.0}, 1, r"no node can ever satisfy it.*MiB"),
        ({"gpus_per_node": 99}, 1, r"no node can ever satisfy it.*gpu:99"),
        ({"cpus_per_node": 999}, 1, r"can n?ever .*1 node\(s\) with 999 CPU"),
        ({"constraints": "quantum"}, 1, r"no node has the features 'quantum'"),
        (
            {"partition": "short", "time_limit_minutes": 99},
            1,
            r"partition 'short' can never .* 99 minutes",
        ),
    ],
)
def test_what_can_never_run_is_refused(
    slurm_site: Any, tmp_path: Path, settings: dict[str, Any], nodes: int, words: str
) -> None:
    launcher = with_settings(slurm_site, **settings)
    spec = ranks_job(tmp_path, "", nodes=nodes)
    with pytest.raises(LaunchError, match=words):
        launcher.submit(spec)
    assert launcher.find(spec.job_dir) is None
    # With a right config, the same folder is used.
    handle = make_launcher(slurm_config(slurm_site)).submit(
        python_job(spec.job_dir, "", key=spec.key)
    )
    assert wait_for_end(launcher, handle).state is JobState.COMPLETED


def test_account_and_qos_are_checked_where_they_count(accounting_site: Any, tmp_path: Path) -> None:
    right = with_settings(accounting_site, account="research", qos="urgent")
    handle = right.submit(python_job(tmp_path / "right", ""))
    assert wait_for_end(right, handle).state is JobState.COMPLETED
    with pytest.raises(LaunchError, match=r"account 'nobody' does not exist, or user"):
        with_settings(accounting_site, account="nobody").submit(python_job(tmp_path / "a", ""))
    with pytest.raises(LaunchError, match=r"QOS 'gold' does not exist"):
        with_settings(accounting_site, account="research", qos="gold").submit(
            python_job(tmp_path / "b", "")
        )


def test_a_wrong_token_is_said_so_and_not_shown(slurm_site: Any, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.touch(mode=0o600)
    token_file.write_text("eyJhbGciOiJIUzI1NiJ9.e30.c2VjcmV0")
    wrong = with_settings(slurm_site, token_file=token_file, patience_s=3.0)
    for call in (lambda: wrong.submit(python_job(tmp_path / "job", "")), wrong.nodes):
        with pytest.raises(LaunchError, match="does not accept the token of") as caught:
            call()
        assert "c2VjcmV0" not in str(caught.value)


def test_a_server_that_is_not_slurms(tmp_path: Path, slurm_site: Any) -> None:
    import http.server

    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        other = with_settings(slurm_site, url=f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(LaunchError, match=r"speaks none of the versions v0\.0\.38, v0\.0\.40"):
            other.submit(python_job(tmp_path / "job", ""))
    finally:
        server.shutdown()
        server.server_close()
