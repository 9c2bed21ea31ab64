"""What the sampler reads: one row a field. The readers take file, key and name from here; nothing else spells them.

A row says where a number stands (`source` below the group's folder, `key` inside that file), what it is, and
where the kernel documents it. To add a field of a file that is already read, add a row here and nothing else.
"""

from __future__ import annotations

STAT = "proc_pid_stat(5)"
STATUS = "proc_pid_status(5)"
IO = "proc_pid_io(5)"
SCHEDSTAT = "kernel: scheduler/sched-stats"
CGROUP2 = "kernel: admin-guide/cgroup-v2"
NET = "kernel: networking/snmp_counter"
SOCKSTAT = "proc_pid_net(5)"
HOST = "proc_stat(5)"
PSI = "kernel: accounting/psi"

GROUPS = {
    "line": "this sampler's clocks",
    "process": "/proc/PID",
    "cgroup": "the process's cgroup",
    "net": "/proc/PID (of its whole network namespace)",
    "host": "/proc",
}


class Field:
    """One number or text of a sample.

    kind: counter (only rises within one incarnation), gauge (a level now), id (names something).
    tier: A each tick; B every tenth tick, or each tick when the tree is small; C at marks.
    key: field number (stat), key at the line start (status, io, memory.stat), `Section:Key` (net), "" (whole file).
    v1: file and key in cgroup v1, None when v1 has no such number. `_usec` keys are stored as nanoseconds.
    """

    __slots__ = ("doc", "group", "key", "kind", "name", "ref", "source", "tier", "unit", "v1")

    def __init__(
        self, group: str, name: str, unit: str, kind: str, source: str, key: str, ref: str, doc: str,
        tier: str = "A", v1: tuple[str, str] | None = None,
    ) -> None:
        self.group = group
        self.name = name
        self.unit = unit
        self.kind = kind
        self.source = source
        self.key = key
        self.ref = ref
        self.doc = doc
        self.tier = tier
        self.v1 = v1


def of(group: str, source: str) -> tuple[Field, ...]:
    """The rows of one file, in table order."""
    return tuple(field for field in FIELDS if field.group == group and field.source == source)


def of_group(group: str) -> tuple[Field, ...]:
    """The rows of one group, in table order."""
    return tuple(field for field in FIELDS if field.group == group)


def sources(group: str) -> tuple[str, ...]:
    """The files of one group, each once, in table order."""
    return tuple(dict.fromkeys(field.source for field in FIELDS if field.group == group))


def table() -> str:
    """The table as aligned text, one field a line, under a line for each group."""
    lines = []
    for group, folder in GROUPS.items():
        lines.append(f"{group}: {folder}")
        for field in of_group(group):
            where = f"{field.source} {field.key}".strip()
            lines.append(
                f"  {field.name:<22} {field.unit:<8} {field.kind:<8} {field.tier}  {where:<42} "
                f"{field.doc} [{field.ref}]"
            )
        lines.append("")
    return "\n".join(lines)


