"""The ways of `peers`: for each library what it is compiled with, and for each way its settings.

Every library gets the tier that it is made for: its cache in memory (tmpfs) and on this machine's
disk are ways of their own. All of them keep two checkpoints (FTI can keep one only), and nothing is
set that does not follow from that: checksums are where a library has them by default.

Not here: what is measured (peers.py), and how a program uses a library (src/peers/).
"""

import dataclasses
import os
import re

from orcbench.running import MIB, toml

# How a prefix is compiled with: what is looked for, what is defined and linked. veloc-client needs
# veloc-modules linked too; FTI's MD5 and CRC are of these libraries.
LIBRARIES = {
    "scr": ("scr.h", ["-lscr"]),
    "veloc": ("veloc.h", ["-lveloc-client", "-lveloc-modules"]),
    "fti": ("fti.h", ["-lfti", "-lcrypto", "-lz", "-lm"]),
}
NAMES = {"orcheck": "Orcheck", "scr": "SCR", "veloc": "VELOC", "fti": "FTI", "posix": "write"}


@dataclasses.dataclass(frozen=True)
class Way:
    """One row of the table."""

    title: str
    library: str
    adapter: str
    # Where checkpoints lie until they go further: "memory" (tmpfs) or "disk".
    tier: str
    # What they survive: "process", "node" or "all".
    survives: str
    # In the words of the library.
    level: str
    # Whether each rank is a node of its own.
    nodes: bool = False
    # Whether the library tells when a checkpoint is safe.
    tells: bool = True
    # More of its settings.
    more: tuple[tuple[str, str], ...] = ()


def orcheck(
    title: str, tier: str, survives: str, level: str, *more: str, lent: bool = False
) -> Way:
    return Way(
        f"Orcheck {title}",
        "orcheck",
        "lent" if lent else "orcheck",
        tier,
        survives,
        level,
        level == "peers",
        more=tuple((line, "") for line in more),
    )


def scr(title: str, tier: str, survives: str, nodes: bool, tells: bool = True, **more: str) -> Way:
    settings = tuple((f"SCR_{key}", value) for key, value in more.items())
    return Way(f"SCR {title}", "scr", "scr", tier, survives, "", nodes, tells, settings)


def veloc(title: str, tier: str, mode: str) -> Way:
    return Way(f"VELOC {title}", "veloc", "veloc", tier, "all", mode)


def fti(level: int, tier: str, survives: str) -> Way:
    return Way(f"FTI L{level}", "fti", "fti", tier, survives, str(level), level in (2, 3))


AGENT = "agent = 'start'"
WAYS = {
    "orcheck-node-memory": orcheck("node", "memory", "process", "node"),
    "orcheck-node": orcheck("node", "disk", "process", "node"),
    "orcheck-node-cached": orcheck("node, cached", "disk", "process", "node", "direct = false"),
    "orcheck-agent": orcheck("agent", "disk", "process", "process", AGENT),
    "orcheck-lent": orcheck("lent", "disk", "process", "node", lent=True),
    "orcheck-peers-memory": orcheck("peers", "memory", "node", "peers", "peers = 1"),
    "orcheck-peers": orcheck("peers", "disk", "node", "peers", "peers = 1"),
    "orcheck-peers-agent": orcheck("peers, agent", "disk", "node", "peers", "peers = 1", AGENT),
    "orcheck-xor-memory": orcheck("xor", "memory", "node", "peers", "protect = 'xor={ranks}'"),
    "orcheck-global": orcheck("global", "disk", "all", "global"),
    "scr-single-memory": scr("single", "memory", "process", False, COPY_TYPE="SINGLE"),
    "scr-single": scr("single", "disk", "process", False, COPY_TYPE="SINGLE"),
    "scr-flush": scr("single + flush", "memory", "all", False, COPY_TYPE="SINGLE", FLUSH="1"),
    "scr-flush-async": scr(
        "single + async flush",
        "memory",
        "all",
        False,
        False,
        COPY_TYPE="SINGLE",
        FLUSH="1",
        FLUSH_ASYNC="1",
    ),
    "scr-xor-memory": scr("xor", "memory", "node", True, COPY_TYPE="XOR"),
    "scr-partner-memory": scr("partner", "memory", "node", True, COPY_TYPE="PARTNER"),
    "scr-partner": scr("partner", "disk", "node", True, COPY_TYPE="PARTNER"),
    "scr-partner-flush": scr(
        "partner + flush", "memory", "all", True, COPY_TYPE="PARTNER", FLUSH="1"
    ),
    "veloc-async-memory": veloc("async", "memory", "async"),
    "veloc-async": veloc("async", "disk", "async"),
    "veloc-sync-memory": veloc("sync", "memory", "sync"),
    "fti-l1-memory": fti(1, "memory", "process"),
    "fti-l1": fti(1, "disk", "process"),
    "fti-l2-memory": fti(2, "memory", "node"),
    "fti-l3-memory": fti(3, "memory", "node"),
    "stage": Way("stage", "posix", "stage", "memory", "all", "synced"),
    "posix-memory": Way("write", "posix", "posix", "memory", "process", ""),
    "posix": Way("write + fsync", "posix", "posix", "disk", "all", "synced"),
}


