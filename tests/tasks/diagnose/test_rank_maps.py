"""Who runs where, as start-up lines, lists and tables of pods tell it: rank 20 of 32, or pod t-2 of four, is on gn03."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.diagnose.one_log import verdict_on

HOSTS = ["gn01", "gn02", "gn03", "gn04"]
STEPS = [f"[2025-01-01 10:{at:02}:00] iteration {at} loss: 2.{at}" for at in range(1, 40)]
ECC = "[rank20]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
PEER = "[rank3]: ncclRemoteError: Connection closed by remote peer {}<30011>"


def ranks(wording: str) -> list[str]:
    return [wording.format(r=r, host=HOSTS[r // 8], local=r % 8) for r in range(32)]


def pods(wording: str) -> list[str]:
    return [wording.format(at=at, host=host) for at, host in enumerate(HOSTS)]


@pytest.mark.parametrize(
    "told",
    [
        ["rank ranges: gn01: 0-7, gn02: 8-15, gn03: 16-23, gn04: 24-31"],
        ["placement gn01=[0-7] gn02=[8-15] gn03=[16-23] gn04=[24-31]"],
        [f'{{"host":"{h}","ranks":[{8 * at},{8 * at + 7}]}}' for at, h in enumerate(HOSTS)],
        [
            f'{{"node": "{h}", "ranks": [{", ".join(map(str, range(8 * at, 8 * at + 8)))}]}}'
            for at, h in enumerate(HOSTS)
        ],
        [
            f"[accelerate] host {h} machine_rank {at} -> processes {8 * at}..{8 * at + 7}"
            for at, h in enumerate(HOSTS)
        ],
        [
            f"{h} ranks=[{', '.join(map(str, range(8 * at, 8 * at + 8)))}]"
            for at, h in enumerate(HOSTS)
        ],
        ['{"rank_to_host": {' + ", ".join(f'"{r}": "{HOSTS[r // 8]}"' for r in range(32)) + "}}"],
        ["rank map: {" + ", ".join(f"{r}: '{HOSTS[r // 8]}'" for r in range(32)) + "}"],
        ranks("map r{r:02} {host}/{local}"),
        ranks("rankmap {r:2} -> {host}.ai.lab slot {local}"),
        ranks("[map] global {r} local {local} @ {host} bus 0f:00.0"),
        ranks("proc {r}/32 on {host}"),
        ["# nodes: 0=gn01 1=gn02 2=gn03 3=gn04", *STEPS, "gn03: rank 20: GPU 4 temperature 71 C"],
    ],
)
def test_ranks_of_hosts_are_read(told: list[str], tmp_path: Path) -> None:
    assert verdict_on(tmp_path, [*told, *STEPS, ECC]).faulty_node in ("gn03", "gn03.ai.lab")


def test_a_short_name_with_a_domain_is_a_hosts(tmp_path: Path) -> None:
    told = [f"rankmap {r} -> s{14 + r // 8}.ai.lab slot {r % 8}" for r in range(32)]
    assert verdict_on(tmp_path, [*told, *STEPS, ECC]).faulty_node == "s16.ai.lab"


def test_hosts_without_a_number_are_read_where_they_are_called_so(tmp_path: Path) -> None:
    told = [
        f"I0309 01:00:00.113 distributed.py:{at}] process {at}/3 host={name} local_devices=8"
        for at, name in enumerate(["alder", "birch", "cedar"])
    ]
    lost = "[rank0]: ncclRemoteError: A call failed possibly due to a remote process exiting."
    gone = "watchdog: ping birch: 100% packet loss; PSU2 input lost / PSU1 over current"
    verdict = verdict_on(tmp_path, [*told, *STEPS, lost, gone])
    assert (verdict.failure_class, verdict.faulty_node) == ("NodeFailure", "birch")


@pytest.mark.parametrize(
    "told",
    [
        pods("pod=t-{at} process_index={at} node_name={host}"),
        pods("jobset.replica=0 pod=t-{at} node={host} ip=10.244.2.1{at}"),
        pods("events: Scheduled pod/t-{at} -> node/{host} limits memory=900Gi"),
        pods("[pod/t-{at}] node={host} memory.limit=1843Gi gpus=8"),
        pods('{{"msg":"up","node":"{host}","pod":"t-{at}"}}'),
        [
            "NAME   READY   STATUS    RESTARTS      AGE     IP             NODE    NOMINATED NODE",
            *pods(
                "t-{at}    1/1     Running   1 (3h ago)    6m10s   10.112.3.7{at}    {host}    <none>"
            ),
        ],
    ],
)
@pytest.mark.parametrize(
    "ending",
    [
        ["events: t-2 container pytorch terminated: reason=OOMKilled exitCode=137"],
        ["4m2s   Warning   NodeNotReady   pod/t-2   Node is not ready"],
    ],
)
def test_a_pods_node_is_named(told: list[str], ending: list[str], tmp_path: Path) -> None:
    assert verdict_on(tmp_path, [*told, *STEPS, *ending]).faulty_node == "gn03"


def test_the_node_of_a_pod_is_known_by_the_number_before_its_lines(tmp_path: Path) -> None:
    told = pods("[{at}] pod t-{at} scheduled on {host} (192.168.30.10{at})")
    ecc = "[2] kernel: amdgpu 0000:c6:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block"
    assert verdict_on(tmp_path, [*told, *STEPS, ecc]).faulty_node == "gn03"


def test_numbers_before_lines_are_ranks_where_several_share_a_host(tmp_path: Path) -> None:
    told = ranks("({r:2}) [INFO] init_device local_rank={local} host={host}")
    busy = "(20) RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    ended = "prterun noticed that process rank 0 on node gn01 exited on signal 6 (Aborted)."
    verdict = verdict_on(tmp_path, [*told, "(20) Traceback (most recent call last):", busy, ended])
    assert (verdict.faulty_rank, verdict.faulty_node) == (20, "gn03")


def test_a_file_of_hosts_tells_their_addresses(tmp_path: Path) -> None:
    names = ["fern", "gorse", "hazel", "iris"]
    told = [f"  172.20.3.4{at}  {n}.cl.internal {n}   # slots=8" for at, n in enumerate(names)]
    verdict = verdict_on(tmp_path, [*told, *STEPS, PEER.format("172.20.3.42")])
    assert verdict.faulty_node == "hazel.cl.internal"


def test_an_identifier_is_no_hosts_name(tmp_path: Path) -> None:
    told = [
        f"node {at}: NodeID=b3399ddcc6f8efb6fbfe8de4ab4{at} ip=10.7.34.13{at}" for at in range(4)
    ]
    dead = (
        "(raylet) The node with node id: 5bc88bae137e and address: 10.7.34.132 has been marked dead"
    )
    assert verdict_on(tmp_path, [*told, *STEPS, dead]).faulty_node == "10.7.34.132"


def test_the_peer_that_all_cards_fail_to_reach_is_at_fault(tmp_path: Path) -> None:
    told = [f"   {8 * at}   {host}   10.9.4.1{at}" for at, host in enumerate(HOSTS)]
    warned = [
        f"{host}:92{at}:99 [2] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out, "
        f"on dev mlx5_2:1, local GID ::ffff:10.9.4.1{at}, remote GID ::ffff:10.9.4.12"
        for at, host in enumerate(HOSTS)
        if host != "gn03"
    ]
    verdict = verdict_on(tmp_path, [*told, *warned])
    assert (verdict.faulty_node, verdict.action) == ("gn03", "restart_exclude_node")


def test_a_worker_that_crashes_is_no_nodes_fault(tmp_path: Path) -> None:
    killed = "[rank6]: RuntimeError: DataLoader worker (pid 99120) is killed by signal: Aborted."
    aborted = "srun: error: gn01: tasks 0-7: Aborted"
    assert verdict_on(tmp_path, [*STEPS, killed, aborted]).faulty_node is None


def test_the_writer_that_cannot_connect_to_its_own_bridge_is_not_lost(tmp_path: Path) -> None:
    told = [f"[{host}] rank {8 * at}: ready" for at, host in enumerate(HOSTS)]
    failed = (
        "[gn02] [rank9]: RuntimeError: Gloo connectFullMesh failed with [tcp/pair.cc:144] no error"
    )
    refused = "[gn02] [gloo] connect to [172.17.0.1]:41233 : SO_ERROR: Connection refused"
    verdict = verdict_on(tmp_path, [*told, failed, refused])
    assert (verdict.failure_class, verdict.faulty_node, verdict.action) == (
        *("NetworkError", None),
        "fix_by_user",
    )


def test_a_gpu_that_does_not_come_back_excludes_its_node(tmp_path: Path) -> None:
    nodes = "SLURM_JOB_NODELIST=gn[01-04]"
    hung = "[gn03] HW Exception by GPU node-4 (Agent handle: 0x1ebc04e0) reason :GPU Hang"
    reset = "[gn03] kernel: amdgpu 0002:01:00.0: amdgpu: GPU reset failed, -110"
    verdict = verdict_on(tmp_path, [nodes, *STEPS, hung, reset])
    assert (verdict.faulty_node, verdict.action) == ("gn03", "restart_exclude_node")
    assert verdict_on(tmp_path, [nodes, *STEPS, hung]).action == "restart_same_nodes"


@pytest.mark.parametrize("key", ["line", "log", "stderr"])
def test_what_a_collector_puts_into_records_is_read_as_printed(key: str, tmp_path: Path) -> None:
    told = [f'{{"lvl":"info","rank":{r},"host":"{HOSTS[r // 8]}"}}' for r in range(32)]
    error = f'{{"lvl":"error","rank":20,"{key}":"RuntimeError: CUDA error: uncorrectable ECC error encountered"}}'
    verdict = verdict_on(tmp_path, [*told, *STEPS, error])
    assert (verdict.failure_class, verdict.faulty_node) == ("ECCError", "gn03")


def test_kubernetes_says_that_no_memory_limit_was_met(tmp_path: Path) -> None:
    error = "{rank 10} AttributeError: 'Float8Tensor' object has no attribute '_scale_inv'"
    said = "k8s: pod t-1 exit code 1 reason Error; OOMKilled: false"
    verdict = verdict_on(
        tmp_path, [*STEPS, "{rank 10} Traceback (most recent call last):", error, said]
    )
    assert (verdict.failure_class, verdict.faulty_rank) == ("AttributeError", 10)


def test_ranks_that_are_far_apart_are_no_range(tmp_path: Path) -> None:
    told = [f"{h} ranks=[{at}, {at + 4}, {at + 16}, {at + 24}]" for at, h in enumerate(HOSTS)]
    assert verdict_on(tmp_path, [*told, *STEPS, ECC]).faulty_node is None


@pytest.mark.parametrize(
    "row", ["  {n} dgx-b-030{n} {low} {high}", "dgx-b-030{n} | {low} | {high}"]
)
def test_columns_of_first_and_last_ranks_tell_hosts(tmp_path: Path, row: str) -> None:
    table = [row.format(n=n, low=8 * n, high=8 * n + 7) for n in range(5)]
    failed = [
        "[rank37]: Traceback (most recent call last):",
        '[rank37]:   File "train.py", line 301, in step',
        "[rank37]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
    ]
    verdict = verdict_on(tmp_path, ["host table", *table, *failed])
    assert verdict.faulty_node == "dgx-b-0304"
    gap = verdict_on(tmp_path, ["host table", *table[:2], *table[3:], *failed])
    assert gap.faulty_node != "dgx-b-0304"
