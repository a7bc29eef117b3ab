"""manifest.json: what a run was made from, with and on. Names no host and no path outside."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import zlib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import psutil

from utils.dataset import GraphFile
from utils.npz import open_npz
from utils.sources import RAW
from utils.tars import open_bytes


def data_hashes(files: Iterable[GraphFile]) -> dict[str, dict]:
    """Collection -> {"files": count, "sha256": hash} of the contents of its files and their names.
    """
    lines: dict[str, list[str]] = {}
    for file in files:
        lines.setdefault(file.collection, []).append(f"{file.split}/{file.name} {_contents(file)}")
    return {
        collection: {
            "files": len(texts),
            "sha256": hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest(),
        }
        for collection, texts in lines.items()
    }


def content_hash(file: GraphFile) -> str:
    """A hash of the contents of one file, whatever its name and its time."""
    return hashlib.sha256(repr(_contents(file)).encode()).hexdigest()


def _contents(file: GraphFile) -> list[tuple]:
    """Names, CRC-32 and sizes of the arrays, which the zip directory of an npz keeps: as good as
    the contents for telling data apart, and read in no time. A raw file is one array."""
    if file.path.suffix == RAW:
        with open_bytes(file.path) as stream:
            data = stream.read()
        return [(file.kernel, zlib.crc32(data), len(data))]
    with open_npz(file.path) as archive:
        return sorted((i.filename, i.CRC, i.file_size) for i in archive.infolist())


def package_versions(root: Path) -> dict[str, str]:
    """Versions of Python and of the installed packages that the requirements files name."""
    versions = {"python": platform.python_version()}
    for path in sorted(root.glob("requirements*.txt")):
        for name in re.findall(r"^[A-Za-z][\w.-]*", path.read_text(), re.MULTILINE):
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue  # an extra that is not installed
    return versions


def git_state(root: Path) -> dict | None:
    """{"commit": hash, "dirty": bool}, or None where the code is not a git checkout."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    if not (root / ".git").exists():
        return None
    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict:
    """What a time depends on; nothing that names the machine."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cpus": cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
    }


def cpu_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.processor()


def read_manifest(out: Path) -> dict:
    """The manifest of an earlier run into this folder, or {}."""
    try:
        return json.loads((out / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}


def changed_collections(earlier: dict, hashes: dict[str, dict]) -> list[str]:
    """Collections whose files are not those that the earlier manifest tells of."""
    before = earlier.get("data", {}).get("collections", {})
    return [c for c in hashes if c in before and before[c]["sha256"] != hashes[c]["sha256"]]