def flags_of(name: str) -> list[str] | None:
    """How to compile with a library below the prefix that NAME_DIR says; None: it is not there."""
    prefix = os.environ.get(f"{name.upper()}_DIR", "")
    header, libs = LIBRARIES[name]
    if not prefix or not os.path.exists(os.path.join(prefix, "include", header)):
        return None
    there = [path for path in (f"{prefix}/lib64", f"{prefix}/lib") if os.path.isdir(path)]
    found = [word for path in there for word in (f"-L{path}", f"-Wl,-rpath,{path}")]
    return [f"-DWITH_{name.upper()}", f"-I{prefix}/include", *found, *libs]


def version_of(name: str) -> str:
    """What the files that a library installs for CMake say of it."""
    prefix = os.environ.get(f"{name.upper()}_DIR", "")
    for root, _, files in os.walk(os.path.join(prefix, "share")):
        for file in files:
            if re.fullmatch(rf"{name}-?config-?version\.cmake", file, re.IGNORECASE):
                with open(os.path.join(root, file)) as text:
                    found = re.search(r'PACKAGE_VERSION "([^"]+)"', text.read())
                if found:
                    return found[1]
    return "of unknown version"


def settings(
    way: Way, disk: str, memory: str, ranks: int, mib: int, prefix: str
) -> tuple[str, str, dict[str, str]]:
    """The directory of the job, a file of settings, and what is added to the environment.

    disk, memory: directories of its own on the disk and in memory.
    """
    tier = memory if way.tier == "memory" else disk
    text, env = "", dict[str, str]()
    if way.library == "orcheck":
        text, env = of_orcheck(way, tier, ranks, mib, prefix)
        env["ORCHECK_CONFIG"] = os.path.join(disk, "conf")
    elif way.library == "scr":
        env = of_scr(way, tier, disk, ranks)
    elif way.library == "veloc":
        text, env = of_veloc(way, tier, disk)
    elif way.library == "fti":
        text = of_fti(way, tier, disk, ranks)
    conf = os.path.join(disk, "conf")
    with open(conf, "w") as file:
        file.write(text)
    return tier if way.library == "posix" else disk, conf, env


def of_orcheck(
    way: Way, tier: str, ranks: int, mib: int, prefix: str
) -> tuple[str, dict[str, str]]:
    lines = ["keep = 2", f"pool = {ranks * (mib + 8) * MIB}"]
    if way.level == "global":
        lines.append(f"global = [{toml(tier)}]")
    else:
        lines.append(f"node_dir = {toml(tier)}")
    lines += [line.format(ranks=ranks) for line, _ in way.more]
    if AGENT in lines:
        lines.append(f"agent_program = {toml(os.path.join(prefix, 'bin', 'orcheck'))}")
        lines.append("agent_linger_s = 60")
    env = {"ORCHECK_NODE": ",".join(f"n{i}" for i in range(ranks))} if way.nodes else {}
    return "\n".join(lines) + "\n", env


