"""The configuration files of a local cluster, as text.

All daemons run on this machine, on loopback, told apart by port. Times are short, so that faults are
noticed within seconds. What the machine lacks is made up: CPUs, memory, GPUs.
"""

from __future__ import annotations

import getpass
from pathlib import Path

from infra.slurm.settings import ClusterSettings

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_CGROUP_CONTROLLERS = ("memory", "freezer", "cpuacct")

_SLURM_CONF = """\
ClusterName=overland
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}

AuthType=auth/munge
# A job that is put back into the queue waits for cred_expire.
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
CredType=cred/munge
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/etc/jwt.key
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny

StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
SlurmctldDebug=info
SlurmdDebug=info

MpiDefault=none
SwitchType=switch/none
ProctrackType={proctrack}
TaskPlugin={task}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1

SlurmctldTimeout=30
SlurmdTimeout=5
MessageTimeout={message_timeout_s}
TCPTimeout=2
InactiveLimit=0
KillWait={kill_wait_s}
ReturnToService=2
JobRequeue={requeue}
MinJobAge={kept_jobs_s}
CompleteWait=0
Waittime=0
RebootProgram=/bin/true
Prolog={folder}/etc/prolog

SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=2,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=256
PriorityType=priority/multifactor
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmdParameters=config_overrides
GresTypes=gpu
"""

_NODES = """
NodeName=DEFAULT CPUs={cpus_per_node} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus_per_node} \
ThreadsPerCore=1 RealMemory={memory_per_node_mib} TmpDisk=0 State=UNKNOWN
{nodes}
PartitionName=DEFAULT MaxTime=INFINITE DefaultTime=60 State=UP OverSubscribe=NO
PartitionName=main Nodes={main} Default=YES PriorityTier=100 PreemptMode=OFF
PartitionName=cpu Nodes={cpu} PriorityTier=100 PreemptMode=OFF
PartitionName=low Nodes={everything} PriorityTier=1 PreemptMode=CANCEL
PartitionName=short Nodes={main} PriorityTier=100 MaxTime=10 MaxNodes=1 PreemptMode=OFF
"""

_ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting_port}
# Where slurmdbd's clients find munge.
AccountingStoragePass={folder}/run/munge.sock
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
"""


def slurm_conf(settings: ClusterSettings, *, gpus: bool) -> str:
    """slurm.conf."""
    values = {
        "user": getpass.getuser(),
        "folder": settings.folder,
        "controller_port": settings.controller_port,
        "accounting_port": settings.accounting_port,
        "proctrack": "proctrack/cgroup" if cgroups_work() else "proctrack/linuxproc",
        "task": "task/cgroup" if cgroups_work() else "task/none",
        "message_timeout_s": settings.message_timeout_s,
        "kill_wait_s": settings.kill_wait_s,
        "kept_jobs_s": settings.kept_jobs_s,
        # A job should not be started again under the same id: Overland submits a new one.
        "requeue": int(settings.requeue),
        "cpus_per_node": settings.cpus_per_node,
        "memory_per_node_mib": settings.memory_per_node_mib,
        "nodes": "\n".join(_node_line(settings, n, gpus) for n in settings.all_node_names),
        "main": ",".join(settings.node_names),
        "cpu": ",".join(settings.cpu_node_names or settings.node_names),
        "everything": ",".join(settings.all_node_names),
    }
    accounting = (
        _ACCOUNTING if settings.accounting else "AccountingStorageType=accounting_storage/none\n"
    )
    return (_SLURM_CONF + accounting + _NODES).format(**values)


def _node_line(settings: ClusterSettings, node: str, gpus: bool) -> str:
    line = (
        f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={settings.node_port(node)}"
    )
    if gpus and node in settings.node_names:
        line += f" Gres=gpu:h100:{settings.gpus_per_node}"
    return line


def gres_conf(settings: ClusterSettings, devices: list[Path]) -> str:
    """gres.conf: each GPU needs a device file, on which nothing depends."""
    nodes = ",".join(settings.node_names)
    lines = [f"NodeName={nodes} Name=gpu Type=h100 File={device}" for device in devices]
    return "\n".join(["AutoDetect=off", *lines]) + "\n"


def cgroup_conf() -> str:
    """cgroup.conf: memory is limited, CPUs are not, as there are fewer than the cluster says."""
    return (
        f"CgroupMountpoint={_CGROUP_ROOT}\nCgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\n"
        "ConstrainCores=no\nConstrainDevices=no\n"
    )


def cgroups_work() -> bool:
    """Whether this machine has version 1 hierarchies that we may write (version 2 needs systemd)."""
    for controller in _CGROUP_CONTROLLERS:
        probe = _CGROUP_ROOT / controller / "overland-probe"
        try:
            probe.mkdir(exist_ok=True)
            usable = (probe / "cgroup.procs").exists()
            probe.rmdir()
        except OSError:
            return False
        if not usable:
            return False
    return True


def cgroup_folders(node: str) -> list[Path]:
    """What a node has left in the hierarchies, innermost first."""
    roots = _CGROUP_ROOT.glob(f"*/slurm_{node}")
    return [
        p for root in roots for p in [*sorted(root.rglob("*/"), reverse=True), root] if p.is_dir()
    ]


def slurmdbd_conf(settings: ClusterSettings) -> str:
    """slurmdbd.conf."""
    user, folder = getpass.getuser(), settings.folder
    return (
        f"AuthType=auth/munge\nAuthInfo=socket={folder}/run/munge.sock\n"
        f"AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={folder}/etc/jwt.key\n"
        f"CommunicationParameters=NoInAddrAny\nDbdHost=localhost\nDbdAddr=127.0.0.1\n"
        f"DbdPort={settings.accounting_port}\nSlurmUser={user}\nDebugLevel=info\n"
        f"LogFile={folder}/log/slurmdbd.log\nPidFile={folder}/run/slurmdbd.pid\n"
        f"StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser={user}\n"
        "StorageLoc=overland_accounting\n"
    )


def mariadb_conf(settings: ClusterSettings) -> str:
    """The database server's: small, and on a socket only."""
    folder, user = settings.folder, getpass.getuser()
    return (
        f"[mysqld]\nuser={user}\ndatadir={folder}/database\ntmpdir={folder}/temporary\n"
        f"socket={folder}/run/database.sock\npid-file={folder}/run/mariadbd.pid\n"
        "skip-networking\nskip-log-bin\ninnodb_buffer_pool_size=64M\ninnodb_log_file_size=16M\n"
        "innodb_lock_wait_timeout=900\ninnodb_flush_log_at_trx_commit=0\nperformance_schema=OFF\n"
    )
