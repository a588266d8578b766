"""What can be the name of a host, and what cannot: devices, ranks, files and versions look much alike."""

from __future__ import annotations

import re
from functools import lru_cache

from tasks.diagnose.patterns import compile_pattern

NAME = r"[A-Za-z0-9][\w.-]*"
"""What a host's name is made of, where something else tells that it is one."""
NAMES = re.compile(NAME)
MAX_HOSTS = 20_000
"""That are told apart, whatever a log feigns."""
DIGITS = re.compile(r"\d+")
_TOKEN = re.compile(r"(?:^|[^\w./-])([A-Za-z][\w-]{1,62}(?:\.[\w-]{1,62}){0,8})", re.ASCII)
"""Nothing stands behind what repeats, so it never goes back: `re` is as linear as RE2 here, and faster."""
_ADDRESS = compile_pattern(
    r"(?:^|[^\d.])(?P<address>\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?:[^\d.]|$)"
)
_STEM = re.compile(r"[A-Za-z]*")
_PARTS_OF_A_HOST = """
cuda cpu numa device dev card mlx ib eth ens enp eno enx bond hsn lo docker veth br mem nvme sd hfi bnxt rdma nic
port pci pcie socket core cores thread threads sm gen roce irdma efa ocp rail switch psu fan dimm
"""
_RANKS_AND_WORK = """
rank ranks local global tp pp dp cp ep vpp etp fsdp hsdp ddp mesh stage layer layers expert block chunk shard
part split bucket batch step iter iteration epoch seed seq microbatch mb run trial attempt restart exp job task tasks
default loader pid tid id uid uuid comm world size process proc
"""
_VERSIONS_AND_UNITS = """
version python torch nccl cudnn cu rocm bf fp float int uint adam utf sha md amd arm rev release build rtx tesla
gib mib kib gb mb kb ms us ns tflops
"""
_UNITS = frozenset(_VERSIONS_AND_UNITS.split())
"""Names of several parts may begin so: gb-r2-t01."""
_NO_STEMS = frozenset(f"{_PARTS_OF_A_HOST} {_RANKS_AND_WORK} {_VERSIONS_AND_UNITS}".split())
_SHORT = re.compile(r"(?i)[abehlprstvx]\d{1,3}")
"""A GPU's model, a version, a rank."""
_GPU_MODEL = re.compile(r"(?i)[a-z]{1,2}\d{2,3}[a-z]?-(?:sxm|pcie|nvl|hbm|\d+g(?:i?b)?$)")
_INTERFACE = re.compile(
    r"(?i)(?:ib|ibs|ibp|eth|ens|enp|eno|enx|bond|hsn|docker|rdma|roce|efa|mlx5_|lo|cuda|rank|device)\d\w*"
)
_GPU = re.compile(r"(?i)gpu\d")
_DEVICE = re.compile(r"(?i)gpu-?(?:\d|[0-9a-f]{8}(?:-[0-9a-f-]+)?)")
_IDENTIFIER = re.compile(r"[0-9a-f]{12,}")
_DOMAIN = re.compile(r"(?:\.[a-z][\w-]*){2,8}")
_OF_A_MODEL = (".weight", ".bias", ".proj", ".grad")
_LAST_LETTER = re.compile(r"(?<=[-#])[a-z]$")
_LAST_HEX = re.compile(r"(?<=-)(?=[0-9a-f]{0,11}\d)[0-9a-f]{2,12}$")
_FILE = re.compile(
    r"\.(?:py|so|json|ya?ml|bin|log|txt|pt|pth|cc|cpp|cu|h|hpp|out|err|tar|gz|parquet|jsonl|safetensors|npy|idx|arrow|sh|cfg|toml)(?:\.\d+)*$"
)


_LABEL = re.compile(
    r"(?:\[[a-z][a-z_-]{0,15}\] (?=\d))?(?:[\d\s:.,TZ/+-]{8,40})?"
    r"(?:\((?P<actor>[A-Za-z][\w.-]{1,80}), rank=|[\[(]?(?P<host>[A-Za-z][\w.-]{1,80}\w)[\])]?(?::? |: ?|:\d+\s|\| ?))"
)
_FIELD = re.compile(
    r"\"(?:host(?:_?name)?|node(?:_?name)?|pod(?:_?name)?|replica|instance)\" ?: ?\"(?P<host>[\w.-]{1,80})\""
)


def label_of(text: str) -> str | None:
    """The host that a launcher or logger has put before a line, or into its record."""
    if text.startswith("{"):
        record = _FIELD.search(text)
        return record["host"] if record is not None and may_name_host(record["host"]) else None
    match = _LABEL.match(text)
    if match is None:
        return None
    name = match["actor"] or match["host"]
    return name if match["actor"] or may_name_host(name) else None


def short_name(name: str) -> str:
    """The name without its domain."""
    return name.partition(".")[0]


def address_in(text: str) -> str | None:
    """The first IPv4 address in the text."""
    match = _ADDRESS.search(text)
    return None if match is None else match["address"]


def host_tokens(text: str) -> list[str]:
    """All words that may name a host, in order."""
    return [token for token in _TOKEN.findall(text) if may_name_host(token)]


def only_host_in(text: str) -> str | None:
    """The host that a line names, when it names one alone."""
    hosts = set(host_tokens(text))
    return hosts.pop() if len(hosts) == 1 else None


def only_name_in(text: str) -> str | None:
    """The same, of names in several parts alone, as gpu-07 and a.b.c: others are as often of something else."""
    names = {word for word in host_tokens(text) if "-" in word or word.count(".") > 1}
    return names.pop() if len(names) == 1 else None


@lru_cache(maxsize=4096)
def may_name_host(name: str) -> bool:
    """Whether a word may be a host's name: with letters first and a digit, and of no other known kind."""
    short = name.partition(".")[0]
    if not DIGITS.search(short) or "_" in short:
        return False
    if _FILE.search(name) or _GPU_MODEL.match(short):
        return False
    if _DEVICE.fullmatch(short) or is_an_identifier(short):
        return False
    if _SHORT.fullmatch(short) and not _has_domain(name):
        return False
    stem = _STEM.match(short)
    if stem is None or (stem[0].lower() in _UNITS and short.count("-") > 1):
        return stem is not None
    return stem[0].lower() not in _NO_STEMS


def is_an_identifier(name: str) -> bool:
    """Whether a word is but a long hexadecimal number, as programs give to what they start."""
    return _IDENTIFIER.fullmatch(name) is not None


def _has_domain(name: str) -> bool:
    """Whether letters with dots stand behind the first one, as in s14.ai.lab, and no part of a model."""
    rest = name[len(short_name(name)) :]
    return _DOMAIN.fullmatch(rest) is not None and not name.endswith(_OF_A_MODEL)


def is_loopback(name: str) -> bool:
    """Whether the name is what every host calls itself."""
    return short_name(name).lower() == "localhost" or name.startswith("127.")


def is_a_device(name: str) -> bool:
    """Whether a word is surely a GPU, its model, a network interface or a rank, and no host."""
    short = name.partition(".")[0]
    return bool(_GPU.fullmatch(short) or _GPU_MODEL.match(short) or _INTERFACE.fullmatch(short))


def family_of(name: str) -> str:
    """The name without its numbers, or the letter at its end: hosts of one cluster share it."""
    short = _LAST_HEX.sub("#", name.partition(".")[0])
    return _LAST_LETTER.sub("#", DIGITS.sub("#", short))
