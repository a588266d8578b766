"""slurmdbd of a local cluster, on a MariaDB of its own: accounts, qualities of service, old jobs."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Mapping

from infra.slurm import conf
from infra.slurm.daemons import ClusterError, Daemons
from infra.slurm.settings import ClusterSettings

ACCOUNT = "research"
QOS = "urgent"
_TIMEOUT_S = 120.0


class Accounting:
    """The two daemons, and what is in the database."""

    def __init__(
        self, settings: ClusterSettings, daemons: Daemons, environment: Mapping[str, str]
    ) -> None:
        self._settings, self._daemons, self._environment = settings, daemons, environment
        self._socket = settings.in_folder("run", "database.sock")

    def up(self) -> None:
        """Start what does not run; the first time, make the database and its entries."""
        self._start_database()
        self._start_slurmdbd()
        if ACCOUNT not in self._run("sacctmgr", "-n", "-P", "list", "account", "format=account"):
            self._add_entries()

    def down(self) -> None:
        """End both."""
        self._daemons.stop("slurmdbd")
        self._daemons.stop("mariadbd")

    def _start_database(self) -> None:
        settings, user = self._settings, getpass.getuser()
        options = settings.in_folder("etc", "mariadb.cnf")
        options.write_text(conf.mariadb_conf(settings))
        if not settings.in_folder("database", "mysql").is_dir():
            self._run(
                "mariadb-install-db",
                f"--defaults-file={options}",
                f"--user={user}",
                "--auth-root-authentication-method=socket",
                f"--auth-root-socket-user={user}",
                "--skip-test-db",
            )
        command = ["mariadbd", f"--defaults-file={options}"]
        self._daemons.start("mariadbd", command, environment=self._environment)
        ask = (
            "mariadb-admin",
            "--no-defaults",
            f"--socket={self._socket}",
            f"--user={user}",
            "ping",
        )
        self._daemons.wait_for("mariadbd", lambda: self._works(*ask), timeout_s=_TIMEOUT_S)

    def _start_slurmdbd(self) -> None:
        path = self._settings.conf.parent / "slurmdbd.conf"
        path.touch(mode=0o600)
        path.write_text(conf.slurmdbd_conf(self._settings))
        environment = {**self._environment, "MYSQL_UNIX_PORT": str(self._socket)}
        self._daemons.start("slurmdbd", ["slurmdbd", "-D"], environment=environment)
        ask = ("sacctmgr", "-n", "list", "cluster")
        self._daemons.wait_for("slurmdbd", lambda: self._works(*ask), timeout_s=_TIMEOUT_S)

    def _add_entries(self) -> None:
        add = ("sacctmgr", "-i", "add")
        if "overland" not in self._run("sacctmgr", "-n", "-P", "list", "cluster", "format=cluster"):
            self._run(*add, "cluster", "overland")
        self._run(*add, "qos", QOS, "Priority=1000")
        self._run(*add, "account", ACCOUNT, "Description=research", "Organization=overland")
        self._run("sacctmgr", "-i", "modify", "account", ACCOUNT, "set", f"qos=normal,{QOS}")
        self._run(*add, "user", getpass.getuser(), f"account={ACCOUNT}")

    def _works(self, *command: str) -> bool:
        try:
            self._run(*command)
        except ClusterError:
            return False
        return True

    def _run(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{command[0]} has not ended within {_TIMEOUT_S:g} s") from error
        if done.returncode:
            words = (done.stderr or done.stdout).strip()[-500:]
            raise ClusterError(f"{command[0]} ended with {done.returncode}: {words}")
        return done.stdout