def of_scr(way: Way, tier: str, disk: str, ranks: int) -> dict[str, str]:
    """Files have absolute paths below SCR_PREFIX; without SCR_CACHE_BYPASS=0 there is no cache."""
    prefix = os.path.join(disk, "prefix")
    nodes = [os.path.join(tier, f"node{i}") for i in range(ranks if way.nodes else 1)]
    for path in (prefix, *(os.path.join(node, of) for node in nodes for of in ("cache", "cntl"))):
        os.makedirs(path)
    # Of virtual nodes each rank works in its own directory: the same path, and another place.
    base = "/proc/self/cwd" if way.nodes else nodes[0]
    return {
        "ORCBENCH_NODES": tier,
        "SCR_PREFIX": prefix,
        "SCR_CACHE_BASE": f"{base}/cache",
        "SCR_CNTL_BASE": f"{base}/cntl",
        "SCR_CONF_FILE": os.path.join(disk, "conf"),
        "SCR_USER_NAME": "bench",
        "USER": os.environ.get("USER", "bench"),
        "SCR_JOB_ID": "peers",
        "SCR_CACHE_BYPASS": "0",
        "SCR_CACHE_SIZE": "2",
        "SCR_PREFIX_SIZE": "2",
        "SCR_SET_SIZE": str(ranks),
        "SCR_FLUSH": "0",
        "SCR_FLUSH_TYPE": "PTHREAD",
        "SCR_FETCH": "0",
        **dict(way.more),
    }


def of_veloc(way: Way, tier: str, disk: str) -> tuple[str, dict[str, str]]:
    scratch, kept = os.path.join(tier, "scratch"), os.path.join(disk, "persistent")
    for path in (scratch, kept):
        os.makedirs(path)
    prefix = os.environ.get("VELOC_DIR", "")
    libs = [f"{prefix}/lib64", f"{prefix}/lib", os.environ.get("LD_LIBRARY_PATH", "")]
    return (
        f"scratch = {scratch}\npersistent = {kept}\nmode = {way.level}\n"
        f"max_versions = 2\nscratch_versions = 2\nlog_prefix = {disk}\n",
        # The daemon is started by its name, and does not find libveloc-modules by itself.
        {"VELOC_BIN": f"{prefix}/bin", "LD_LIBRARY_PATH": ":".join(filter(None, libs))},
    )


def of_fti(way: Way, tier: str, disk: str, ranks: int) -> str:
    """FTI wants all of its keys. A node of each rank's own: node_size = 1, with local_test."""
    size, group = (1, ranks) if way.nodes else (ranks, 1)
    for path in ("local", "global", "meta"):
        os.makedirs(os.path.join(tier if path == "local" else disk, path))
    basic = {
        "head": 0,
        "node_size": size,
        "ckpt_dir": os.path.join(tier, "local"),
        "glbl_dir": os.path.join(disk, "global"),
        "meta_dir": os.path.join(disk, "meta"),
        **{f"ckpt_l{level}": 0 for level in (1, 2, 3, 4)},
        **{f"inline_l{level}": 1 for level in (2, 3, 4)},
        "keep_last_ckpt": 0,
        "group_size": group,
        "max_sync_intv": 0,
        "ckpt_io": 1,
        "verbosity": 2,
    }
    advanced = {
        "block_size": 1024,
        "transfer_size": 16,
        "general_tag": 2612,
        "ckpt_tag": 711,
        "stage_tag": 406,
        "final_tag": 3107,
        "local_test": 1,
    }
    injection = {"rank": 0, "number": 0, "position": 0, "frequency": 0}
    sections: dict[str, dict[str, object]] = {
        "basic": dict(basic),
        "restart": {"failure": 0, "exec_id": "NULL"},
        "injection": dict(injection),
        "advanced": dict(advanced),
    }
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in section.items())
        for name, section in sections.items()
    )