def _process() -> tuple[Field, ...]:
    def stat(name: str, unit: str, kind: str, key: str, doc: str) -> Field:
        return Field("process", name, unit, kind, "stat", key, STAT, doc)

    def status(name: str, key: str, doc: str) -> Field:
        return Field("process", name, "kB", "gauge", "status", key, STATUS, doc)

    def threads(name: str, unit: str, key: str, doc: str) -> Field:
        return Field("process", name, unit, "counter", "task/*/schedstat", key, SCHEDSTAT, doc)

    def switches(name: str, key: str, doc: str) -> Field:
        return Field("process", name, "count", "counter", "task/*/status", key, STATUS, doc, tier="B")

    def io(name: str, doc: str) -> Field:
        return Field("process", name, "bytes", "counter", "io", name, IO, doc)

    return (
        stat("pid", "id", "id", "1", "process id as this sampler sees it"),
        stat("start_ticks", "ticks", "id", "22", "start after boot; with pid and boot id the identity"),
        stat("ppid", "id", "id", "4", "parent"),
        stat("comm", "text", "id", "2", "name, at most 15 bytes, set by the process itself"),
        stat("state", "letter", "id", "3", "R S D T Z X I of the leader thread"),
        stat("utime_ticks", "ticks", "counter", "14", "user CPU of all threads, ended ones too"),
        stat("stime_ticks", "ticks", "counter", "15", "system CPU of all threads, ended ones too"),
        stat("cutime_ticks", "ticks", "counter", "16", "user CPU of children that ended and were waited for"),
        stat("cstime_ticks", "ticks", "counter", "17", "system CPU of children that ended and were waited for"),
        stat("minflt", "count", "counter", "10", "page faults without I/O"),
        stat("majflt", "count", "counter", "12", "page faults that waited for I/O"),
        stat("n_threads", "count", "gauge", "20", "threads"),
        stat("rss_pages", "pages", "gauge", "24", "resident memory; shared pages count once a process"),
        status("vm_hwm_kb", "VmHWM", "highest resident memory so far"),
        status("rss_anon_kb", "RssAnon", "resident anonymous memory: heap, stacks"),
        status("rss_file_kb", "RssFile", "resident file mappings: code, mapped models"),
        status("rss_shmem_kb", "RssShmem", "resident shared memory"),
        status("vm_swap_kb", "VmSwap", "anonymous memory in swap"),
        Field("process", "n_fds", "count", "gauge", "fd", "", "proc_pid_fd(5)", "open descriptors; st_size of the "
              "folder from kernel 6.2, else counted"),
        Field("process", "fd_soft_limit", "count", "gauge", "limits", "Max open files", "proc_pid_limits(5)",
              "soft limit of open descriptors, read every tenth tick", tier="B"),
        threads("run_ns", "ns", "0", "time on a CPU, sum of threads; ended threads keep their last reading"),
        threads("wait_ns", "ns", "1", "time runnable but waiting for a CPU, sum as above"),
        threads("slices", "count", "2", "times scheduled, sum as above"),
        threads("n_tids_gone", "count", "", "threads seen to end; their last moments are not in the sums"),
        switches("ctx_voluntary", "voluntary_ctxt_switches", "waits, sum of threads; absent on ticks where not read"),
        switches("ctx_involuntary", "nonvoluntary_ctxt_switches", "preemptions, sum of threads; absent likewise"),
        io("rchar", "bytes of read calls; recv is not in it"),
        io("wchar", "bytes of write calls; send is not in it"),
        io("read_bytes", "bytes read from storage"),
        io("write_bytes", "bytes sent to storage"),
    )


def _cgroup() -> tuple[Field, ...]:
    def row(
        name: str, unit: str, kind: str, source: str, key: str, v1: tuple[str, str] | None, doc: str
    ) -> Field:
        return Field("cgroup", name, unit, kind, source, key, CGROUP2, doc, v1=v1)

    return (
        row("memory_current_bytes", "bytes", "gauge", "memory.current", "", ("memory.usage_in_bytes", ""),
            "memory charged to the cgroup, page cache included"),
        row("memory_limit_bytes", "bytes", "gauge", "memory.max", "", ("memory.stat", "hierarchical_memory_limit"),
            "tightest limit of the cgroup and its ancestors; null with why `unlimited`"),
        row("memory_anon_bytes", "bytes", "gauge", "memory.stat", "anon", ("memory.stat", "total_rss"),
            "anonymous memory of the cgroup and those below it"),
        row("memory_file_bytes", "bytes", "gauge", "memory.stat", "file", ("memory.stat", "total_cache"),
            "page cache of the cgroup and those below it"),
        row("oom_kill", "count", "counter", "memory.events", "oom_kill", ("memory.oom_control", "oom_kill"),
            "processes killed for want of memory (v1: not those of cgroups below)"),
        row("cpu_usage_ns", "ns", "counter", "cpu.stat", "usage_usec", ("cpuacct.usage", ""), "CPU time"),
        row("n_periods", "count", "counter", "cpu.stat", "nr_periods", ("cpu.stat", "nr_periods"),
            "quota periods; moves only with a quota"),
        row("n_throttled", "count", "counter", "cpu.stat", "nr_throttled", ("cpu.stat", "nr_throttled"),
            "periods in which the quota was used up"),
        row("throttled_ns", "ns", "counter", "cpu.stat", "throttled_usec", ("cpu.stat", "throttled_time"),
            "time stopped by the quota"),
        row("pids_current", "count", "gauge", "pids.current", "", ("pids.current", ""), "threads and processes"),
        row("pids_max", "count", "gauge", "pids.max", "", ("pids.max", ""), "their limit; null with why `unlimited`"),
    )


