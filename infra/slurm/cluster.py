"""A local cluster: brought up, broken on purpose, brought down.

Every daemon is Debian's own and real; only the machines are made up. What is not installed is said in
:func:`missing_packages`; `make slurm-packages` installs it.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from infra.slurm import conf
from infra.slurm.accounting import Accounting
from infra.slurm.daemons import ClusterError, Daemons, end, steps_of
from infra.slurm.settings import ClusterSettings, check, load, save

READY_TIMEOUT_S = 60.0
_COMMAND_TIMEOUT_S = 30.0
_REST_USERS = ("slurm", "nobody")
"""slurmrestd refuses to run as root."""
_PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmrestd": "slurmrestd",
    "scontrol": "slurm-client",
}
_ACCOUNTING_PROGRAMS = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server"}
_PLUGINS = {"auth_jwt.so": "slurm-wlm-jwt-plugin"}
_ACCOUNTING_PLUGINS = {"accounting_storage_mysql.so": "slurm-wlm-mysql-plugin"}
_PATH = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"


def missing_packages(*, accounting: bool = False) -> list[str]:
    """Debian packages that a cluster needs and that are not here."""
    programs = _PROGRAMS | (_ACCOUNTING_PROGRAMS if accounting else {})
    plugins = _PLUGINS | (_ACCOUNTING_PLUGINS if accounting else {})
    missing = [p for name, p in programs.items() if shutil.which(name, path=_PATH) is None]
    return missing + [p for name, p in plugins.items() if not _has_plugin(name)]


def _has_plugin(name: str) -> bool:
    return any(Path("/usr/lib").glob(f"*/slurm*/{name}"))


class LocalCluster:
    """One cluster, in one folder."""

    def __init__(self, settings: ClusterSettings, *, leash: bool = False) -> None:
        self.settings = settings
        self._daemons = Daemons(settings.folder, leash=leash)
        self._accounting = Accounting(settings, self._daemons, self.environment)

    @classmethod
    def in_folder(cls, folder: Path) -> LocalCluster:
        """The cluster that was brought up there."""
        settings = load(folder)
        if settings is None:
            raise ClusterError(f"there is no cluster in {folder}: bring one up first")
        return cls(settings)

    # --- up and down ------------------------------------------------------------------------------

    def up(self) -> None:
        """Start everything that does not run; returns when jobs can be submitted."""
        if not self._daemons.names():
            check(self.settings)
            self._write_files()
        self._daemons.start("munged", self._munge_command(), environment=self.environment)
        self._daemons.wait_for("munged", self._munge_answers, timeout_s=READY_TIMEOUT_S)
        if self.settings.accounting:
            self._accounting.up()
        self.start_controller()
        for node in self.settings.all_node_names:
            self.start_node(node)
        self.start_rest()
        self._wait("all nodes to be ready", self._nodes_are_ready)

    def down(self) -> None:
        """End everything, jobs included; the folder stays for people to read."""
        self.stop_rest()
        self.stop_controller()
        for node in self.settings.all_node_names:
            self._kill_node(node)
        self._accounting.down()
        self._daemons.stop("munged")
        for node in self.settings.all_node_names:
            for folder in conf.cgroup_folders(node):
                with suppress(OSError):
                    folder.rmdir()

    def status(self) -> dict[str, bool]:
        """Each daemon that was started, and whether it lives."""
        return {name: self._daemons.is_up(name) for name in self._daemons.names()}

    # --- single daemons, for faults ---------------------------------------------------------------

    def start_controller(self) -> None:
        """Start slurmctld; returns when it answers."""
        command = ["slurmctld", "-D", "-f", str(self.settings.conf)]
        self._daemons.start("slurmctld", command, environment=self.environment)
        self._daemons.wait_for("slurmctld", self._controller_answers, timeout_s=READY_TIMEOUT_S)

    def stop_controller(self, *, kill: bool = False) -> None:
        """End slurmctld; jobs go on."""
        self._daemons.stop("slurmctld", kill=kill)

    def start_rest(self) -> None:
        """Start slurmrestd; returns when it answers."""
        environment = self.environment | {"SLURM_JWT": "daemon"}
        user = None
        if os.getuid() == 0:
            user = _rest_user()
        else:
            environment["SLURMRESTD_SECURITY"] = "disable_user_check"
        plugins = self._rest_plugins()
        command = [
            "slurmrestd",
            "-f",
            str(self.settings.conf),
            "-s",
            plugins,
            "-a",
            "rest_auth/jwt",
        ]
        command.append(f"127.0.0.1:{self.settings.rest_port}")
        self._daemons.start("slurmrestd", command, environment=environment, user=user)
        self._daemons.wait_for("slurmrestd", self._rest_answers, timeout_s=READY_TIMEOUT_S)

    def stop_rest(self) -> None:
        """SIGKILL slurmrestd; jobs and slurmctld go on."""
        self._daemons.stop("slurmrestd", kill=True)

    def start_node(self, node: str) -> None:
        """Start the node's slurmd."""
        self.settings.in_folder("spool", node).mkdir(parents=True, exist_ok=True)
        command = ["slurmd", "-D", "-f", str(self.settings.conf), "-N", node]
        self._daemons.start(node, command, environment=self.environment)

    def kill_node(self, node: str) -> None:
        """SIGKILL all that runs on the node, as if its machine had lost power."""
        if node not in self.settings.all_node_names:
            raise ClusterError(
                f"there is no node {node!r}: {', '.join(self.settings.all_node_names)}"
            )
        self._kill_node(node)

    def _kill_node(self, node: str) -> None:
        log = self.settings.in_folder("log", f"{node}.log")
        self._daemons.stop(node, kill=True)
        while steps := steps_of(log):
            for process in steps:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            end(steps, timeout_s=READY_TIMEOUT_S)

    # --- asking -----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Of slurmrestd."""
        return f"http://127.0.0.1:{self.settings.rest_port}"

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need to find this cluster."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        return inherited | {"PATH": _PATH, "SLURM_CONF": str(self.settings.conf)}

    def command(self, *arguments: str) -> str:
        """Output of a Slurm command, like ("scontrol", "ping")."""
        done = subprocess.run(
            arguments,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            words = (done.stderr or done.stdout).strip()
            raise ClusterError(f"{' '.join(arguments)} ended with {done.returncode}: {words}")
        return done.stdout

    def token(self, user: str, lifespan_s: int = 86400) -> str:
        """A token for slurmrestd."""
        text = self.command("scontrol", "token", f"username={user}", f"lifespan={lifespan_s}")
        return text.strip().removeprefix("SLURM_JWT=")

    def _nodes_are_ready(self) -> bool:
        with suppress(ClusterError, subprocess.TimeoutExpired):
            lines = self.command("sinfo", "-h", "-N", "-o", "%N %t").splitlines()
            ready = {
                line.split()[0] for line in lines if line.split()[1] in ("idle", "mix", "alloc")
            }
            return ready == set(self.settings.all_node_names)
        return False

    def _controller_answers(self) -> bool:
        with suppress(ClusterError, subprocess.TimeoutExpired):
            return " UP" in self.command("scontrol", "ping")
        return False

    def _rest_answers(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.settings.rest_port), timeout=1.0).close()
            return True
        return False

    def _munge_answers(self) -> bool:
        with suppress(ClusterError):
            self.command("munge", "-S", str(self.settings.in_folder("run", "munge.sock")), "-n")
            return True
        return False

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                log = self.settings.in_folder("log")
                raise ClusterError(f"waited {READY_TIMEOUT_S:g} s for {what}; see {log}")
            time.sleep(0.1)

    # --- files ------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        settings = self.settings
        for name in ("etc", "run", "log", "controller", "spool", "temporary", "devices"):
            settings.in_folder(name).mkdir(parents=True, exist_ok=True, mode=0o755)
        for name, size in (("munge.key", 128), ("jwt.key", 32)):
            _write_secret(settings.in_folder("etc", name), size)
        devices = _make_devices(settings)
        settings.conf.write_text(conf.slurm_conf(settings, gpus=bool(devices)))
        etc = settings.conf.parent
        (etc / "gres.conf").write_text(conf.gres_conf(settings, devices))
        if conf.cgroups_work():
            (etc / "cgroup.conf").write_text(conf.cgroup_conf())
        save(settings)

    def _munge_command(self) -> list[str]:
        run, log = self.settings.in_folder("run"), self.settings.in_folder("log")
        return [
            "munged",
            "--foreground",
            f"--key-file={self.settings.in_folder('etc', 'munge.key')}",
            f"--socket={run / 'munge.sock'}",
            f"--pid-file={run / 'munged.pid'}",
            f"--seed-file={run / 'munge.seed'}",
            f"--log-file={log / 'munged.log'}",
        ]

    def _rest_plugins(self) -> str:
        """22.05 wants its plugins by version; newer ones by what they talk to."""
        old = _has_plugin("openapi_v0_0_38.so") and not _has_plugin("openapi_slurmctld.so")
        plugins = ["v0.0.38", "dbv0.0.38"] if old else ["slurmctld", "slurmdbd"]
        return ",".join(plugins if self.settings.accounting else plugins[:1])


def _rest_user() -> str:
    for name in _REST_USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise ClusterError("slurmrestd needs a user other than root: make one called slurm")


def _write_secret(path: Path, size_bytes: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(secrets.token_bytes(size_bytes))


def _make_devices(settings: ClusterSettings) -> list[Path]:
    """A character device for each GPU, as Slurm wants one: doubles of /dev/null. Only root can."""
    devices = [settings.in_folder("devices", f"gpu{n}") for n in range(settings.gpus_per_node)]
    null = Path("/dev/null").stat().st_rdev
    try:
        for device in devices:
            if not device.exists():
                os.mknod(device, stat.S_IFCHR | 0o666, null)
    except OSError:
        return []
    return devices
