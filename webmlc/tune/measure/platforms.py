"""Platforms: where a worker measures, and how similar two platforms are.

A platform is an engine on a piece of hardware. Times of different platforms are not comparable, so
every record of the database names its platform.
"""

from __future__ import annotations

import os
import platform as system
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert

from webmlc.core.errors import UserError
from webmlc.core.machine_class import adapter_name

_CPU_FEATURES = ("avx512_vnni", "avx_vnni", "avx512f", "avx2", "fma", "asimddp", "i8mm", "asimd")
"""Features of Linux' /proc/cpuinfo that change which schedules are fast."""
_SOFTWARE = re.compile("swiftshader|llvmpipe|lavapipe", re.IGNORECASE)
"""Names of adapters that run shaders on the CPU (as in `runtime_js/machine_class.js`)."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A worker's description of its engine and hardware.

    - `engine` and `version`: "wasmtime" and "40.0.0", "chromium" and "131".
    - `hardware`: the model of the CPU, or of the GPU adapter; "" where the engine hides it.
    - `family`: the common properties of similar hardware: the CPU's architecture and vector
      features, or the adapter's vendor and architecture.
    - `cache_bytes`: the size of the CPU's last cache of one core, or 0 if unknown.
    - `threads`: CPU threads that run a kernel; 1 on a GPU.
    - `is_software`: a GPU adapter that runs shaders on the CPU.
    """

    engine: str
    version: str
    hardware: str
    family: str
    cache_bytes: int = 0
    threads: int = 1
    is_software: bool = False

    @property
    def key(self) -> str:
        """The key of the platform's records: the version of an engine is not part of it."""
        return " / ".join((self.engine, self.hardware or self.family, f"{self.threads} thread(s)"))

    def similarity(self, other: Platform) -> int:
        """How well records of `other` serve this platform: 3 the same, 2 similar hardware with the
        same engine, 1 similar hardware, 0 not at all.
        """
        if self.key == other.key:
            return 3
        is_close = (
            self.family == other.family
            and self.cache_bytes == other.cache_bytes
            and (self.threads > 1) == (other.threads > 1)
        )
        return (2 if self.engine == other.engine else 1) if is_close else 0


def platform_of(data: Any) -> Platform:
    """The platform in JSON data. Raises `UserError` if it is none."""
    try:
        return convert({"hardware": "", **convert(data, dict[str, Any])}, Platform)
    except ValidationError as error:
        raise UserError(f"not the description of a platform: {error}") from error


def cpu_platform(engine: str, version: str, threads: int) -> Platform:
    """This machine's CPU as a platform of an engine."""
    name, flags = _linux_cpu()
    features = [feature for feature in _CPU_FEATURES if feature in flags]
    family = " ".join((system.machine(), *features))
    return Platform(
        engine, version, name or system.processor() or system.machine(), family, _cache(), threads
    )


def gpu_platform(engine: str, version: str, info: Mapping[str, Any]) -> Platform:
    """An adapter as a platform of an engine; `info` is the adapter's, as WebGPU names it."""
    hardware = str(info.get("device") or info.get("description") or "")
    texts = " ".join(str(info.get(key, "")) for key in ("architecture", "device", "description"))
    is_marked = info.get("adapter_type") == "CPU" or bool(info.get("isFallbackAdapter"))
    is_software = is_marked or _SOFTWARE.search(texts) is not None
    return Platform(engine, version, hardware, adapter_name(info), is_software=is_software)


def _linux_cpu() -> tuple[str, frozenset[str]]:
    """The name and the features of the first CPU, where the system is Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return "", frozenset()
    lines = (line.partition(":") for line in text.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name", ""), frozenset(flags.split())


def _cache() -> int:
    """Bytes of the second-level cache of one core, or 0."""
    name = "SC_LEVEL2_CACHE_SIZE"
    return max(0, os.sysconf(name)) if name in os.sysconf_names else 0
