"""What is wrong with a site or a request is said before a job is there, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from slurm_server import VERSION, FakeSlurm, make, spec

from configs.errors import JobRefusedError, LaunchError, SiteError
from configs.slurm_schema import SlurmConfig
from infra.launch import slurm_contact
from infra.launch.slurm_client import SlurmClient
from infra.launch.slurm_contact import check_site
from infra.launch.slurm_record import SlurmFiles
from infra.launch.slurm_token import TokenSource, token_source

PARTITIONS = {"partitions": [{"name": "main"}, {"name": "low"}], "errors": []}
UNSATISFIABLE = {"error_number": 2014, "error": "Requested node configuration is not available"}


@pytest.fixture
def server() -> FakeSlurm:
    server = FakeSlurm()
    server.hook = partitions
    return server


def partitions(request: httpx.Request) -> httpx.Response | None:
    if request.url.path.endswith("/partitions/"):
        return httpx.Response(200, json=PARTITIONS)
    return None


def away(request: httpx.Request) -> httpx.Response | None:
    raise httpx.ConnectError("[Errno 111] Connection refused")


def check(server: FakeSlurm, *, begun: bool = False, tokens: Any = None, **settings: Any) -> None:
    tokens = tokens or TokenSource(lambda: "head.e30.secret", "a test")
    client = SlurmClient("http://slurm:1", "me", tokens, transport=httpx.MockTransport(server))
    check_site(client, SlurmConfig(**settings), begun=begun)


# --- before anything is begun ---------------------------------------------------------------------


def test_a_right_site_is_asked_for_its_partitions(server: FakeSlurm) -> None:
    check(server, partition="main, low", low_priority_partition="low", patience_s=2.0)


def test_each_partition_that_does_not_exist_is_named(server: FakeSlurm) -> None:
    with pytest.raises(SiteError) as caught:
        check(server, partition="main,mian", cpu_partition="cpu")
    there = "does not exist: the server has main, low"
    assert str(caught.value).splitlines() == [
        f"launcher.slurm.partition: partition 'mian' {there}",
        f"launcher.slurm.cpu_partition: partition 'cpu' {there}",
    ]


def test_a_server_that_is_away_is_waited_for_only_by_a_run_that_has_begun(
    server: FakeSlurm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slurm_contact, "FIRST_CONTACT_S", 0.2)
    server.hook = away
    with pytest.raises(SiteError, match=r"for 0\.2 s .*reached: Connection refused\); no job was"):
        check(server)
    assert not caplog.records, "one sentence is enough"
    check(server, begun=True)


@pytest.mark.parametrize("begun", [False, True])
def test_a_wrong_token_and_a_foreign_server_are_refused_at_once(
    server: FakeSlurm, tmp_path: Path, begun: bool
) -> None:
    with pytest.raises(SiteError, match="is a folder: name a file"):
        check(server, begun=begun, tokens=token_source(tmp_path, ()))
    server.hook = lambda request: (
        httpx.Response(511, json={"errors": [{"error_number": 1007}]})
        if VERSION in request.url.path and "ping" not in request.url.path
        else None
    )
    with pytest.raises(SiteError, match="does not accept the token of a test for user 'me'"):
        check(server, begun=begun)
    server.hook = lambda request: httpx.Response(404, text="no")
    with pytest.raises(SiteError, match="speaks none of the versions"):
        check(server, begun=begun)


def test_a_user_that_nobody_is_is_refused_before_a_job_ends_as_if_its_node_had_failed(
    server: FakeSlurm,
) -> None:
    roots = TokenSource(lambda: "head.eyJzdW4iOiAicm9vdCJ9.secret", "a test")
    with pytest.raises(
        SiteError, match="'me' is no user of this machine, and the token is that of 'root'"
    ):
        check(server, tokens=roots, partition="main")


@pytest.mark.parametrize("begun", [False, True])
def test_tls_where_there_is_none_is_said_at_once(server: FakeSlurm, begun: bool) -> None:
    def no_tls(request: httpx.Request) -> httpx.Response | None:
        raise httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")

    server.hook = no_tls
    with pytest.raises(SiteError, match="speaks http without TLS: write http://"):
        check(server, begun=begun)


# --- at submission --------------------------------------------------------------------------------


def refuses(error: dict[str, Any]) -> Any:
    return lambda request: (
        httpx.Response(500, json={"errors": [error]}) if request.method == "POST" else None
    )


def test_a_refused_request_leaves_no_folder(server: FakeSlurm, tmp_path: Path) -> None:
    server.hook = refuses(UNSATISFIABLE)
    with pytest.raises(JobRefusedError, match="no node can ever satisfy it"):
        make(server).submit(spec(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_the_requests_fault_is_no_wrong_input(
    server: FakeSlurm, tmp_path: Path
) -> None:
    server.hook = refuses({"error_number": 2019, "error": "I/O error writing script"})
    with pytest.raises(LaunchError, match="I/O error") as caught:
        make(server).submit(spec(tmp_path))
    assert not isinstance(caught.value, JobRefusedError)


def test_a_request_that_may_still_arrive_keeps_its_folder(
    server: FakeSlurm, tmp_path: Path
) -> None:
    answers = iter([httpx.ReadTimeout("lost"), None])

    def hook(request: httpx.Request) -> httpx.Response | None:
        if request.method != "POST":
            return None
        if (first := next(answers)) is not None:
            raise first
        return httpx.Response(500, json={"errors": [UNSATISFIABLE]})

    server.hook = hook
    with pytest.raises(JobRefusedError):
        make(server).submit(spec(tmp_path))
    assert SlurmFiles(spec(tmp_path).job_dir).submission.exists()


def test_a_job_that_can_never_start_is_ended_and_leaves_no_folder(
    server: FakeSlurm, tmp_path: Path
) -> None:
    def hook(request: httpx.Request) -> httpx.Response | None:
        for job in server.jobs:
            job["state_reason"] = "PartitionTimeLimit"
        return None

    server.hook = hook
    with pytest.raises(JobRefusedError, match="PartitionTimeLimit"):
        make(server).submit(spec(tmp_path))
    assert server.states() == ["CANCELLED"]
    assert list(tmp_path.iterdir()) == []