def _net() -> tuple[Field, ...]:
    def row(name: str, kind: str, source: str, key: str, doc: str, unit: str = "count", ref: str = NET) -> Field:
        return Field("net", name, unit, kind, f"net/{source}", key, ref, doc)

    return (
        row("listen_overflows", "counter", "netstat", "TcpExt:ListenOverflows", "connections lost: accept queue full"),
        row("listen_drops", "counter", "netstat", "TcpExt:ListenDrops", "connections lost at a listener, any reason"),
        row("tcp_timeouts", "counter", "netstat", "TcpExt:TCPTimeouts", "retransmission timers that fired"),
        row("tcp_syn_retrans", "counter", "netstat", "TcpExt:TCPSynRetrans", "SYNs sent again"),
        row("tcp_rcvq_drop", "counter", "netstat", "TcpExt:TCPRcvQDrop", "packets lost: receive queue full"),
        row("tcp_backlog_drop", "counter", "netstat", "TcpExt:TCPBacklogDrop", "packets lost: socket backlog full"),
        row("tcp_abort_on_memory", "counter", "netstat", "TcpExt:TCPAbortOnMemory", "connections reset: no memory"),
        row("out_segs", "counter", "snmp", "Tcp:OutSegs", "segments sent"),
        row("retrans_segs", "counter", "snmp", "Tcp:RetransSegs", "segments sent again"),
        row("attempt_fails", "counter", "snmp", "Tcp:AttemptFails", "connections that failed to open"),
        row("estab_resets", "counter", "snmp", "Tcp:EstabResets", "open connections reset"),
        row("curr_estab", "gauge", "snmp", "Tcp:CurrEstab", "connections open now"),
        row("tcp_inuse", "gauge", "sockstat", "TCP:inuse", "TCP sockets in use, listeners too", ref=SOCKSTAT),
        row("tcp_tw", "gauge", "sockstat", "TCP:tw", "sockets in TIME_WAIT", ref=SOCKSTAT),
        row("tcp_mem_pages", "gauge", "sockstat", "TCP:mem", "socket buffer memory", unit="pages", ref=SOCKSTAT),
    )


def _host() -> tuple[Field, ...]:
    columns = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    cpu = tuple(
        Field("host", f"cpu_{name}_ticks", "ticks", "counter", "stat", f"cpu:{column}", HOST,
              f"{name} time, sum of the machine's CPUs")
        for column, name in enumerate(columns)
    )
    pressure = tuple(
        Field("host", f"psi_{what}_{how}_us", "us", "counter", f"pressure/{what}", how, PSI, doc)
        for what, how, doc in (
            ("cpu", "some", "time in which some task waited for a CPU"),
            ("memory", "some", "time in which some task waited for memory"),
            ("memory", "full", "time in which every task waited for memory"),
            ("io", "some", "time in which some task waited for I/O"),
        )
    )
    return (
        *cpu,
        Field("host", "ctxt", "count", "counter", "stat", "ctxt", HOST, "context switches of the machine"),
        Field("host", "procs_running", "count", "gauge", "stat", "procs_running", HOST, "runnable tasks now"),
        *pressure,
    )


def _line() -> tuple[Field, ...]:
    def row(name: str, unit: str, kind: str, source: str, doc: str) -> Field:
        return Field("line", name, unit, kind, source, "", "clock_gettime(2)", doc)

    return (
        row("incarnation", "count", "id", "-", "1 for the process given; another process in its place has the next"),
        row("seq", "count", "id", "-", "tick of the schedule, from 1; a jump is a hole"),
        row("t_mono_ns", "ns", "counter", "CLOCK_MONOTONIC", "when reading began; rates use this clock"),
        row("t_boot_ns", "ns", "counter", "CLOCK_BOOTTIME", "the same with suspended time"),
        row("t_wall_ns", "ns", "gauge", "CLOCK_REALTIME", "the same as UTC since 1970; it may step"),
        row("lag_ns", "ns", "gauge", "CLOCK_MONOTONIC", "how late it is; below 0 for a last one before its tick"),
        row("cost_ns", "ns", "gauge", "CLOCK_MONOTONIC", "how long reading took"),
        row("cpu_ns", "ns", "counter", "CPU clock", "CPU time of this sampler so far"),
    )


FIELDS = (*_line(), *_process(), *_cgroup(), *_net(), *_host())
